"""Where ranks exchange rows and weights: islands of fully manual `shard_map` around local mathematics.

An island gathers the weights it uses over `fsdp` (with mesh.zero under 3 they are whole already), calls its local
computation, and adds up what `tensor` and `expert` ranks computed in part. Gradients come out by transposition: a
gathered weight's is scattered back, and what an argument's spec does not mention is summed over at the island's edge,
exactly once. Types of varying values are not checked (check_vma=False): their rules fail on loops under
`vmap(spmd_axis_name="pipeline")`, which a pipeline needs; tests on many meshes take their place. Without a mesh, or on
one device, the computation is called directly.

B batch  T tokens  N = B · T rows  K kv heads  H head dim  D model  F hidden  E experts  k choices  V vocabulary
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from maxtrain.config.schema import BATCH_AXES
from maxtrain.parallel.context import Attention, attend, ring_order
from maxtrain.parallel.rules import ACTIVATION_RULES, Rules, parameter_rules, to_partition_spec

ROW_AXES = (*BATCH_AXES, "context")
"""Mesh axes that divide the tokens."""

_INWARD, _OUTWARD = ("embed", "mlp"), ("mlp", "embed")


def is_single(mesh: Mesh | None) -> bool:
    """Whether there is nothing to exchange."""
    return mesh is None or mesh.size == 1


def sharded_attention(
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segment_ids_BT: Array | None,
    *,
    mesh: Mesh | None,
    attention: Attention,
) -> Array:
    """Attention of each rank's rows and heads; tokens divided over `context` see each other by its exchange.

    Args:
        q_BTNH: queries, in ring order where `context` divides them.
        k_BTKH: keys.
        v_BTKH: values.
        segment_ids_BT: documents of a row, or None.
        mesh: the device mesh.
        attention: local attention.
    """
    if is_single(mesh):
        return attention.whole(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT)
    arguments = q_BTNH, k_BTKH, v_BTKH, segment_ids_BT
    if not _active(mesh, "context"):
        return _attention_island(attention.whole, mesh, arguments, "sequence")
    order = ring_order(q_BTNH.shape[1], _size(mesh, "context"))
    if attention.blocks is None:
        natural = np.argsort(order)
        out_BTNH = _attention_island(
            attention.whole, mesh, tuple(a if a is None else a[:, natural] for a in arguments), None
        )
        return out_BTNH[:, order]
    if segment_ids_BT is None:
        segment_ids_BT = jnp.ones(q_BTNH.shape[:2], jnp.int32)
    island = partial(attend, attention=attention)
    return _attention_island(island, mesh, (q_BTNH, k_BTKH, v_BTKH, segment_ids_BT), "sequence")


def _attention_island(
    island: Callable[..., Array], mesh: Mesh | None, arguments: Sequence[Array | None], sequence: str | None
) -> Array:
    """Each rank's rows and heads, and its part of the sequence where that is divided."""
    query, keys = (_activation(mesh, "batch", sequence, heads, None) for heads in ("heads", "kv_heads"))
    specs = (query, keys, keys, _activation(mesh, "batch", sequence))
    return _run_island(island, mesh, specs, query, arguments, fill=(0, 0, 0, 0))


def sharded_input_projections(
    x_BTD: Array,
    weights: Sequence[Array],
    axes: Sequence[tuple[str, ...]],
    *,
    mesh: Mesh | None,
    zero: int = 3,
    compute: Sequence[Callable[[Array, Array], Array]],
    sequence_parallel: bool = False,
) -> list[Array]:
    """Products of the tokens with weights whose outputs `tensor` divides; the tokens are gathered once for all.

    Args:
        x_BTD: input.
        weights: each [D, …].
        axes: their logical axes, `embed` first.
        mesh: the device mesh.
        zero: as mesh.zero.
        compute: of each weight, `(x_BTD, weight) -> [B, T, …]`.
        sequence_parallel: `tensor` divides the tokens of x.
    """
    if is_single(mesh):
        return [product(x_BTD, weight) for product, weight in zip(compute, weights, strict=True)]
    sequence = _sequence(mesh, x_BTD, sequence_parallel)

    def island(x: Array, *entered: Entered) -> list[Array]:
        x = _gather_tokens(x, sequence)
        return [product(x, weight) for product, weight in zip(compute, _gather(entered, axes, mesh), strict=True)]

    held, specs = _enter(weights, axes, mesh, zero)
    outward = _sequence(mesh, x_BTD)
    out_specs = [_activation(mesh, "batch", outward, *names[1:]) for names in axes]
    tokens = _activation(mesh, "batch", sequence, "embed")
    return _run_island(island, mesh, (tokens, *specs), out_specs, (x_BTD, *held))


