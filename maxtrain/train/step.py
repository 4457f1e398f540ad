"""One step: gradients of a global batch, the guard, the update, the metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from maxtrain.config.schema import Config
from maxtrain.model import LossAux, Model
from maxtrain.optim import GROUPS, Optimizer, clip_factors, group_tree
from maxtrain.train.state import TrainState, dropout_keys

# A microbatches  B rows of a microbatch  T tokens  R rows of the batch (A·B)  L MoE layers  E experts
Batch = Mapping[str, Array]
Metrics = dict[str, Array]


def batch_gradients(
    model: Model,
    params: Any,
    batch: Batch,
    expert_bias: Array,
    row_keys_AB: Array | None,
    in_flight: int | None = None,
) -> tuple[Any, Array, LossAux]:
    """Sum losses and gradients over the microbatches of a batch, one after another or, in a pipeline, several at once.

    With mesh.zero = 2 the gradient of every pass, and with it the sum, is divided over `fsdp`.

    Args:
        model: the model.
        params: its parameters.
        batch: [A, B, T].
        expert_bias: [L, E].
        row_keys_AB: typed keys for dropout, or None.
        in_flight: microbatches that the pipeline takes at once, None for all; of no effect without stages.

    Returns:
        The gradient of the summed loss (float32; in the format of params where there is one microbatch), the summed
        loss, and the sums beside it; per-row values come as [A·B]. Divide by the number of target tokens for means.
    """
    grad = jax.value_and_grad(model.loss, has_aux=True)

    def one_pass(part: tuple[Batch, Array | None]) -> tuple[Any, Array, LossAux]:
        (total, aux), grads = grad(params, part[0], expert_bias=expert_bias, row_keys=part[1])
        if model.runtime.zero == 2:
            grads = _divide(model, grads)
        return grads, total, aux._replace(nll_B=aux.nll_B.reshape(-1), weight_B=aux.weight_B.reshape(-1))

    passes = _passes(model, batch, row_keys_AB, in_flight)
    first = jax.tree.map(lambda leaf: leaf[0], passes)
    if jax.tree.leaves(passes)[0].shape[0] == 1:
        return one_pass(first)

    def add(carry: tuple, part: tuple) -> tuple[tuple, tuple[Array, Array, Any]]:
        grads, total, aux = one_pass(part)
        parts = (aux.nll_B, aux.weight_B, aux.max_logits)
        return jax.tree.map(jnp.add, carry, (grads, total, summed(aux))), parts

    def summed(aux: LossAux) -> LossAux:
        return aux._replace(nll_B=jnp.zeros(()), weight_B=jnp.zeros(()), max_logits={})

    _, _, aux_shape = jax.eval_shape(one_pass, first)
    aux_shape = summed(aux_shape)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), (params, jnp.zeros(()), aux_shape))
    (grads, total, aux), (nll, weight, logits) = jax.lax.scan(add, zeros, passes)
    logits = jax.tree.map(lambda leaf: leaf.max(0), logits)
    return grads, total, aux._replace(nll_B=nll.reshape(-1), weight_B=weight.reshape(-1), max_logits=logits)


def batch_experts(
    model: Model,
    params: Any,
    batch: Batch,
    expert_bias: Array,
    row_keys_AB: Array | None = None,
    in_flight: int | None = None,
) -> Array:
    """The experts that the tokens of a batch choose, int32 [A, B, T, L, k]; as its `experts` they are replayed.

    Args:
        model: the model.
        params: its parameters.
        batch: [A, B, T].
        expert_bias: [L, E].
        row_keys_AB: as of `batch_gradients`.
        in_flight: as of `batch_gradients`.
    """

    def one_pass(part: tuple[Batch, Array | None]) -> Array:
        return model.chosen_experts(params, part[0], expert_bias=expert_bias, row_keys=part[1])

    experts = jax.lax.map(one_pass, _passes(model, batch, row_keys_AB, in_flight))
    return experts.reshape(*batch["tokens"].shape, *experts.shape[-2:])


def _passes(model: Model, batch: Batch, row_keys_AB: Array | None, in_flight: int | None) -> tuple[Batch, Array | None]:
    """The microbatches, one after another, or by so many as a pipeline takes at once."""
    passes: tuple[Batch, Array | None] = (dict(batch), row_keys_AB)
    if model.pipeline is None:
        return passes
    taken = in_flight or batch["tokens"].shape[0]
    return jax.tree.map(lambda leaf: leaf.reshape(-1, taken, *leaf.shape[1:]), passes)


def _divide(model: Model, tree: Any) -> Any:
    """A tree like the parameters laid out as the optimizer's state; nothing to do with mesh.zero = 3."""
    if model.mesh is None or model.runtime.zero == 3:
        return tree
    return jax.lax.with_sharding_constraint(tree, model.update_shardings())


