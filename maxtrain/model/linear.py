"""Matrix products in the compute dtype with float32 accumulation, forward and backward."""

from functools import partial

import jax
import jax.numpy as jnp

from maxtrain.model.kernels.float8 import float8_contract, is_float8


def _precision(dtype: jnp.dtype) -> jax.lax.Precision:
    # Accelerators round float32 operands to tf32 or bf16 by default; who asks for float32 gets it.
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT


def _contract(
    a: jax.Array,
    b: jax.Array,
    axes_a: tuple[int, ...],
    axes_b: tuple[int, ...],
    compute_dtype: jnp.dtype,
    gradient: int | None = None,
) -> jax.Array:
    if is_float8(compute_dtype):
        return float8_contract(a, b, ((axes_a, axes_b), ((), ())), gradient, compute_dtype)
    return jax.lax.dot_general(
        a.astype(compute_dtype),
        b.astype(compute_dtype),
        ((axes_a, axes_b), ((), ())),
        precision=_precision(compute_dtype),
        preferred_element_type=jnp.float32,
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def project(x: jax.Array, weight: jax.Array, num_inputs: int, compute_dtype: jnp.dtype) -> jax.Array:
    """Contract the last `num_inputs` dimensions of x with the first of weight.

    Operands are rounded to `compute_dtype`, sums are float32, in the backward pass too (autodiff of a mixed product
    would round the weight's gradient to the compute dtype).

    Args:
        x: [..., inputs].
        weight: [inputs, outputs], float32.
        num_inputs: how many dimensions the inputs are.
        compute_dtype: format of the operands; E4M3 and E8M0 mean products of `kernels.float8`.

    Returns:
        [..., outputs], of x's dtype.
    """
    last = tuple(range(x.ndim - num_inputs, x.ndim))
    return _contract(x, weight, last, tuple(range(num_inputs)), compute_dtype).astype(x.dtype)


def _project_forward(
    x: jax.Array, weight: jax.Array, num_inputs: int, compute_dtype: jnp.dtype
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return project(x, weight, num_inputs, compute_dtype), (x, weight)


def _project_backward(
    num_inputs: int, compute_dtype: jnp.dtype, residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = residuals
    outer = tuple(range(x.ndim - num_inputs))
    outputs = tuple(range(len(outer), grad.ndim))
    x_grad = _contract(grad, weight, outputs, tuple(range(num_inputs, weight.ndim)), compute_dtype, gradient=0)
    weight_grad = _contract(x, grad, outer, outer, compute_dtype, gradient=1)
    return x_grad.astype(x.dtype), weight_grad.astype(weight.dtype)


project.defvjp(_project_forward, _project_backward)