def sharded_output_projection(
    x_BTNH: Array,
    weight: Array,
    *,
    mesh: Mesh | None,
    zero: int = 3,
    compute: Callable[[Array, Array], Array],
    sequence_parallel: bool = False,
) -> Array:
    """Product of the heads, which `tensor` divides, with their output weight; the ranks' parts are summed.

    Args:
        x_BTNH: heads.
        weight: [N, H, D].
        mesh: the device mesh.
        zero: as mesh.zero.
        compute: `(x_BTNH, weight) -> y_BTD`.
        sequence_parallel: `tensor` divides the tokens of the result.
    """
    if is_single(mesh):
        return compute(x_BTNH, weight)
    layout = (("heads", "head_dim", "embed"),)
    sequence = _sequence(mesh, x_BTNH, sequence_parallel)

    def island(x: Array, entered: Entered) -> Array:
        (whole,) = _gather((entered,), layout, mesh)
        return _sum_tensor_parts(compute(x, whole), mesh, sequence)

    (held,), (spec,) = _enter((weight,), layout, mesh, zero)
    heads = _activation(mesh, "batch", _sequence(mesh, x_BTNH), "heads", None)
    return _run_island(island, mesh, (heads, spec), _activation(mesh, "batch", sequence, "embed"), (x_BTNH, held))


def sharded_feed_forward(
    x_BTD: Array,
    gate: Array | None,
    up: Array,
    down: Array,
    *,
    mesh: Mesh | None,
    zero: int = 3,
    compute: Callable[..., Array],
    sequence_parallel: bool = False,
) -> Array:
    """Dense feed-forward of the tokens.

    Args:
        x_BTD: input.
        gate: gate_DF or None.
        up: up_DF.
        down: down_FD.
        mesh: the device mesh.
        zero: as mesh.zero.
        compute: `(x_ND, gate, up, down) -> y_ND`, linear in down: ranks of `tensor` each compute a part of F.
        sequence_parallel: `tensor` divides the tokens of x and of the result.
    """

    def local(x: Array, gate: Array | None, up: Array, down: Array) -> Array:
        return compute(_flat(x), gate, up, down).reshape(x.shape)

    if is_single(mesh):
        return local(x_BTD, gate, up, down)

    layout = _INWARD, _INWARD, _OUTWARD
    sequence = _sequence(mesh, x_BTD, sequence_parallel)

    def island(x: Array, *entered: Entered) -> Array:
        y_BTD = local(_gather_tokens(x, sequence), *_gather(entered, layout, mesh))
        return _sum_tensor_parts(y_BTD, mesh, sequence)

    tokens = _activation(mesh, "batch", sequence, "embed")
    weights, specs = _enter((gate, up, down), layout, mesh, zero)
    return _run_island(island, mesh, (tokens, *specs), tokens, (x_BTD, *weights))


def sharded_cross_entropy(
    x_BTD: Array,
    output_VD: Array,
    target_BT: Array,
    weight_BT: Array,
    *,
    mesh: Mesh | None,
    zero: int = 3,
    compute: Callable[..., tuple[Array, Array, Array]],
    sequence_parallel: bool = False,
) -> tuple[Array, Array, Array]:
    """Loss of the tokens, the vocabulary divided over `tensor`.

    Args:
        x_BTD: final hidden rows.
        output_VD: output projection.
        target_BT: int32 targets.
        weight_BT: float32 weights.
        mesh: the device mesh.
        zero: as mesh.zero.
        compute: `(x_ND, output_VD, target_N, weight_N, vocab_axis=) -> (total, nll_N, z_N)`.
        sequence_parallel: `tensor` divides the tokens of x.

    Returns:
        total over all tokens, nll_BT, z_BT.
    """

    def local(
        x: Array, output: Array, target: Array, weight: Array, vocab_axis: str | None
    ) -> tuple[Array, Array, Array]:
        total, nll_N, z_N = compute(_flat(x), output, target.reshape(-1), weight.reshape(-1), vocab_axis=vocab_axis)
        return total, nll_N.reshape(target.shape), z_N.reshape(target.shape)

    if is_single(mesh):
        return local(x_BTD, output_VD, target_BT, weight_BT, None)
    divided, sequence = bool(_active(mesh, "tensor")), _sequence(mesh, x_BTD, sequence_parallel)

    layout = (("vocab", "embed"),)

    def island(x: Array, output: Entered, target: Array, weight: Array) -> tuple[Array, Array, Array]:
        (gathered,) = _gather((output,), layout, mesh)
        x = _gather_tokens(x, sequence)
        total, nll_BT, z_BT = local(x, gathered, target, weight, "tensor" if divided else None)
        return lax.psum(total, _active(mesh, *ROW_AXES)), nll_BT, z_BT

    tokens, rows = _activation(mesh, "batch", sequence, "embed"), _activation(mesh, "batch", "sequence")
    (output,), (spec,) = _enter((output_VD,), layout, mesh, zero)
    return _run_island(
        island,
        mesh,
        (tokens, spec, rows, rows),
        (PartitionSpec(), rows, rows),
        (x_BTD, output, target_BT, weight_BT),
        fill=(0, None, 0, 0),
    )