def make_train_step(
    model: Model,
    optimizer: Optimizer,
    schedule: Callable[[Array], Array],
    config: Config,
    num_domains: int,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Build the step as a pure function, to be compiled with the state donated.

    The batch's arrays are [A, B, T] (`domain`: [A, B]; `experts`, where a routing is replayed: [A, B, T, L, k]). The
    loss is the weighted sum over the global batch divided by its number of target tokens. Where loss or gradient norm
    is not finite, the norm is over the guard's bound or the batch has no target, only `step` and `skips` advance.
    """
    axes = {spec.path: spec.axes for spec in model.table}
    groups = group_tree(model.abstract_params(), axes)
    clip, bound = config.optimizer.clip_norm, config.guard.max_grad_norm
    moe = config.model.moe
    balance_weight = moe.balance_weight if moe is not None and moe.balance != "none" else 0.0
    router_z_weight = moe.z_weight if moe is not None else 0.0

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        num_micro, rows = batch["tokens"].shape[:2]
        keys = None
        if config.model.dropout:
            keys = dropout_keys(config.run.seed, state.step, num_micro * rows).reshape(num_micro, rows)
        in_flight = config.pipeline.microbatches
        sums, total, aux = batch_gradients(model, state.params, batch, state.expert_bias, keys, in_flight)
        # The update is made of shards; what is not stored so is gathered when the step returns it.
        sums, params = _divide(model, sums), _divide(model, state.params)
        targets = aux.weight_B.sum()
        per_token = 1.0 / jnp.maximum(targets, 1.0)
        loss = total * per_token
        squares = _squares_by_group(sums, groups) * per_token**2
        grad_norm = jnp.sqrt(squares.sum())
        ok = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (targets > 0)
        if bound is not None:
            ok &= grad_norm <= bound

        scale = per_token if clip is None else per_token * jnp.minimum(1.0, clip / jnp.maximum(grad_norm, 1e-30))
        lr = schedule(state.updates)
        clipped = {}
        with jax.named_scope("optimizer"):
            grads = jax.tree.map(lambda leaf: leaf * scale, sums)
            direction, opt_state = optimizer.update(grads, state.opt_state, params)
            if config.optimizer.qk_clip is not None:
                clipped = clip_factors(aux.max_logits, config.optimizer.qk_clip, config.model.kv_heads)
            moved = optimizer.apply(params, direction, lr, state.updates, clipped)
        expert_bias = state.expert_bias
        if moe is not None and moe.balance == "bias":
            load = aux.expert_load
            expert_bias += moe.bias_rate * jnp.sign(load.mean(-1, keepdims=True) - load)
        new, old = (moved, opt_state, expert_bias), (params, state.opt_state, state.expert_bias)
        params, opt_state, expert_bias = jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)
        skips = jnp.where(ok, 0, state.skips + 1)
        after = TrainState(params, opt_state, expert_bias, state.step + 1, state.updates + ok.astype(jnp.int32), skips)

        tokens = (batch["segment_ids"] > 0).sum(dtype=jnp.float32)
        metrics = {
            "step": after.step,
            "updates": after.updates,
            "skipped": ~ok,
            "skips_in_a_row": skips,
            "loss": loss,
            "cross_entropy": aux.nll_B.sum() * per_token,
            "z_loss": config.model.z_weight * aux.z_sum * per_token,
            "balance_loss": balance_weight * aux.balance_sum * per_token,
            "router_z_loss": router_z_weight * aux.router_z_sum * per_token,
            "grad_norm": grad_norm,
            "grad_norm_by_group": jnp.sqrt(squares),
            "update_norm": jnp.where(ok, lr * optax.tree.norm(direction), 0.0),
            "param_norm": optax.tree.norm(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)),
            "lr": lr,
            "batch_digest": _digest(batch["tokens"], model.runtime.places(batch["tokens"].shape[-1])),
            "target_tokens": targets,
            "tokens": tokens,
            "expert_load": aux.expert_load,
            "router_entropy": aux.router_entropy_sum / jnp.maximum(tokens, 1.0),
            "dropped_tokens": aux.dropped,
            **_greatest_logit(aux.max_logits),
            **_by_domain(aux, batch["domain"].reshape(-1), num_domains),
        }
        return after, metrics

    return train_step


def _digest(tokens_ABT: Array, place_T: Array | None) -> Array:
    """A modular sum of mixed (token, place) pairs: equal for equal batches on every mesh (uint32).

    The mixing is the finaliser of MurmurHash3.

    Args:
        tokens_ABT: the batch's tokens.
        place_T: place in its row of each token; None where they lie in order.
    """
    place = jnp.arange(tokens_ABT.size, dtype=jnp.uint32).reshape(tokens_ABT.shape)
    if place_T is not None:
        place = place[..., :1] + place_T.astype(jnp.uint32)
    word = tokens_ABT.astype(jnp.uint32) + place * jnp.uint32(0x9E3779B1)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> shift)) * jnp.uint32(factor)
    return jnp.sum(word ^ (word >> 16), dtype=jnp.uint32)


def _squares_by_group(grads: Any, groups: Any) -> Array:
    """Sums of squares of the gradient, one a group in the order of GROUPS (float32)."""
    sums = {group: jnp.zeros(()) for group in GROUPS}
    for leaf, group in zip(jax.tree.leaves(grads), jax.tree.leaves(groups), strict=True):
        sums[group] += jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return jnp.stack([sums[group] for group in GROUPS])


def _greatest_logit(max_logits: Mapping[str, Array]) -> Metrics:
    """Of all heads of all layers, where they were measured: for QK-clip."""
    tops = [logits_LN.max() for logits_LN in max_logits.values()]
    return {"max_attention_logit": jnp.stack(tops).max()} if tops else {}


def _by_domain(aux: LossAux, domain_R: Array, num_domains: int) -> Metrics:
    """Mean loss and target tokens of every domain; all tokens of a row belong to one domain."""
    member = jax.nn.one_hot(domain_R, num_domains, dtype=jnp.float32)
    nll, tokens = jnp.where(member > 0, aux.nll_B[:, None], 0).sum(0), member.T @ aux.weight_B
    return {"loss_by_domain": nll / jnp.maximum(tokens, 1.0), "tokens_by_domain": tokens}
