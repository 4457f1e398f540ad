"""Routed experts, dropless: each expert works through its own rows, and through no others.

On CPU each expert goes through blocks of its rows that stay in the cache; on CUDA and TPU the rows are laid out by
expert and go through grouped products.

N rows  k experts of a row  M = N · k choices  E experts held here  D model  F hidden
C rows of a block  P = blocks · C positions
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.choices import Order, combine, rows_of, sort_by_expert, weight_of
from maxtrain.model.kernels.common import Implementation, accelerated, activate, by_platform, product, to_dtype
from maxtrain.model.kernels.feed_forward import (
    PreActivations,
    Weights,
    block_gradients,
    block_output,
    named,
    pre_activations,
)
from maxtrain.model.kernels.float8 import storage_dtype
from maxtrain.model.kernels.grouped_experts import backward_grouped, forward_grouped
from maxtrain.model.kernels.grouped_matmul import ON_GPU, ON_TPU

MOST_BLOCK_ROWS = 128
"""Most rows of a block."""
LEAST_BLOCK_ROWS = 16
"""Fewest rows of a block."""


@jax.named_scope("experts")
def experts(
    x_ND: Array,
    index_Nk: Array,
    weight_Nk: Array,
    gate_EDF: Array | None,
    up_EDF: Array,
    down_EFD: Array,
    *,
    first_expert: Array | int = 0,
    num_experts: int | None = None,
    most_choices: int | None = None,
    activation: str,
    compute_dtype: Any,
    implementation: Implementation = "auto",
) -> Array:
    """Y = Σ_j weight_j · feed_forward(x; expert index_j), over the experts held here.

    Rows are sorted by expert into padded blocks; the number of blocks that are worked through is the real load, so
    that nothing is dropped and nothing is computed in vain. The sum over a row's experts has a fixed order.

    Args:
        x_ND: input rows.
        index_Nk: int32 experts of each row; -1 for none.
        weight_Nk: float32 weights of the experts' outputs; differentiated too.
        gate_EDF: gate projections of experts [first_expert, first_expert + E); None for `relu2`.
        up_EDF: their up projections.
        down_EFD: their down projections.
        first_expert: number of the first expert held here; may be traced.
        num_experts: experts in all, which only tunes the size of the blocks; None for E.
        most_choices: bound on the choices of experts held here, which saves memory; None for N · k. Those above it
            would be left out.
        activation: `swiglu`, `geglu` or `relu2`.
        compute_dtype: type of the products' operands; they accumulate in float32.
        implementation: `auto`, or `reference`: every expert on every row.

    Returns:
        y_ND in x's dtype; choices of experts that are held elsewhere add nothing.
    """
    local_Nk = index_Nk - first_expert
    local_Nk = jnp.where((index_Nk >= 0) & (local_Nk >= 0) & (local_Nk < up_EDF.shape[0]), local_Nk, -1)
    weights = (gate_EDF, up_EDF, down_EFD)
    if implementation == "reference":
        return _dense(x_ND, local_Nk, weight_Nk, weights, activation, compute_dtype)
    expected = local_Nk.size // (num_experts or up_EDF.shape[0])
    if most_choices is not None:
        expected = most_choices // up_EDF.shape[0]
    most = min(most_choices or local_Nk.size, local_Nk.size)
    return _sparse(x_ND, local_Nk, weight_Nk, weights, expected, most, activation, compute_dtype)


def _dense(
    x_ND: Array, local_Nk: Array, weight_Nk: Array, weights: Weights, activation: str, compute_dtype: Any
) -> Array:
    gate_EDF, up_EDF, down_EFD = weights
    x = jnp.where(jnp.any(local_Nk >= 0, axis=1, keepdims=True), x_ND, 0)
    gate_ENF = None if gate_EDF is None else product("ND,EDF->ENF", x, gate_EDF, compute_dtype)
    hidden_ENF = activate(gate_ENF, product("ND,EDF->ENF", x, up_EDF, compute_dtype), activation)
    y_END = product("ENF,EFD->END", hidden_ENF, down_EFD, compute_dtype)
    chosen_NkE = jax.nn.one_hot(local_Nk, up_EDF.shape[0], dtype=jnp.float32)
    return jnp.einsum("Nk,NkE,END->ND", weight_Nk, chosen_NkE, y_END).astype(x_ND.dtype)


class Blocks(NamedTuple):
    """Where each choice lies when every expert's rows start at a block's start."""

    choice_P: Array
    """Choice at each position; M for none."""
    position_Nk: Array
    """Position of each choice; P for none."""
    first_E: Array
    """First block of each expert, and the number of all blocks: (E + 1,)."""


def _num_positions(order: Order, block_rows: int) -> int:
    """Positions that hold every choice whatever the load: each expert may leave one block almost empty."""
    num_choices, num_local = order.choice_M.size, order.start_E.size - 1
    return (num_choices // block_rows + min(num_local, num_choices)) * block_rows


def lay_out(order: Order, num_rows: int, top_k: int, block_rows: int) -> Blocks:
    """Give every choice a position so that no block holds rows of two experts."""
    num_choices, num_local = order.choice_M.size, order.start_E.size - 1
    num_positions = _num_positions(order, block_rows)
    count_E = jnp.diff(order.start_E)
    first_E = jnp.concatenate([jnp.zeros_like(count_E[:1]), jnp.cumsum(-(-count_E // block_rows))])
    shift_E = first_E * block_rows - order.start_E
    position_M = jnp.where(
        order.expert_M < num_local, lax.iota(jnp.int32, num_choices) + shift_E[order.expert_M], num_positions
    )
    choice_P = jnp.full(num_positions, num_rows * top_k, jnp.int32)
    choice_P = choice_P.at[position_M].set(order.choice_M, mode="drop", unique_indices=True)
    back_M = jnp.full(num_rows * top_k, num_positions, jnp.int32)
    back_M = back_M.at[order.choice_M].set(position_M, unique_indices=True)
    return Blocks(choice_P, back_M.reshape(-1, top_k), first_E)


def unwritten(shape: tuple[int, ...], dtype: Any) -> Array:
    """A buffer whose rows must not be read before they are written."""
    return lax.empty(shape, dtype)


def block_rows_for(expected: int, most: int) -> int:
    """Rows of a block: about half of an expert's expected rows, a power of two."""
    rows = LEAST_BLOCK_ROWS
    while rows * 4 <= expected and rows * 2 <= most:
        rows *= 2
    return rows


