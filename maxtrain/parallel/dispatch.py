"""Attention, projections, feed-forward and loss over a mesh, each an island around the same local computation.

B batch  T tokens  N = B · T rows  K kv heads  H head dim  D model  F hidden  V vocabulary
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from maxtrain.parallel.context import Attention, attend, ring_order
from maxtrain.parallel.island import (
    ROW_AXES,
    Entered,
    activation_spec,
    active_axes,
    axes_size,
    enter_weights,
    flatten_tokens,
    gather_tokens,
    gather_weights,
    is_single,
    run_island,
    sequence_axis,
    sum_tensor_parts,
)

_INWARD, _OUTWARD = ("embed", "mlp"), ("mlp", "embed")


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
    if not active_axes(mesh, "context"):
        return _attention_island(attention.whole, mesh, arguments, "sequence")
    order = ring_order(q_BTNH.shape[1], axes_size(mesh, "context"))
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
    query, keys = (activation_spec(mesh, "batch", sequence, heads, None) for heads in ("heads", "kv_heads"))
    specs = (query, keys, keys, activation_spec(mesh, "batch", sequence))
    return run_island(island, mesh, specs, query, arguments, fill=(0, 0, 0, 0))


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
    sequence = sequence_axis(mesh, x_BTD, sequence_parallel)

    def island(x: Array, *entered: Entered) -> list[Array]:
        x = gather_tokens(x, sequence)
        return [
            product(x, weight) for product, weight in zip(compute, gather_weights(entered, axes, mesh), strict=True)
        ]

    held, specs = enter_weights(weights, axes, mesh, zero)
    outward = sequence_axis(mesh, x_BTD)
    out_specs = [activation_spec(mesh, "batch", outward, *names[1:]) for names in axes]
    tokens = activation_spec(mesh, "batch", sequence, "embed")
    return run_island(island, mesh, (tokens, *specs), out_specs, (x_BTD, *held))


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
    sequence = sequence_axis(mesh, x_BTNH, sequence_parallel)

    def island(x: Array, entered: Entered) -> Array:
        (whole,) = gather_weights((entered,), layout, mesh)
        return sum_tensor_parts(compute(x, whole), mesh, sequence)

    (held,), (spec,) = enter_weights((weight,), layout, mesh, zero)
    heads = activation_spec(mesh, "batch", sequence_axis(mesh, x_BTNH), "heads", None)
    return run_island(island, mesh, (heads, spec), activation_spec(mesh, "batch", sequence, "embed"), (x_BTNH, held))


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
        return compute(flatten_tokens(x), gate, up, down).reshape(x.shape)

    if is_single(mesh):
        return local(x_BTD, gate, up, down)

    layout = _INWARD, _INWARD, _OUTWARD
    sequence = sequence_axis(mesh, x_BTD, sequence_parallel)

    def island(x: Array, *entered: Entered) -> Array:
        y_BTD = local(gather_tokens(x, sequence), *gather_weights(entered, layout, mesh))
        return sum_tensor_parts(y_BTD, mesh, sequence)

    tokens = activation_spec(mesh, "batch", sequence, "embed")
    weights, specs = enter_weights((gate, up, down), layout, mesh, zero)
    return run_island(island, mesh, (tokens, *specs), tokens, (x_BTD, *weights))


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
        total, nll_N, z_N = compute(
            flatten_tokens(x), output, target.reshape(-1), weight.reshape(-1), vocab_axis=vocab_axis
        )
        return total, nll_N.reshape(target.shape), z_N.reshape(target.shape)

    if is_single(mesh):
        return local(x_BTD, output_VD, target_BT, weight_BT, None)
    divided, sequence = bool(active_axes(mesh, "tensor")), sequence_axis(mesh, x_BTD, sequence_parallel)

    layout = (("vocab", "embed"),)

    def island(x: Array, output: Entered, target: Array, weight: Array) -> tuple[Array, Array, Array]:
        (gathered,) = gather_weights((output,), layout, mesh)
        x = gather_tokens(x, sequence)
        total, nll_BT, z_BT = local(x, gathered, target, weight, "tensor" if divided else None)
        return lax.psum(total, active_axes(mesh, *ROW_AXES)), nll_BT, z_BT

    tokens, rows = activation_spec(mesh, "batch", sequence, "embed"), activation_spec(mesh, "batch", "sequence")
    (output,), (spec,) = enter_weights((output_VD,), layout, mesh, zero)
    return run_island(
        island,
        mesh,
        (tokens, spec, rows, rows),
        (PartitionSpec(), rows, rows),
        (x_BTD, output, target_BT, weight_BT),
        fill=(0, None, 0, 0),
    )
