"""The dense feed-forward in blocks of rows that stay in the cache; its pre-activations are kept for the gradient.

N rows  D model  F hidden  C rows of a block
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from maxtrain.model.kernels.common import (
    Implementation,
    activate,
    pad_rows,
    per_platform,
    product,
    round_up,
    stored_transpose,
    to_dtype,
)
from maxtrain.model.kernels.float8 import storage_dtype

KEPT_NAMES = ("feed_forward_gate", "feed_forward_up")
"""Checkpoint names of the pre-activations; a remat policy that saves them spares two products."""
CPU_BLOCK_ROWS = 512
"""Hidden activations of a block stay in the cache."""
DEFAULT_BLOCK_ROWS = 16_384
"""Accelerators want big products; the block only bounds the memory of the hidden activations."""

Weights = tuple[Array | None, Array, Array]
"""Gate (None for `relu2`), up and down projections."""
PreActivations = tuple[Array | None, Array]
"""Products with the gate projection (None for `relu2`) and the up projection."""


@jax.named_scope("feed_forward")
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

    The fast form works through blocks of rows. It keeps the pre-activations in compute_dtype (bfloat16 for float8),
    from which the backward pass forms the rest block by block (whether they are kept at all is for rematerialisation of
    the layer to say); the gradients of the weights add up in float32.

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
        weights = gate_DF, up_DF, down_FD
        before = pre_activations(x_ND, weights, compute_dtype)
        return block_output(before, weights, activation, compute_dtype).astype(x_ND.dtype)
    return _blocked(x_ND, (gate_DF, up_DF, down_FD), activation, compute_dtype)


def pre_activations(x_CD: Array, weights: Weights, compute_dtype: Any) -> PreActivations:
    """Products of a block of rows with the gate and up projections, in float32."""
    gate_DF, up_DF, _ = weights
    gate_CF = None if gate_DF is None else product("CD,DF->CF", x_CD, gate_DF, compute_dtype)
    return gate_CF, product("CD,DF->CF", x_CD, up_DF, compute_dtype)


def block_output(before: PreActivations, weights: Weights, activation: str, compute_dtype: Any) -> Array:
    """The feed-forward of one block of rows from its pre-activations, in float32."""
    return product("CF,FD->CD", activate(*before, activation), weights[2], compute_dtype)


def block_gradients(
    x_CD: Array,
    dy_CD: Array,
    before: PreActivations,
    weights: Weights,
    activation: str,
    compute_dtype: Any,
    *,
    scale_C: Array | None = None,
) -> tuple[Array, Weights, Array]:
    """Gradients of one block of rows of y = scale · feed_forward(x).

    Args:
        x_CD: the block's input rows.
        dy_CD: gradient of its output rows.
        before: its pre-activations, as the forward pass kept them.
        weights: gate_DF (or None), up_DF, down_FD.
        activation: name of the activation.
        compute_dtype: type of the products' operands.
        scale_C: factor on each output row; None for 1.

    Returns:
        dx_CD, the weights' gradients and dscale_C, all float32.
    """
    gate_DF, up_DF, down_FD = weights
    before = to_dtype(before, jnp.float32)
    hidden_CF, pull = jax.vjp(lambda g, u: activate(g, u, activation), *before)
    dhidden_CF = product("CD,FD->CF", dy_CD, down_FD, compute_dtype, gradient=0)
    dscale_C = jnp.sum(hidden_CF * dhidden_CF, axis=1)
    if scale_C is not None:
        dhidden_CF = dhidden_CF * scale_C[:, None]
        dy_CD = dy_CD * scale_C[:, None]
    dgate_CF, dup_CF = pull(dhidden_CF)
    stored = storage_dtype(compute_dtype)
    x_DC = stored_transpose(x_CD.astype(stored))
    ddown_FD = product("FC,CD->FD", stored_transpose(hidden_CF.astype(stored)), dy_CD, compute_dtype, gradient=1)
    dx_CD = product("CF,DF->CD", dup_CF, up_DF, compute_dtype, gradient=0)
    dup_DF = product("DC,CF->DF", x_DC, dup_CF, compute_dtype, gradient=1)
    dgate_DF = None
    if gate_DF is not None:
        dx_CD += product("CF,DF->CD", dgate_CF, gate_DF, compute_dtype, gradient=0)
        dgate_DF = product("DC,CF->DF", x_DC, dgate_CF, compute_dtype, gradient=1)
    return dx_CD, (dgate_DF, dup_DF, ddown_FD), dscale_C


def named(before: PreActivations) -> PreActivations:
    """Pre-activations under the names by which a remat policy may keep them."""
    gate, up = before
    return None if gate is None else checkpoint_name(gate, KEPT_NAMES[0]), checkpoint_name(up, KEPT_NAMES[1])


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _blocked(x_ND: Array, weights: Weights, activation: str, compute_dtype: Any) -> Array:
    return _blocked_forward(x_ND, weights, activation, compute_dtype)[0]


def _to_blocks(block_rows: int, x_ND: Array) -> Array:
    block_rows = min(block_rows, x_ND.shape[0])
    return pad_rows(x_ND, round_up(x_ND.shape[0], block_rows)).reshape(-1, block_rows, x_ND.shape[1])


def _from_blocks(x_BCD: Array, num_rows: int) -> Array:
    return x_BCD.reshape(-1, x_BCD.shape[2])[:num_rows]


def _blocked_forward(
    x_ND: Array, weights: Weights, activation: str, compute_dtype: Any
) -> tuple[Array, tuple[Array, Weights, PreActivations]]:
    def run(block_rows: int, x_ND: Array, weights: Weights) -> tuple[Array, PreActivations]:
        cast = to_dtype(weights, storage_dtype(compute_dtype))

        def block(x_CD: Array) -> tuple[Array, PreActivations]:
            before = pre_activations(x_CD, cast, compute_dtype)
            y_CD = block_output(before, cast, activation, compute_dtype)
            return y_CD.astype(x_ND.dtype), to_dtype(before, storage_dtype(compute_dtype))

        blocks = lax.map(block, _to_blocks(block_rows, x_ND))
        return jax.tree.map(lambda a: _from_blocks(a, x_ND.shape[0]), blocks)

    y_ND, before = per_platform(run, CPU_BLOCK_ROWS, DEFAULT_BLOCK_ROWS, x_ND, weights)
    return y_ND, (x_ND, weights, named(before))


def _blocked_backward(
    activation: str, compute_dtype: Any, kept: tuple[Array, Weights, PreActivations], dy_ND: Array
) -> tuple[Array, Weights]:
    def run(
        block_rows: int, x_ND: Array, weights: Weights, before: PreActivations, dy_ND: Array
    ) -> tuple[Array, Weights]:
        cast = to_dtype(weights, storage_dtype(compute_dtype))
        blocks = jax.tree.map(partial(_to_blocks, block_rows), (x_ND, dy_ND, before))

        def step(total: Weights, block: tuple[Array, Array, PreActivations]) -> tuple[Weights, Array]:
            dx_CD, dweights, _ = block_gradients(*block, cast, activation, compute_dtype)
            return jax.tree.map(jnp.add, total, dweights), dx_CD.astype(x_ND.dtype)

        start = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
        total, dx_BCD = lax.scan(step, start, blocks)
        total = jax.tree.map(lambda d, w: d.astype(w.dtype), total, weights)
        return _from_blocks(dx_BCD, x_ND.shape[0]), total

    return per_platform(run, CPU_BLOCK_ROWS, DEFAULT_BLOCK_ROWS, *kept, dy_ND)


_blocked.defvjp(_blocked_forward, _blocked_backward)
