"""Products of grouped rows on TPU: megablox (Gale 2022, arXiv 2211.15841), as JAX ships it for Pallas.

M rows  E groups  D inner dimension  F outer dimension
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

from maxtrain.model.kernels.common import pad_rows, round_up

PRODUCT, OUTER = (512, 1024, 1024), (512, 512, 1024)
"""Rows, inner and columns of the largest tiles for 2-byte operands: their blocks, twice each, stay in 16 MiB of VMEM
with the float32 sum, which the outer product writes as it is."""
LANES, SUBLANES = 128, 16


def product(
    x_MD: Array, w_EDF: Array, sizes_E: Array, *, transposed: bool, out_dtype: Any, interpret: bool = False
) -> Array:
    """y_MF = x w[group of the row], sums in float32; 0 in rows past all groups. Arguments as of the GPU form."""
    num_rows, inner = x_MD.shape
    columns = w_EDF.shape[1 if transposed else 2]
    tile = _tile(PRODUCT, num_rows, inner, columns, x_MD.dtype)
    with _precision(x_MD.dtype):
        y_MF = gmm(
            pad_rows(x_MD, round_up(num_rows, tile[0])),
            w_EDF,
            sizes_E,
            preferred_element_type=out_dtype,
            tiling=tile,
            transpose_rhs=transposed,
            interpret=interpret,
        )[:num_rows]
    # Rows past all groups are never written.
    return jnp.where((jnp.arange(num_rows) < jnp.sum(sizes_E))[:, None], y_MF, 0)


def outer(x_MD: Array, dy_MF: Array, sizes_E: Array, *, out_dtype: Any, interpret: bool = False) -> Array:
    """dw_EDF = Σ over the rows of a group of x ⊗ dy, sums in float32. Arguments as of the GPU form."""
    num_rows, height = x_MD.shape
    tile = _tile(OUTER, num_rows, height, dy_MF.shape[1], x_MD.dtype)
    padded = round_up(num_rows, tile[0])
    with _precision(x_MD.dtype):
        return tgmm(
            pad_rows(x_MD, padded).swapaxes(0, 1),
            pad_rows(dy_MF, padded),
            sizes_E,
            preferred_element_type=out_dtype,
            tiling=tile,
            interpret=interpret,
        )


def _tile(most: tuple[int, int, int], num_rows: int, inner: int, columns: int, dtype: Any) -> tuple[int, int, int]:
    """Rows, inner and columns of a tile: whole dimensions where they are small."""
    share = max(1, jnp.dtype(dtype).itemsize // 2)
    return (
        min(most[0] // share, round_up(num_rows, SUBLANES)),
        min(most[1] // share, round_up(inner, LANES)),
        min(most[2] // share, round_up(columns, LANES)),
    )


def _precision(dtype: Any) -> AbstractContextManager[Any]:
    """The kernels state no precision: float32 operands would be rounded to bfloat16."""
    return jax.default_matmul_precision("highest") if dtype == jnp.float32 else nullcontext()
