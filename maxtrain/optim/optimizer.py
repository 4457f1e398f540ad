"""The update direction: AdamW, or Muon on the layers' matrices, with decoupled weight decay, by groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Sharding

from maxtrain.config.parametrization import Multipliers
from maxtrain.config.schema import OptimizerConfig
from maxtrain.core.trees import from_paths, leaf_paths
from maxtrain.optim.groups import Axes, group_of
from maxtrain.optim.muon import STACK_AXES, Matrices, orthogonalise
from maxtrain.optim.rounding import Store

_MUON_GROUPS = ("attention", "feed_forward", "experts")
_TABLES = ("embedding", "output")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer keeps; the moments are by the path of their parameter."""

    count: jax.Array
    """Updates applied, int32."""
    mu: dict[str, jax.Array]
    """Adam's first moment."""
    nu: dict[str, jax.Array]
    """Adam's second moment."""
    momentum: dict[str, jax.Array]
    """Muon's momentum."""


class Optimizer(NamedTuple):
    """Pure functions of parameters and state, of which nothing is carried elsewhere."""

    init: Callable[[Any], OptimizerState]
    """params -> the state before the first update."""
    update: Callable[[Any, OptimizerState, Any], tuple[Any, OptimizerState]]
    """(gradients, state, params) -> (direction, state): float32 directions d of `params -= lr × d`."""
    apply: Callable[[Any, Any, jax.Array, jax.Array, Mapping[str, jax.Array]], Any]
    """(params, direction, lr, updates before this one, factors) -> params, rounded to the format they are stored in.

    The factors, by path, come after the update; those of a stack are [layers in their order, ...]."""


@dataclass(frozen=True)
class Rule:
    """How one parameter moves: `params -= lr × lr_factor × (update_factor × update + weight_decay × params)`."""

    group: str
    matrices: Matrices | None
    """Under Muon; None for Adam."""
    sharding: Sharding | None
    layers: np.ndarray | None
    """Number of the layer at each place of a stack; None for what is no stack."""
    lr_factor: float
    update_factor: float
    """Of the parametrization; it leaves the decay as it is."""
    weight_decay: float
    eps: float


def make_rules(
    config: OptimizerConfig,
    params: Any,
    axes: Mapping[str, Axes],
    factors: Multipliers,
    order: Mapping[str, np.ndarray],
) -> dict[str, Rule]:
    """The rule of every parameter by path.

    Args:
        config: the optimizer's section.
        params: tree of arrays or abstract arrays.
        axes: logical axes of every parameter by path.
        factors: multipliers of the model's parametrization.
        order: layer at each place of the stacks that do not lie in the order of layers.
    """

    def rule(path: str, leaf: Any) -> Rule:
        group = group_of(path, axes[path])
        own = config.groups.get(group)
        exempt = group == "norms" or (group in _TABLES and not config.decay_embeddings)
        decay = 0.0 if exempt else config.weight_decay
        muon = config.name == "muon" and group in _MUON_GROUPS
        hidden = factors.hidden_muon_lr if muon else factors.hidden_adam_lr
        eps = factors.table_eps if group in _TABLES or path.startswith("final_norm") else factors.layer_eps
        return Rule(
            group=group,
            matrices=Matrices.of(axes[path]) if muon else None,
            sharding=getattr(leaf, "sharding", None),
            layers=order.get(path, np.arange(leaf.shape[0])) if axes[path][0] in STACK_AXES else None,
            lr_factor=own.lr_factor if own else 1.0,
            update_factor=1.0 if group in (*_TABLES, "norms") else hidden,
            weight_decay=decay if own is None or own.weight_decay is None else own.weight_decay,
            eps=config.eps * eps,
        )

    return {path: rule(path, leaf) for path, leaf in leaf_paths(params)}


