"""Products of eight-bit operands (Micikevicius 2022), scaled to each operand's own maximum, or by blocks (`mxfp8`).

Values and weights are e4m3, gradients e5m2; the scale of an operand is a float32 number taken from what is multiplied
(current scaling): the whole tensor of a projection, a block of rows of one rank in feed-forwards and experts. Sums are
float32. Where a device has no eight-bit units the compiler widens the operands, to the same result.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.mxfp8 import E8M0, mxfp8_contract

E4M3 = jnp.dtype(jnp.float8_e4m3fn)
"""Three bits of mantissa, up to 448: values and weights. As a compute dtype it means products scaled by operand."""
E5M2 = jnp.dtype(jnp.float8_e5m2)
"""Two bits of mantissa, up to 57,344: gradients."""


def name_of(compute_dtype: Any) -> str:
    """The format as people call it."""
    return "mxfp8" if jnp.dtype(compute_dtype) == E8M0 else jnp.dtype(compute_dtype).name


def is_float8(compute_dtype: Any) -> bool:
    """Whether products are those of this module: E4M3 scales them by operand, E8M0 by blocks."""
    return jnp.dtype(compute_dtype) in (E4M3, E8M0)


def storage_dtype(compute_dtype: Any) -> Any:
    """What operands are kept in between products: a scale is taken anew for each product, so eight bits are too few."""
    return jnp.bfloat16 if is_float8(compute_dtype) else compute_dtype


def quantize(x: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Scale to the format's range and round.

    A value that is not finite makes the result nan, so that the step's guard sees it.

    Args:
        x: any shape.
        dtype: E4M3 or E5M2.

    Returns:
        The rounded values, and the float32 scalar that multiplies them back.
    """
    x = x.astype(jnp.float32)
    most = jnp.float32(jnp.finfo(dtype).max)
    top = jnp.max(jnp.abs(x), initial=0.0)
    scale = jnp.where(top == 0, 1.0, top / most)
    return jnp.clip(x / scale, -most, most).astype(dtype), scale


def float8_contract(
    a: Array, b: Array, dimension_numbers: Any, gradient: int | None, compute_dtype: Any = E4M3
) -> Array:
    """`lax.dot_general` of two tensors in eight bits, float32.

    Args:
        a: left operand.
        b: right operand.
        dimension_numbers: as of `lax.dot_general`.
        gradient: which operand (0 or 1) is a gradient; None for a product of the forward pass. Sums of gradients are
            kept at full precision where a device could shorten them.
        compute_dtype: E4M3, or E8M0 for scales by blocks, which know no gradients.
    """
    if jnp.dtype(compute_dtype) == E8M0:
        return mxfp8_contract(a, b, dimension_numbers)
    (a8, a_scale), (b8, b_scale) = (quantize(x, E5M2 if gradient == place else E4M3) for place, x in enumerate((a, b)))
    precision = lax.Precision.DEFAULT if gradient is None else lax.Precision.HIGHEST
    out = lax.dot_general(a8, b8, dimension_numbers, precision=precision, preferred_element_type=jnp.float32)
    return out * (a_scale * b_scale)


def float8_einsum(spec: str, a: Array, b: Array, gradient: int | None, compute_dtype: Any = E4M3) -> Array:
    """The same for a product of two tensors in einsum's notation, of labels that stand once in each operand."""
    inputs, output = spec.split("->")
    left, right = inputs.split(",")
    batch = [label for label in left if label in right and label in output]
    summed = [label for label in left if label in right and label not in output]
    numbers = (
        (tuple(map(left.index, summed)), tuple(map(right.index, summed))),
        (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
    )
    labels = [*batch, *(x for x in left if x not in right), *(x for x in right if x not in left)]
    out = float8_contract(a, b, numbers, gradient, compute_dtype)
    return jnp.transpose(out, [labels.index(label) for label in output])