Buffers = tuple[Array, PreActivations]


def _forward_rows(
    block_rows: int,
    x_ND: Array,
    order: Order,
    weight_Nk: Array,
    weights: Weights,
    *,
    activation: str,
    compute_dtype: Any,
) -> tuple[Array, PreActivations]:
    """The output, and the pre-activations by position."""
    top_k, width = weight_Nk.shape[1], x_ND.shape[1]
    blocks = lay_out(order, x_ND.shape[0], top_k, block_rows)
    rows_PD = unwritten((blocks.choice_P.size, width), jnp.float32)
    kept = jax.tree.map(
        lambda w: unwritten((blocks.choice_P.size, w.shape[2]), storage_dtype(compute_dtype)), weights[:2]
    )

    def one_expert(buffers: Buffers, item: tuple[Weights, Array, Array]) -> tuple[Buffers, None]:
        held = to_dtype(item[0], storage_dtype(compute_dtype))

        def one_block(block: Array, buffers: Buffers) -> Buffers:
            choice_C = _block_of(blocks.choice_P, block, block_rows)
            before = pre_activations(rows_of(x_ND, choice_C, top_k), held, compute_dtype)
            rows = block_output(before, held, activation, compute_dtype), to_dtype(before, storage_dtype(compute_dtype))
            return jax.tree.map(lambda rows_P, rows_C: _with_block(rows_P, rows_C, block), buffers, rows)

        return lax.fori_loop(item[1], item[2], one_block, buffers), None

    (rows_PD, kept), _ = lax.scan(one_expert, (rows_PD, kept), (weights, blocks.first_E[:-1], blocks.first_E[1:]))
    return combine(rows_PD, blocks.position_Nk, weight_Nk).astype(x_ND.dtype), kept


def _block_of(rows_P: Array, block: Array, block_rows: int) -> Array:
    return lax.dynamic_slice_in_dim(rows_P, block * block_rows, block_rows)


def _with_block(rows_P: Array, rows_C: Array, block: Array) -> Array:
    return lax.dynamic_update_slice_in_dim(rows_P, rows_C, block * rows_C.shape[0], 0)


