"""The state of a run: parameters, optimizer state, expert bias and the counters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.model import Model

_INIT, _DROPOUT = range(2)
"""Purposes of randomness, folded into the run's seed."""


class TrainState(NamedTuple):
    """Everything that a step changes; the run's only mutable arrays.

    `step` counts batches consumed, `updates` counts updates applied, `skips` the skipped steps in a row (int32).
    """

    params: Any
    opt_state: Any
    expert_bias: Array
    step: Array
    updates: Array
    skips: Array


def init_key(seed: int) -> Array:
    """Key of the initial parameters."""
    return jax.random.fold_in(jax.random.key(seed), _INIT)


def dropout_keys(seed: int, step: Array, num_rows: int) -> Array:
    """One key for every row of a step's batch: neither mesh nor accumulation changes a mask.

    Returns:
        Typed keys [num_rows].
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _DROPOUT), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_rows))


def new_state(model: Model, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """State before the first step; jit it with out_shardings so that parameters are born sharded."""
    params = model.init(init_key(seed))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, optimizer.init(params), model.expert_bias(), zero, zero, zero)


def abstract_state(model: Model, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> TrainState:
    """Shapes, dtypes and shardings of the state.

    A leaf of the optimizer's state that mirrors a parameter is sharded like it; all else is replicated.
    """
    shapes = jax.eval_shape(lambda: new_state(model, optimizer, 0))
    shardings = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model.shardings())}
    replicated = NamedSharding(mesh, PartitionSpec())

    def annotate(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        name = _name(path)
        matches = [sharding for suffix, sharding in shardings.items() if f"/{name}".endswith(f"/{suffix}")]
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=matches[0] if matches else replicated)

    return jax.tree_util.tree_map_with_path(annotate, shapes)


def create_state(
    model: Model, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh, seed: int
) -> TrainState:
    """Initialise the state on the mesh, every leaf created where it stays."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(model, optimizer, mesh))
    return jax.jit(lambda: new_state(model, optimizer, seed), out_shardings=shardings)()


def to_saved(state: Any) -> dict[str, Any]:
    """The state as nested dictionaries for a checkpoint; the optimizer's state is flat, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(state.opt_state)
    return {**state._asdict(), "opt_state": {_name(path): leaf for path, leaf in leaves}}


def from_saved(saved: dict[str, Any], like: TrainState) -> TrainState:
    """Inverse of to_saved, with the structure of `like` (which may be abstract)."""
    structure = jax.tree_util.tree_structure(like.opt_state)
    names = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(like.opt_state)]
    leaves = [saved["opt_state"][name] for name in names]
    return TrainState(**{**saved, "opt_state": jax.tree_util.tree_unflatten(structure, leaves)})


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
