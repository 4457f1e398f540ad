"""Products of eight-bit operands with a scale for every 32 values (MXFP8: OCP Microscaling Formats 1.0, 2023).

Blocks lie along the contraction. Values, weights and gradients are e4m3; a scale is a power of two (E8M0), rounded up
so that no value of its block is clipped (Mishra 2025, "Recipes for Pre-training LLMs with MXFP8"). On CUDA the product
is `jax.nn.scaled_matmul`, which XLA hands to cuDNN on Blackwell; elsewhere operands are widened to bfloat16, which
holds a value times its scale exactly, so that both differ only in the order of their float32 sums.

B batch  M N rows of the operands  K contraction, padded to blocks
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

BLOCK = 32
"""Values that share a scale."""
E8M0 = jnp.dtype(jnp.float8_e8m0fnu)
"""Eight bits of exponent: scales. As a compute dtype it means products of this module."""

_E4M3 = jnp.float8_e4m3fn
_TOP_EXPONENT, _TOP_MANTISSA = 8, 0x600000
"""e4m3 goes up to 448 = 1.75 · 2⁸, whose float32 mantissa this is."""


def block_quantize(x: Array) -> tuple[Array, Array]:
    """Scale each block of the last dimension to the range of e4m3 and round.

    The scale of a block is the least power of two, at least 2⁻¹²⁶, by which its greatest value comes to 448 or less.
    A block with a value that is not finite has nan for a scale, so that the step's guard sees it.

    Args:
        x: [..., K], of whole blocks.

    Returns:
        e4m3 [..., K] and E8M0 scales [..., K / 32], which multiply the values back.
    """
    x = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, BLOCK)
    bits = lax.bitcast_convert_type(jnp.max(jnp.abs(x), axis=-1), jnp.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    code = jnp.maximum(exponent - _TOP_EXPONENT + (mantissa > _TOP_MANTISSA), 1)
    factor = lax.bitcast_convert_type((254 - code) << 23, jnp.float32)  # 1 / scale, exactly
    values = (x * factor[..., None]).astype(_E4M3).reshape(*x.shape[:-2], -1)
    code = jnp.where(exponent == 255, 255, code)
    return values, lax.bitcast_convert_type(code.astype(jnp.uint8), E8M0)


def mxfp8_contract(a: Array, b: Array, dimension_numbers: tuple[tuple[Sequence[int], ...], ...]) -> Array:
    """`lax.dot_general` of two tensors in eight bits, float32.

    The contracted dimensions, in the order in which they are named, are one; it is padded with zeros to whole blocks.

    Args:
        a: left operand.
        b: right operand.
        dimension_numbers: as of `lax.dot_general`.
    """
    (summed_a, summed_b), (batch_a, batch_b) = dimension_numbers
    a_BMK, rows_a = _as_rows(a, summed_a, batch_a)
    b_BNK, rows_b = _as_rows(b, summed_b, batch_b)
    operands = (*block_quantize(a_BMK), *block_quantize(b_BNK))
    out_BMN = lax.platform_dependent(*operands, cuda=_scaled_product, default=_widened_product)
    return out_BMN.reshape(*(a.shape[axis] for axis in batch_a), *rows_a, *rows_b)


def _as_rows(x: Array, summed: Sequence[int], batch: Sequence[int]) -> tuple[Array, list[int]]:
    """As [B, M, K], and the dimensions that M holds."""
    rows = [axis for axis in range(x.ndim) if axis not in summed and axis not in batch]
    shapes = [[x.shape[axis] for axis in axes] for axes in (batch, rows, summed)]
    x_BMK = jnp.transpose(x, [*batch, *rows, *summed]).reshape([math.prod(shape) for shape in shapes])
    return jnp.pad(x_BMK, ((0, 0), (0, 0), (0, -x_BMK.shape[-1] % BLOCK))), shapes[1]


def _scaled_product(a_BMK: Array, a_scale: Array, b_BNK: Array, b_scale: Array) -> Array:
    return jax.nn.scaled_matmul(a_BMK, b_BNK, a_scale, b_scale, preferred_element_type=jnp.float32)


def _widened_product(a_BMK: Array, a_scale: Array, b_BNK: Array, b_scale: Array) -> Array:
    a_BMK, b_BNK = _widen(a_BMK, a_scale), _widen(b_BNK, b_scale)
    return lax.dot_general(a_BMK, b_BNK, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _widen(values: Array, scale: Array) -> Array:
    return values.astype(jnp.bfloat16) * jnp.repeat(scale.astype(jnp.bfloat16), BLOCK, axis=-1)