def _backward_rows(
    block_rows: int,
    x_ND: Array,
    order: Order,
    weight_Nk: Array,
    weights: Weights,
    kept: PreActivations,
    dy_ND: Array,
    activation: str,
    compute_dtype: Any,
) -> tuple[Array, Array, Weights]:
    top_k, width = weight_Nk.shape[1], x_ND.shape[1]
    blocks = lay_out(order, x_ND.shape[0], top_k, block_rows)
    num_positions = blocks.choice_P.size

    def one_expert(
        buffers: tuple[Array, Array], item: tuple[Weights, Array, Array]
    ) -> tuple[tuple[Array, Array], Weights]:
        held = to_dtype(item[0], storage_dtype(compute_dtype))

        def one_block(block: Array, carry: tuple[Array, Array, Weights]) -> tuple[Array, Array, Weights]:
            dx_PD, dweight_P, total = carry
            choice_C = _block_of(blocks.choice_P, block, block_rows)
            x_CD, dy_CD = rows_of(x_ND, choice_C, top_k), rows_of(dy_ND, choice_C, top_k)
            before = jax.tree.map(lambda rows_PF: _block_of(rows_PF, block, block_rows), kept)
            dx_CD, dheld, dweight_C = block_gradients(
                x_CD, dy_CD, before, held, activation, compute_dtype, scale_C=weight_of(weight_Nk, choice_C)
            )
            dx_PD, dweight_P = _with_block(dx_PD, dx_CD, block), _with_block(dweight_P, dweight_C, block)
            return dx_PD, dweight_P, jax.tree.map(jnp.add, total, dheld)

        zero = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), item[0])
        dx_PD, dweight_P, total = lax.fori_loop(item[1], item[2], one_block, (*buffers, zero))
        return (dx_PD, dweight_P), jax.tree.map(lambda d, w: d.astype(w.dtype), total, item[0])

    start = unwritten((num_positions, width), jnp.float32), unwritten((num_positions,), jnp.float32)
    (dx_PD, dweight_P), dweights = lax.scan(one_expert, start, (weights, blocks.first_E[:-1], blocks.first_E[1:]))
    dx_ND = combine(dx_PD, blocks.position_Nk, None).astype(x_ND.dtype)
    dweight_Nk = jnp.take(dweight_P, blocks.position_Nk, mode="clip")
    return dx_ND, jnp.where(blocks.position_Nk < num_positions, dweight_Nk, 0.0), dweights


def _on_accelerators(grouped: Callable[..., Any], compute_dtype: Any) -> dict[str, Callable[..., Any]]:
    return accelerated("experts", compute_dtype, cuda=partial(grouped, ON_GPU), tpu=partial(grouped, ON_TPU))


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _sparse(
    x_ND: Array,
    local_Nk: Array,
    weight_Nk: Array,
    weights: Weights,
    expected: int,
    most: int,
    activation: str,
    compute_dtype: Any,
) -> Array:
    return _sparse_forward(x_ND, local_Nk, weight_Nk, weights, expected, most, activation, compute_dtype)[0]


Kept = tuple[Array, Order, Array, Weights, PreActivations]


def _sparse_forward(
    x_ND: Array,
    local_Nk: Array,
    weight_Nk: Array,
    weights: Weights,
    expected: int,
    most: int,
    activation: str,
    compute_dtype: Any,
) -> tuple[Array, Kept]:
    arguments = x_ND, sort_by_expert(local_Nk, weights[1].shape[0], most), weight_Nk, weights
    how = {"activation": activation, "compute_dtype": compute_dtype}
    block_rows = block_rows_for(expected, MOST_BLOCK_ROWS)
    grouped = partial(forward_grouped, num_kept=_num_positions(arguments[1], block_rows), **how)
    in_blocks = partial(_forward_rows, block_rows, **how)
    y_ND, before = by_platform(*arguments, default=in_blocks, **_on_accelerators(grouped, compute_dtype))
    return y_ND, (*arguments, named(before))


def _sparse_backward(
    expected: int, most: int, activation: str, compute_dtype: Any, kept: Kept, dy_ND: Array
) -> tuple[Array, None, Array, Weights]:
    how = {"activation": activation, "compute_dtype": compute_dtype}
    in_blocks = partial(_backward_rows, block_rows_for(expected, MOST_BLOCK_ROWS), **how)
    accelerated = _on_accelerators(partial(backward_grouped, **how), compute_dtype)
    dx_ND, dweight_Nk, dweights = by_platform(*kept, dy_ND, default=in_blocks, **accelerated)
    return dx_ND, None, dweight_Nk, dweights


_sparse.defvjp(_sparse_forward, _sparse_backward)
