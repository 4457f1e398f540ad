"""The dense feed-forward, its hidden activations never kept.

N rows  D model  F hidden  C rows of a block
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.common import (
    Implementation,
    activate,
    pad_rows,
    product,
    round_up,
    stored_transpose,
)

CPU_BLOCK_ROWS = 512
"""Hidden activations of a block stay in the cache."""
DEFAULT_BLOCK_ROWS = 16_384
"""Accelerators want big products; the block only bounds the memory of the hidden activations."""

Weights = tuple[Array | None, Array, Array]


def feed_forward(
    x_ND: Array,
    gate_DF: Array | None,
    up_DF: Array,
    down_FD: Array,
    *,
    activation: str,
    compute_dtype: Any,
    implementation: Implementation = "auto",
) -> Array:
    """Y = activate(x gate, x up) down, row by row.

    The fast form works through blocks of rows and computes the hidden activations again in the backward pass, so that
    they are neither stored nor moved through memory; the gradients of the weights add up in float32.

    Args:
        x_ND: input rows.
        gate_DF: gate projection; None for `relu2`.
        up_DF: up projection.
        down_FD: down projection.
        activation: `swiglu`, `geglu` or `relu2`.
        compute_dtype: type of the products' operands; they accumulate in float32.
        implementation: `auto` or `reference`.

    Returns:
        y_ND in x's dtype.
    """
    if implementation == "reference":
        return block_output(x_ND, (gate_DF, up_DF, down_FD), activation, compute_dtype).astype(x_ND.dtype)
    return _blocked(x_ND, (gate_DF, up_DF, down_FD), activation, compute_dtype)


def _hidden(x_CD: Array, gate_DF: Array | None, up_DF: Array, activation: str, compute_dtype: Any) -> Array:
    gate_CF = None if gate_DF is None else product("CD,DF->CF", x_CD, gate_DF, compute_dtype)
    return activate(gate_CF, product("CD,DF->CF", x_CD, up_DF, compute_dtype), activation)


def block_output(x_CD: Array, weights: Weights, activation: str, compute_dtype: Any) -> Array:
    """The feed-forward of one block of rows, in float32."""
    gate_DF, up_DF, down_FD = weights
    return product("CF,FD->CD", _hidden(x_CD, gate_DF, up_DF, activation, compute_dtype), down_FD, compute_dtype)


def block_gradients(
    x_CD: Array, dy_CD: Array, weights: Weights, activation: str, compute_dtype: Any, *, scale_C: Array | None = None
) -> tuple[Array, Weights, Array]:
    """Gradients of one block of rows of y = scale · feed_forward(x), its hidden activations computed anew.

    Args:
        x_CD: the block's input rows.
        dy_CD: gradient of its output rows.
        weights: gate_DF (or None), up_DF, down_FD.
        activation: name of the activation.
        compute_dtype: type of the products' operands.
        scale_C: factor on each output row; None for 1.

    Returns:
        dx_CD, the weights' gradients and dscale_C, all float32.
    """
    gate_DF, up_DF, down_FD = weights
    up_CF = product("CD,DF->CF", x_CD, up_DF, compute_dtype)
    gate_CF = None if gate_DF is None else product("CD,DF->CF", x_CD, gate_DF, compute_dtype)
    hidden_CF, pull = jax.vjp(lambda g, u: activate(g, u, activation), gate_CF, up_CF)
    dhidden_CF = product("CD,FD->CF", dy_CD, down_FD, compute_dtype)
    dscale_C = jnp.sum(hidden_CF * dhidden_CF, axis=1)
    if scale_C is not None:
        dhidden_CF = dhidden_CF * scale_C[:, None]
        dy_CD = dy_CD * scale_C[:, None]
    dgate_CF, dup_CF = pull(dhidden_CF)
    x_DC = stored_transpose(x_CD.astype(compute_dtype))
    ddown_FD = product("FC,CD->FD", stored_transpose(hidden_CF.astype(compute_dtype)), dy_CD, compute_dtype)
    dx_CD = product("CF,DF->CD", dup_CF, up_DF, compute_dtype)
    dup_DF = product("DC,CF->DF", x_DC, dup_CF, compute_dtype)
    dgate_DF = None
    if gate_DF is not None:
        dx_CD += product("CF,DF->CD", dgate_CF, gate_DF, compute_dtype)
        dgate_DF = product("DC,CF->DF", x_DC, dgate_CF, compute_dtype)
    return dx_CD, (dgate_DF, dup_DF, ddown_FD), dscale_C


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _blocked(x_ND: Array, weights: Weights, activation: str, compute_dtype: Any) -> Array:
    def run(block_rows: int, x_ND: Array, weights: Weights) -> Array:
        num_rows = x_ND.shape[0]
        cast = jax.tree.map(lambda w: w.astype(compute_dtype), weights)
        if num_rows <= block_rows:
            return block_output(x_ND, cast, activation, compute_dtype).astype(x_ND.dtype)
        x_BCD = pad_rows(x_ND, round_up(num_rows, block_rows)).reshape(-1, block_rows, x_ND.shape[1])
        y_BCD = lax.map(lambda x_CD: block_output(x_CD, cast, activation, compute_dtype).astype(x_ND.dtype), x_BCD)
        return y_BCD.reshape(-1, x_ND.shape[1])[:num_rows]

    return lax.platform_dependent(
        x_ND, weights, cpu=partial(run, CPU_BLOCK_ROWS), default=partial(run, DEFAULT_BLOCK_ROWS)
    )


def _blocked_forward(
    x_ND: Array, weights: Weights, activation: str, compute_dtype: Any
) -> tuple[Array, tuple[Array, Weights]]:
    return _blocked(x_ND, weights, activation, compute_dtype), (x_ND, weights)


def _blocked_backward(
    activation: str, compute_dtype: Any, kept: tuple[Array, Weights], dy_ND: Array
) -> tuple[Array, Weights]:
    def run(block_rows: int, x_ND: Array, weights: Weights, dy_ND: Array) -> tuple[Array, Weights]:
        num_rows, width = x_ND.shape
        block_rows = min(block_rows, num_rows)
        padded = round_up(num_rows, block_rows)
        blocks = tuple(pad_rows(a, padded).reshape(-1, block_rows, width) for a in (x_ND, dy_ND))
        cast = jax.tree.map(lambda w: w.astype(compute_dtype), weights)

        def step(total: Weights, block: tuple[Array, ...]) -> tuple[Weights, Array]:
            dx_CD, dweights, _ = block_gradients(block[0], block[1], cast, activation, compute_dtype)
            return jax.tree.map(jnp.add, total, dweights), dx_CD.astype(x_ND.dtype)

        start = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
        total, dx_BCD = lax.scan(step, start, blocks)
        total = jax.tree.map(lambda d, w: d.astype(w.dtype), total, weights)
        return dx_BCD.reshape(-1, width)[:num_rows], total

    return lax.platform_dependent(
        *kept, dy_ND, cpu=partial(run, CPU_BLOCK_ROWS), default=partial(run, DEFAULT_BLOCK_ROWS)
    )


_blocked.defvjp(_blocked_forward, _blocked_backward)
