"""The state of a run: parameters, optimizer state, expert bias and the counters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.core.trees import from_paths, leaf_paths
from maxtrain.model import Model
from maxtrain.optim import Optimizer, OptimizerState

_INIT, _DROPOUT = range(2)
"""Purposes of randomness, folded into the run's seed; `optim.rounding` has the next."""


class TrainState(NamedTuple):
    """Everything that a step changes; the run's only mutable arrays.

    `step` counts batches consumed, `updates` counts updates applied, `skips` the skipped steps in a row (int32).
    """

    params: Any
    opt_state: OptimizerState
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


def new_state(model: Model, optimizer: Optimizer, key: Array) -> TrainState:
    """State before the first step; jit it with out_shardings so that parameters are born sharded."""
    return _state_of(model.init(key), model, optimizer)


def _state_of(params: Any, model: Model, optimizer: Optimizer) -> TrainState:
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, optimizer.init(params), model.expert_bias(), zero, zero, zero)


def abstract_state(model: Model, optimizer: Optimizer, mesh: jax.sharding.Mesh) -> TrainState:
    """Shapes, dtypes and shardings of the state.

    What the optimizer keeps of a parameter is divided over `fsdp` whatever mesh.zero is; all else is replicated.
    """
    shapes = jax.eval_shape(lambda params: _state_of(params, model, optimizer), model.abstract_params())
    shardings = dict(leaf_paths(model.update_shardings()))
    replicated = NamedSharding(mesh, PartitionSpec())

    def annotate(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding = replicated) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def annotate_slot(name: str, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        _, _, parameter = name.partition("/")
        return annotate(leaf, shardings.get(parameter, replicated))

    slots = {name: annotate_slot(name, leaf) for name, leaf in leaf_paths(shapes.opt_state)}

    return jax.tree.map(annotate, shapes)._replace(
        params=jax.tree.map(annotate, shapes.params, model.shardings()),
        opt_state=from_paths(shapes.opt_state, slots),
    )


def to_saved(state: TrainState, model: Model) -> dict[str, Any]:
    """The state as nested dictionaries for a checkpoint, whose leaves know neither optimizer chains nor stages.

    The optimizer's state is flat: `mu/PARAMETER` and `nu/PARAMETER` of Adam, `momentum/PARAMETER` of Muon, `count`.
    Stacks are in the order of layers. An abstract state stays abstract.
    """
    saved = {**state._asdict(), "opt_state": dict(leaf_paths(state.opt_state))}
    return _move_staged(saved, model, to_disk=True)


def from_saved(saved: dict[str, Any], like: TrainState, model: Model) -> TrainState:
    """Inverse of to_saved, with the structure of `like` (which may be abstract)."""
    saved = _move_staged(saved, model, to_disk=False)
    return TrainState(**{**saved, "opt_state": from_paths(like.opt_state, saved["opt_state"])})


def _move_staged(saved: dict[str, Any], model: Model, *, to_disk: bool) -> dict[str, Any]:
    """Bring stacks that stages divide from the order of memory to that of layers, or back."""
    pipeline = model.pipeline
    if pipeline is None or pipeline.keeps_order:
        return saved
    move = pipeline.from_memory if to_disk else pipeline.to_memory
    size = pipeline.num_layers if to_disk else pipeline.num_places
    first = None if size % pipeline.stages else "pipeline"

    def move_leaf(path: tuple, leaf: Any) -> Any:
        if not model.is_staged(jax.tree_util.keystr(path, simple=True, separator="/")):
            return leaf
        sharding = NamedSharding(pipeline.mesh, PartitionSpec(first, *leaf.sharding.spec[1:]))
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, sharding=sharding)
        return jax.jit(move, out_shardings=sharding)(leaf)

    return jax.tree_util.tree_map_with_path(move_leaf, saved)