def make_optimizer(
    config: OptimizerConfig,
    params: Any,
    axes: Mapping[str, Axes],
    *,
    factors: Multipliers | None = None,
    order: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Optimizer:
    """Build the optimizer.

    The learning rate comes from outside, from the `updates` counter, so that a skipped step leaves no trace in the
    optimizer's state. Gradients, arithmetic and directions are float32, whatever moments and parameters are stored in.

    Args:
        config: the optimizer's section.
        params: tree of arrays or abstract arrays; where they lie on a mesh, Muon's work is divided over it.
        axes: logical axes of every parameter by path.
        factors: multipliers of the model's parametrization; None for the standard one.
        order: layer at each place of a stack by path, of those that a pipeline lays out in another order.
        seed: of stochastic rounding.
    """
    order = order or {}
    rules = make_rules(config, params, axes, factors or Multipliers(), order)
    muon = {path for path, rule in rules.items() if rule.matrices is not None}
    dtypes = {"mu": config.mu_dtype, "nu": config.nu_dtype, "momentum": config.mu_dtype}
    store = Store(seed, config.stochastic_rounding)

    def init(params: Any) -> OptimizerState:
        leaves = dict(leaf_paths(params))

        def zeros(slot: str) -> dict[str, jax.Array]:
            chosen = [path for path in leaves if (path in muon) == (slot == "momentum")]
            return {path: jnp.zeros_like(leaves[path], dtypes[slot]) for path in chosen}

        return OptimizerState(jnp.zeros((), jnp.int32), zeros("mu"), zeros("nu"), zeros("momentum"))

    def update(grads: Any, state: OptimizerState, params: Any) -> tuple[Any, OptimizerState]:
        count = optax.safe_increment(state.count)
        weights = dict(leaf_paths(params))
        moments: dict[str, dict[str, jax.Array]] = {slot: {} for slot in dtypes}
        directions = {}
        for path, grad in leaf_paths(grads):
            rule = rules[path]
            old = {slot: getattr(state, slot)[path].astype(jnp.float32) for slot in _slots(rule)}
            move = _muon if rule.matrices is not None else _adam
            directions[path], new = move(config, rule, grad, old, count)
            if rule.update_factor != 1:
                directions[path] *= rule.update_factor
            if rule.weight_decay:
                directions[path] += rule.weight_decay * weights[path].astype(jnp.float32)
            if rule.lr_factor != 1:
                directions[path] *= rule.lr_factor
            for slot, moment in new.items():
                moments[slot][path] = store(
                    moment, jnp.dtype(dtypes[slot]), f"{slot}/{path}", state.count, layers=rule.layers
                )
        return from_paths(grads, directions), OptimizerState(count, **moments)

    def apply(params: Any, direction: Any, lr: jax.Array, count: jax.Array, factors: Mapping[str, jax.Array]) -> Any:
        steps, after = dict(leaf_paths(direction)), {}
        for path, leaf in leaf_paths(params):
            moved = leaf - lr * steps[path]
            if path in factors:
                moved *= factors[path] if path not in order else factors[path][order[path]]
            after[path] = store(moved, leaf.dtype, f"params/{path}", count, layers=rules[path].layers)
        return from_paths(params, after)

    return Optimizer(init, update, apply)


def _slots(rule: Rule) -> tuple[str, ...]:
    return ("mu", "nu") if rule.matrices is None else ("momentum",)


Moments = dict[str, jax.Array]


def _adam(
    config: OptimizerConfig, rule: Rule, grad: jax.Array, old: Moments, count: jax.Array
) -> tuple[jax.Array, Moments]:
    """Adam's direction without decay (Kingma 2015), and the new moments."""
    mu = (1 - config.beta1) * grad + config.beta1 * old["mu"]
    nu = (1 - config.beta2) * grad**2 + config.beta2 * old["nu"]
    mean, square = mu / (1 - config.beta1**count), nu / (1 - config.beta2**count)
    return mean / (jnp.sqrt(square) + rule.eps), {"mu": mu, "nu": nu}


def _muon(
    config: OptimizerConfig, rule: Rule, grad: jax.Array, old: Moments, count: jax.Array
) -> tuple[jax.Array, Moments]:
    """The orthogonal direction of the Nesterov momentum, with the RMS of AdamW's."""
    assert rule.matrices is not None
    beta = config.muon_momentum
    momentum = (1 - beta) * grad + beta * old["momentum"]
    ahead = beta * (momentum / (1 - beta ** (count + 1))) + (1 - beta) * (grad / (1 - beta**count))
    return orthogonalise(ahead, rule.matrices, rule.sharding, config.muon_iterations), {"momentum": momentum}
