"""Choices of experts in the experts' order, and the way from rows to choices and back.

N rows  k experts of a row  M = N · k choices  E experts held here  D model  P positions of choices
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class Order(NamedTuple):
    """The choices in the order of their experts, as many as there can be; whatever the blocks."""

    choice_M: Array
    """Choice (row · k + j) at each place, stable."""
    expert_M: Array
    """Its expert; E for none."""
    start_E: Array
    """First place of each expert, and of none: (E + 1,)."""


def sort_by_expert(local_Nk: Array, num_local: int, most: int | None = None) -> Order:
    """Order the choices by expert; those of no expert (-1) come last, and only the first `most` are kept."""
    key_M = jnp.where(local_Nk < 0, num_local, local_Nk).reshape(-1).astype(jnp.int32)
    expert_M, choice_M = lax.sort_key_val(key_M, lax.iota(jnp.int32, key_M.size), is_stable=True)
    count_E = jnp.zeros(num_local + 1, jnp.int32).at[key_M].add(1)
    return Order(choice_M[:most], expert_M[:most], jnp.cumsum(count_E) - count_E)


def combine(rows_PD: Array, position_Nk: Array, weight_Nk: Array | None) -> Array:
    """Sum each row's outputs from their positions, in the order of its choices."""
    total = None
    for j in range(position_Nk.shape[1]):
        position_N = position_Nk[:, j]
        part_ND = jnp.take(rows_PD, position_N, axis=0, mode="clip").astype(jnp.float32)
        if weight_Nk is not None:
            part_ND = part_ND * weight_Nk[:, j, None]
        part_ND = jnp.where((position_N < rows_PD.shape[0])[:, None], part_ND, 0.0)
        total = part_ND if total is None else total + part_ND
    assert total is not None, "top_k is at least 1"
    return total


def weight_of(weight_Nk: Array, choice_P: Array) -> Array:
    """The routing weight at each position; 0 where there is no choice."""
    # Not by an appended 0: XLA (jax 0.10) fails to compile such a concatenation after a softmax for GPUs.
    weight_P = jnp.take(weight_Nk.reshape(-1), choice_P, mode="clip")
    return jnp.where(choice_P < weight_Nk.size, weight_P, 0)


def rows_of(x_ND: Array, choice_C: Array, top_k: int) -> Array:
    """The rows that the choices belong to; zero where there is none, whatever lies there."""
    rows_CD = jnp.take(x_ND, choice_C // top_k, axis=0, mode="clip")
    return jnp.where((choice_C < x_ND.shape[0] * top_k)[:, None], rows_CD, 0)
