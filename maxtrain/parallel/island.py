"""Islands: fully manual `shard_map` around local mathematics, and what their edges are made of.

An island gathers the weights it uses over `fsdp` (with mesh.zero under 3 they are whole already), calls its local
computation, and adds up what other ranks computed in part. Gradients come out by transposition: a gathered weight's is
scattered back, and what an argument's spec does not mention is summed over at the island's edge, exactly once. Types of
varying values are not checked (check_vma=False): their rules fail on loops under `vmap(spmd_axis_name="pipeline")`,
which a pipeline needs; tests on many meshes take their place. Without a mesh, or on one device, the computation is
called directly.

B batch  T tokens  N = B · T rows  D model
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from maxtrain.config.schema import BATCH_AXES
from maxtrain.parallel.rules import ACTIVATION_RULES, Rules, parameter_rules, to_partition_spec

ROW_AXES = (*BATCH_AXES, "context")
"""Mesh axes that divide the tokens."""


def is_single(mesh: Mesh | None) -> bool:
    """Whether there is nothing to exchange."""
    return mesh is None or mesh.size == 1


def axes_size(mesh: Mesh | None, *axes: str) -> int:
    """Ranks of the axes together."""
    assert mesh is not None
    return math.prod(mesh.shape[axis] for axis in axes)


def active_axes(mesh: Mesh | None, *axes: str) -> tuple[str, ...]:
    """Those of the axes that have more than one rank."""
    assert mesh is not None
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def divided_spec(mesh: Mesh | None, axes: Sequence[str | None], rules: Rules) -> PartitionSpec:
    """The tensor's spec, with all axes of size 1 in it, so that nothing is summed over them."""
    assert mesh is not None
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in to_partition_spec(axes, rules)]
    named = {name for entry in entries for name in entry}
    idle = tuple(axis for axis, size in mesh.shape.items() if size == 1 and axis not in named)
    return PartitionSpec(entries[0] + idle, *entries[1:])


def activation_spec(mesh: Mesh | None, *axes: str | None) -> PartitionSpec:
    """An activation's spec by its logical axes."""
    return divided_spec(mesh, axes, ACTIVATION_RULES)


def sequence_axis(mesh: Mesh | None, x_BTD: Array, sequence_parallel: bool = False) -> str | None:
    """Logical axis of an activation's tokens; those that the ranks do not divide (in decoding) are whole on each."""
    if sequence_parallel and x_BTD.shape[1] % axes_size(mesh, "context", "tensor") == 0:
        return "residual_sequence"
    return "sequence" if x_BTD.shape[1] % axes_size(mesh, "context") == 0 else None


