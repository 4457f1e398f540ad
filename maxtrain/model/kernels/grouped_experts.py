"""Routed experts by grouped products: the rows of all choices in the order of their experts.

N rows  k experts of a row  M = N · k choices  E experts held here  D model  F hidden
P positions, of which the first hold choices
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.choices import Order, combine, rows_of, weight_of
from maxtrain.model.kernels.common import activate, to_dtype
from maxtrain.model.kernels.feed_forward import PreActivations, Weights
from maxtrain.model.kernels.grouped_matmul import Form, grouped_matmul


def _lay_out(order: Order, num_rows: int, top_k: int, num_positions: int) -> tuple[Array, Array, Array]:
    """Choice at each position, position of each choice (as in `Blocks`), and rows of each expert; without gaps."""
    num_choices, num_local = order.choice_M.size, order.start_E.size - 1
    is_held = order.expert_M < num_local
    choice_P = jnp.where(is_held, order.choice_M, num_rows * top_k)
    choice_P = jnp.pad(choice_P, (0, num_positions - num_choices), constant_values=num_rows * top_k)
    place_M = jnp.where(is_held, lax.iota(jnp.int32, num_choices), num_positions)
    position = jnp.full(num_rows * top_k, num_positions, jnp.int32)
    position = position.at[order.choice_M].set(place_M, unique_indices=True)
    return choice_P, position.reshape(-1, top_k), jnp.diff(order.start_E).astype(jnp.int32)


def _inward(
    form: Form, x_PD: Array, gate_EDF: Array | None, up_EDF: Array, sizes_E: Array, compute_dtype: Any
) -> PreActivations:
    run = partial(grouped_matmul, compute_dtype=compute_dtype, out_dtype=compute_dtype, implementation=form)
    return None if gate_EDF is None else run(x_PD, gate_EDF, sizes_E), run(x_PD, up_EDF, sizes_E)


def _outward(
    form: Form,
    before: PreActivations,
    weight_P: Array,
    down_EFD: Array,
    sizes_E: Array,
    activation: str,
    compute_dtype: Any,
) -> Array:
    """Outputs times the routing weights; these multiply the hidden values, so that no output is needed for theirs."""
    gate_PF, up_PF = to_dtype(before, jnp.float32)
    hidden_PF = activate(gate_PF, up_PF, activation) * weight_P[:, None]
    return grouped_matmul(
        hidden_PF, down_EFD, sizes_E, compute_dtype=compute_dtype, out_dtype=compute_dtype, implementation=form
    )


def forward_grouped(
    form: Form,
    x_ND: Array,
    order: Order,
    weight_Nk: Array,
    weights: Weights,
    *,
    num_kept: int,
    activation: str,
    compute_dtype: Any,
) -> tuple[Array, PreActivations]:
    """The output, and the pre-activations by position, in num_kept rows (as many as the form in blocks keeps)."""
    top_k = weight_Nk.shape[1]
    choice_P, position_Nk, sizes_E = _lay_out(order, x_ND.shape[0], top_k, num_kept)
    x_PD = rows_of(x_ND.astype(compute_dtype), choice_P, top_k)
    before = _inward(form, x_PD, weights[0], weights[1], sizes_E, compute_dtype)
    weight_P = weight_of(weight_Nk, choice_P)
    rows_PD = _outward(form, before, weight_P, weights[2], sizes_E, activation, compute_dtype)
    return combine(rows_PD, position_Nk, None).astype(x_ND.dtype), before


def backward_grouped(
    form: Form,
    x_ND: Array,
    order: Order,
    weight_Nk: Array,
    weights: Weights,
    kept: PreActivations,
    dy_ND: Array,
    *,
    activation: str,
    compute_dtype: Any,
) -> tuple[Array, Array, Weights]:
    """Gradients of x, of the routing weights and of the experts' weights."""
    top_k, num_positions = weight_Nk.shape[1], kept[1].shape[0]
    choice_P, position_Nk, sizes_E = _lay_out(order, x_ND.shape[0], top_k, num_positions)
    x_PD, dy_PD = (rows_of(a.astype(compute_dtype), choice_P, top_k) for a in (x_ND, dy_ND))

    def inward(x_PD: Array, gate: Array | None, up: Array) -> PreActivations:
        return _inward(form, x_PD, gate, up, sizes_E, compute_dtype)

    def outward(before: PreActivations, weight_P: Array, down: Array) -> Array:
        return _outward(form, before, weight_P, down, sizes_E, activation, compute_dtype)

    _, pull_outward = jax.vjp(outward, kept, weight_of(weight_Nk, choice_P), weights[2])
    dbefore, dweight_P, ddown = pull_outward(dy_PD)
    _, pull_inward = jax.vjp(inward, x_PD, weights[0], weights[1])
    dx_PD, dgate, dup = pull_inward(dbefore)
    dweight_Nk = jnp.where(position_Nk < num_positions, jnp.take(dweight_P, position_Nk, mode="clip"), 0.0)
    return combine(dx_PD, position_Nk, None).astype(x_ND.dtype), dweight_Nk, (dgate, dup, ddown)