def _size(mesh: Mesh | None, *axes: str) -> int:
    """Ranks of the axes together."""
    assert mesh is not None
    return math.prod(mesh.shape[axis] for axis in axes)


def _active(mesh: Mesh | None, *axes: str) -> tuple[str, ...]:
    """Those of the axes that have more than one rank."""
    assert mesh is not None
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def _divided(mesh: Mesh | None, axes: Sequence[str | None], rules: Rules) -> PartitionSpec:
    """The tensor's spec, with all axes of size 1 in it, so that nothing is summed over them."""
    assert mesh is not None
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in to_partition_spec(axes, rules)]
    named = {name for entry in entries for name in entry}
    idle = tuple(axis for axis, size in mesh.shape.items() if size == 1 and axis not in named)
    return PartitionSpec(entries[0] + idle, *entries[1:])


def _activation(mesh: Mesh | None, *axes: str | None) -> PartitionSpec:
    return _divided(mesh, axes, ACTIVATION_RULES)


def _sequence(mesh: Mesh | None, x_BTD: Array, sequence_parallel: bool = False) -> str | None:
    """Logical axis of an activation's tokens; those that the ranks do not divide (in decoding) are whole on each."""
    if sequence_parallel and x_BTD.shape[1] % _size(mesh, "context", "tensor") == 0:
        return "residual_sequence"
    return "sequence" if x_BTD.shape[1] % _size(mesh, "context") == 0 else None


def _flat(x_BTD: Array) -> Array:
    return x_BTD.reshape(-1, x_BTD.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _sum_parts(y: Array, axes: tuple[str, ...]) -> Array:
    """Sum over axes that the island's output does not mention.

    Each rank receives an equal part of the output's cotangent; scaling it up saves the exchange that the transposition
    of a plain psum would make.
    """
    return lax.psum(y, axes)


def _sum_parts_forward(y: Array, axes: tuple[str, ...]) -> tuple[Array, None]:
    return _sum_parts(y, axes), None


def _sum_parts_backward(axes: tuple[str, ...], _: None, dy: Array) -> tuple[Array]:
    return (dy * math.prod(lax.axis_size(axis) for axis in axes),)


_sum_parts.defvjp(_sum_parts_forward, _sum_parts_backward)


def _gather_tokens(x_BTD: Array, sequence: str | None) -> Array:
    """The tokens of all ranks of `tensor`, where it divides them; their gradients are reduce-scattered."""
    return lax.all_gather(x_BTD, "tensor", axis=1, tiled=True) if sequence == "residual_sequence" else x_BTD


def _sum_tensor_parts(y_BTD: Array, mesh: Mesh | None, sequence: str | None) -> Array:
    """Sum what the ranks of `tensor` computed in part: each receives its tokens (Korthikanti 2022), or all of them."""
    if sequence == "residual_sequence":
        return lax.psum_scatter(y_BTD, "tensor", scatter_dimension=1, tiled=True)
    return _sum_parts(y_BTD, _active(mesh, "tensor"))


Entered = Array | tuple[Array | None, Array] | None
"""A weight in an island: its shard along `fsdp` (mesh.zero = 3), or None or its shard beside the whole (1, 2)."""


Layout = Sequence[tuple[str, ...]]
"""Logical axes of each weight."""


def _enter(
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
        divided, whole = (_divided(mesh, axes, parameter_rules(axes, expert_axes, level)) for level in (3, zero))
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
    return _active(mesh, *((entry,) if isinstance(entry, str) else entry))


def _gather(
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


def _run_island(
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