def flatten_tokens(x_BTD: Array) -> Array:
    """[B, T, D] as [N, D]."""
    return x_BTD.reshape(-1, x_BTD.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_parts(y: Array, axes: tuple[str, ...]) -> Array:
    """Sum over axes that the island's output does not mention.

    Each rank receives an equal part of the output's cotangent; scaling it up saves the exchange that the transposition
    of a plain psum would make.
    """
    return lax.psum(y, axes)


def _sum_parts_forward(y: Array, axes: tuple[str, ...]) -> tuple[Array, None]:
    return sum_parts(y, axes), None


def _sum_parts_backward(axes: tuple[str, ...], _: None, dy: Array) -> tuple[Array]:
    return (dy * math.prod(lax.axis_size(axis) for axis in axes),)


sum_parts.defvjp(_sum_parts_forward, _sum_parts_backward)


def gather_tokens(x_BTD: Array, sequence: str | None) -> Array:
    """The tokens of all ranks of `tensor`, where it divides them; their gradients are reduce-scattered."""
    return lax.all_gather(x_BTD, "tensor", axis=1, tiled=True) if sequence == "residual_sequence" else x_BTD


def sum_tensor_parts(y_BTD: Array, mesh: Mesh | None, sequence: str | None) -> Array:
    """Sum what the ranks of `tensor` computed in part: each receives its tokens (Korthikanti 2022), or all of them."""
    if sequence == "residual_sequence":
        return lax.psum_scatter(y_BTD, "tensor", scatter_dimension=1, tiled=True)
    return sum_parts(y_BTD, active_axes(mesh, "tensor"))


Entered = Array | tuple[Array | None, Array] | None
"""A weight in an island: its shard along `fsdp` (mesh.zero = 3), or None or its shard beside the whole (1, 2)."""


Layout = Sequence[tuple[str, ...]]
"""Logical axes of each weight."""


def enter_weights(
    weights: Sequence[Array | None],
    layout: Layout,
    mesh: Mesh | None,
    zero: int,
    expert_axes: Sequence[str] = ("expert",),
) -> tuple[list[Entered], list[Any]]:
    """How weights enter an island, and their specs. Where they are whole along `fsdp`, nothing is moved.

    A gradient to be divided (zero = 2) needs an argument that is: the shard, which each rank cuts from what it holds.
    """
    entered: list[Entered] = []
    specs: list[Any] = []
    for weight, axes in zip(weights, layout, strict=True):
        divided, whole = (divided_spec(mesh, axes, parameter_rules(axes, expert_axes, level)) for level in (3, zero))
        if weight is None or not _shards(mesh, axes, expert_axes) or zero == 3:
            entered.append(weight)
            specs.append(divided)
        else:
            entered.append((weight, lax.stop_gradient(weight)) if zero == 2 else (None, weight))
            specs.append((divided, whole))
    return entered, specs


def _shards(mesh: Mesh | None, axes: tuple[str, ...], expert_axes: Sequence[str]) -> tuple[str, ...]:
    """`fsdp`, where it divides the weight's width."""
    entry = parameter_rules(axes, expert_axes)["embed"] or ()
    return active_axes(mesh, *((entry,) if isinstance(entry, str) else entry))


def gather_weights(
    entered: Sequence[Entered], layout: Layout, mesh: Mesh | None, expert_axes: Sequence[str] = ("expert",)
) -> tuple[Any, ...]:
    """Weights whole along `fsdp`; gradients of shards are reduce-scattered over it, then summed over other ranks."""
    weights: list[Any] = []
    for weight, axes in zip(entered, layout, strict=True):
        shards = _shards(mesh, axes, expert_axes)
        if isinstance(weight, tuple):
            shard, whole = weight
            weights.append(whole if shard is None else _held(shard, whole, axes.index("embed")))
        elif weight is None or not shards:
            weights.append(weight)
        else:
            weights.append(lax.all_gather(weight, shards, axis=axes.index("embed"), tiled=True))
    return tuple(weights)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _held(shard: Array, whole: Array, dim: int) -> Array:
    """The weight that each rank holds; its gradient goes to the shard, as if that had been gathered."""
    return whole


def _held_forward(shard: Array, whole: Array, dim: int) -> tuple[Array, None]:
    return whole, None


def _held_backward(dim: int, _: None, grad: Array) -> tuple[Array, None]:
    return lax.psum_scatter(grad, "fsdp", scatter_dimension=dim, tiled=True), None


_held.defvjp(_held_forward, _held_backward)


def run_island(
    island: Callable[..., Any],
    mesh: Mesh | None,
    in_specs: Sequence[Any],
    out_specs: Any,
    arguments: Sequence[Any],
    fill: Sequence[int | None] = (0,),
) -> Any:
    """Call an island, the batch padded where the ranks do not divide it (a prompt, the end of an evaluation).

    Args:
        island: what each rank does.
        mesh: the device mesh.
        in_specs: of the arguments.
        out_specs: of the results.
        arguments: the first of them is [B, T, …].
        fill: for the leading arguments, what a missing row holds; None where the argument has no batch.
    """
    assert mesh is not None
    assert arguments[0] is not None
    batch = arguments[0].shape[0]
    missing = -batch % math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if missing:
        fills = [*fill, *[None] * (len(arguments) - len(fill))]
        arguments = [
            a if value is None or a is None else _pad_batch(a, missing, value)
            for a, value in zip(arguments, fills, strict=True)
        ]
    results = _call_island(island, mesh, tuple(in_specs), out_specs, tuple(arguments))
    return jax.tree.map(lambda a: a[:batch] if a.ndim else a, results) if missing else results


def _call_island(
    island: Callable[..., Any], mesh: Mesh, in_specs: Sequence[Any], out_specs: Any, arguments: Sequence[Any]
) -> Any:
    """shard_map, also under a vmap over pipeline stages, of which each rank then holds one.

    The vmap adds the stage to the specs and takes it off inside: to leave it to shard_map's own rule would run the
    island over a dimension of size 1, and turn its loops of data-dependent length into masked ones.
    """

    def call(in_specs: Sequence[Any], out_specs: Any, island: Callable[..., Any], arguments: Any) -> Any:
        return jax.shard_map(island, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)(
            *arguments
        )

    if mesh.shape["pipeline"] == 1:
        return call(in_specs, out_specs, island, arguments)

    @jax.custom_batching.custom_vmap
    def over_stages(*arguments: Any) -> Any:
        return call(in_specs, out_specs, island, arguments)

    @over_stages.def_vmap
    def rule(_: int, is_staged: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        staged = [bool(jax.tree.leaves(flags)) and all(jax.tree.leaves(flags)) for flags in is_staged]

        def with_stage(spec: Any) -> Any:
            return jax.tree.map(
                lambda s: PartitionSpec("pipeline", *s), spec, is_leaf=lambda s: isinstance(s, PartitionSpec)
            )

        def own(argument: Any) -> Any:
            return jax.tree.map(lambda a: a[0], argument)

        specs = [with_stage(s) if flag else s for s, flag in zip(in_specs, staged, strict=True)]

        def one_stage(*arguments: Any) -> Any:
            results = island(*(own(a) if flag else a for a, flag in zip(arguments, staged, strict=True)))
            return jax.tree.map(lambda a: a[None], results)

        out = with_stage(out_specs)
        results = call(specs, out, one_stage, arguments)
        return results, jax.tree.map(lambda _: True, results)

    return over_stages(*arguments)


def _pad_batch(x: Array, missing: int, value: int) -> Array:
    return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=value)
