"""Products of rows that are sorted by group with a matrix for each group.

M rows  E groups  D inner dimension  F outer dimension  C rows of a block
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels import grouped_matmul_gpu, grouped_matmul_tpu
from maxtrain.model.kernels.common import Implementation, by_platform, pad_rows, product

BLOCK_ROWS = 128
"""Rows of a block in the portable form."""


class Form(NamedTuple):
    """One way to compute the products; operands of one type, sums in float32."""

    product: Callable[..., Array]
    """`(x_MD, w_EDF, sizes_E, *, transposed, out_dtype) -> y_MF`, 0 in rows past all groups; `transposed` is w_EFD."""
    outer: Callable[..., Array]
    """`(x_MD, dy_MF, sizes_E, *, out_dtype) -> dw_EDF`, 0 for an empty group."""


def grouped_matmul(
    x_MD: Array,
    w_EDF: Array,
    sizes_E: Array,
    *,
    compute_dtype: Any,
    out_dtype: Any = jnp.float32,
    implementation: Implementation | Form = "auto",
) -> Array:
    """Y = x w[e] for the rows of each group e; both gradients are grouped products again.

    Args:
        x_MD: rows, those of group 0 first. What lies past all groups is not read and may be anything.
        w_EDF: a matrix for each group.
        sizes_E: int32 rows of each group, possibly none; their sum is at most M.
        compute_dtype: type of the operands, also of dy in the gradients; sums are float32.
        out_dtype: type of the result. Gradients are of the types of x and w.
        implementation: `auto` chooses by platform: Triton on CUDA, megablox on TPU, blocks of rows elsewhere;
            `reference` is dense; or one form.

    Returns:
        y_MF; rows past all groups are 0, and so are their gradients.
    """
    if implementation == "reference":
        return _dense(x_MD, w_EDF, sizes_E, compute_dtype).astype(out_dtype)
    form = BY_PLATFORM if implementation == "auto" else implementation
    return _grouped(x_MD, w_EDF, sizes_E, compute_dtype, out_dtype, form)


def _dense(x_MD: Array, w_EDF: Array, sizes_E: Array, compute_dtype: Any) -> Array:
    stop_E, row_M = jnp.cumsum(sizes_E), jnp.arange(x_MD.shape[0])
    member_EM = (row_M >= (stop_E - sizes_E)[:, None]) & (row_M < stop_E[:, None])
    x_EMD = jnp.where(member_EM[:, :, None], x_MD, 0)
    y_MF = product("EMD,EDF->MF", x_EMD, w_EDF, compute_dtype)
    return jnp.where(jnp.any(member_EM, axis=0)[:, None], y_MF, 0)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _grouped(x_MD: Array, w_EDF: Array, sizes_E: Array, compute_dtype: Any, out_dtype: Any, form: Form) -> Array:
    return form.product(
        x_MD.astype(compute_dtype), w_EDF.astype(compute_dtype), sizes_E, transposed=False, out_dtype=out_dtype
    )


Kept = tuple[Array, Array, Array]


def _grouped_forward(
    x_MD: Array, w_EDF: Array, sizes_E: Array, compute_dtype: Any, out_dtype: Any, form: Form
) -> tuple[Array, Kept]:
    return _grouped(x_MD, w_EDF, sizes_E, compute_dtype, out_dtype, form), (x_MD, w_EDF, sizes_E)


def _grouped_backward(
    compute_dtype: Any, out_dtype: Any, form: Form, kept: Kept, dy_MF: Array
) -> tuple[Array, Array, None]:
    x_MD, w_EDF, sizes_E = kept
    dy_MF = dy_MF.astype(compute_dtype)
    dx_MD = form.product(dy_MF, w_EDF.astype(compute_dtype), sizes_E, transposed=True, out_dtype=x_MD.dtype)
    dw_EDF = form.outer(x_MD.astype(compute_dtype), dy_MF, sizes_E, out_dtype=w_EDF.dtype)
    return dx_MD, dw_EDF, None


_grouped.defvjp(_grouped_forward, _grouped_backward)


class _Group(NamedTuple):
    """The rows of one group, a block at a time."""

    start: Array
    stop: Array

    @property
    def num_blocks(self) -> Array:
        return -(-(self.stop - self.start) // BLOCK_ROWS)

    def place(self, block: Array) -> tuple[Array, Array]:
        """First row of a block, and which of its rows are the group's, [C, 1]."""
        first = self.start + block * BLOCK_ROWS
        return first, (first + jnp.arange(BLOCK_ROWS) < self.stop)[:, None]


def _groups(sizes_E: Array) -> _Group:
    stop_E = jnp.cumsum(sizes_E)
    return _Group(stop_E - sizes_E, stop_E)


def _block(rows_M: Array, first: Array, is_row_C: Array) -> Array:
    return jnp.where(is_row_C, lax.dynamic_slice_in_dim(rows_M, first, BLOCK_ROWS), 0)


def _product_in_blocks(x_MD: Array, w_EDF: Array, sizes_E: Array, *, transposed: bool, out_dtype: Any) -> Array:
    num_rows = x_MD.shape[0] + BLOCK_ROWS
    x = pad_rows(x_MD, num_rows)

    def one_group(y_MF: Array, item: tuple[Array, _Group]) -> tuple[Array, None]:
        w, group = item

        def one_block(block: Array, y_MF: Array) -> Array:
            first, is_row = group.place(block)
            y_CF = product("CD,FD->CF" if transposed else "CD,DF->CF", _block(x, first, is_row), w, x.dtype).astype(
                out_dtype
            )
            y_CF = jnp.where(is_row, y_CF, lax.dynamic_slice_in_dim(y_MF, first, BLOCK_ROWS))
            return lax.dynamic_update_slice_in_dim(y_MF, y_CF, first, 0)

        return lax.fori_loop(0, group.num_blocks, one_block, y_MF), None

    zero = jnp.zeros((num_rows, w_EDF.shape[1 if transposed else 2]), out_dtype)
    return lax.scan(one_group, zero, (w_EDF, _groups(sizes_E)))[0][: x_MD.shape[0]]


def _outer_in_blocks(x_MD: Array, dy_MF: Array, sizes_E: Array, *, out_dtype: Any) -> Array:
    x, dy = (pad_rows(a, a.shape[0] + BLOCK_ROWS) for a in (x_MD, dy_MF))

    def one_group(group: _Group) -> Array:
        def one_block(block: Array, total: Array) -> Array:
            first, is_row = group.place(block)
            return total + product("CD,CF->DF", _block(x, first, is_row), _block(dy, first, is_row), x.dtype)

        zero = jnp.zeros((x.shape[1], dy.shape[1]), jnp.float32)
        return lax.fori_loop(0, group.num_blocks, one_block, zero).astype(out_dtype)

    return lax.map(one_group, _groups(sizes_E))


IN_BLOCKS = Form(_product_in_blocks, _outer_in_blocks)
ON_GPU = Form(grouped_matmul_gpu.product, grouped_matmul_gpu.outer)
ON_TPU = Form(grouped_matmul_tpu.product, grouped_matmul_tpu.outer)


def _by_platform(name: str, *arguments: Array, **how: Any) -> Array:
    default, cuda, tpu = (partial(getattr(form, name), **how) for form in (IN_BLOCKS, ON_GPU, ON_TPU))
    return by_platform(*arguments, default=default, cuda=cuda, tpu=tpu)


BY_PLATFORM = Form(partial(_by_platform, "product"), partial(_by_platform, "outer"))
