"""Products of grouped rows on GPU: Pallas kernels that Triton compiles.

A tile of the forward product belongs to one group: tiles start where a group starts, not at multiples of their size,
and a row that is not the group's is neither read nor written.

M rows  E groups  D inner dimension  F outer dimension  T tiles  R rows of a tile
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

PRODUCT_NAME, OUTER_NAME = "grouped_product", "grouped_outer"
"""Names of the kernels in a compiled program."""


class Tiling(NamedTuple):
    """What one program of a kernel works through; powers of two."""

    rows: int
    inner: int
    """Of the forward product: what one turn of the loop multiplies. Of the outer product: rows of its result."""
    columns: int
    warps: int
    stages: int


PRODUCT = Tiling(rows=128, inner=64, columns=128, warps=8, stages=4)
OUTER = Tiling(rows=64, inner=128, columns=128, warps=8, stages=4)


class Tiles(NamedTuple):
    """What each tile of rows does."""

    group_T: Array
    """Its group; E for the rows past all groups, which become 0."""
    start_T: Array
    """Its first row."""
    stop_T: Array
    """One past its last row; at most the first where there is nothing to do."""


def lay_tiles(sizes_E: Array, num_rows: int, tile_rows: int) -> Tiles:
    """Cut the rows of each group, and those past all groups, into tiles of at most tile_rows."""
    sizes = jnp.append(sizes_E, num_rows - jnp.sum(sizes_E))
    num_tiles = num_rows // tile_rows + sizes.size
    last_tile = jnp.cumsum(-(-sizes // tile_rows))
    stop = jnp.cumsum(sizes)
    tile_T = jnp.arange(num_tiles, dtype=jnp.int32)
    group_T = jnp.searchsorted(last_tile, tile_T, side="right").astype(jnp.int32)
    is_used = group_T < sizes.size
    group_T = jnp.where(is_used, group_T, 0)
    first_tile = last_tile[group_T] - -(-sizes[group_T] // tile_rows)
    start_T = stop[group_T] - sizes[group_T] + (tile_T - first_tile) * tile_rows
    stop_T = jnp.where(is_used, jnp.minimum(start_T + tile_rows, stop[group_T]), 0)
    return Tiles(group_T, jnp.where(is_used, start_T, 0).astype(jnp.int32), stop_T.astype(jnp.int32))


def product(
    x_MD: Array,
    w_EDF: Array,
    sizes_E: Array,
    *,
    transposed: bool,
    out_dtype: Any,
    tiling: Tiling = PRODUCT,
    interpret: bool = False,
) -> Array:
    """y_MF = x w[group of the row], sums in float32; 0 in rows past all groups.

    Args:
        x_MD: rows by group, float32 or bfloat16; rows past all groups are never read.
        w_EDF: a matrix for each group, of x's dtype; with `transposed` it is w_EFD.
        sizes_E: int32 rows of each group.
        transposed: multiply with the transpose of each matrix.
        out_dtype: type of the result.
        tiling: of the kernel.
        interpret: run it in the interpreter (for tests).
    """
    num_rows, inner = x_MD.shape
    num_groups, columns = w_EDF.shape[0], w_EDF.shape[1 if transposed else 2]
    tiling = _fitting(tiling, num_rows, inner, columns, x_MD.dtype)
    tiles = lay_tiles(sizes_E, num_rows, tiling.rows)
    kernel = partial(_product_kernel, num_groups=num_groups, transposed=transposed, tiling=tiling)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((num_rows, columns), out_dtype),
        # Columns first: programs that run at the same time share rows, and all of a group's matrix, in the L2 cache.
        grid=(pl.cdiv(columns, tiling.columns), tiles.group_T.size),
        compiler_params=pltriton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpret,
        name=PRODUCT_NAME,
    )(*tiles, x_MD, w_EDF)


def outer(
    x_MD: Array,
    dy_MF: Array,
    sizes_E: Array,
    *,
    out_dtype: Any,
    tiling: Tiling = OUTER,
    interpret: bool = False,
) -> Array:
    """dw_EDF = Σ over the rows of a group of x ⊗ dy, sums in float32; 0 for an empty group.

    Args:
        x_MD: rows by group, float32 or bfloat16.
        dy_MF: rows by group, of x's dtype.
        sizes_E: int32 rows of each group; rows past all groups are never read.
        out_dtype: type of the result.
        tiling: of the kernel.
        interpret: run it in the interpreter (for tests).
    """
    (num_rows, height), columns, num_groups = x_MD.shape, dy_MF.shape[1], sizes_E.size
    tiling = _fitting(tiling, num_rows, height, columns, x_MD.dtype)
    stop_E = jnp.cumsum(sizes_E).astype(jnp.int32)
    return pl.pallas_call(
        partial(_outer_kernel, tiling=tiling),
        out_shape=jax.ShapeDtypeStruct((num_groups, height, columns), out_dtype),
        grid=(pl.cdiv(columns, tiling.columns), pl.cdiv(height, tiling.inner), num_groups),
        compiler_params=pltriton.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=interpret,
        name=OUTER_NAME,
    )(stop_E - sizes_E, stop_E, x_MD, dy_MF)


def _fitting(tiling: Tiling, num_rows: int, inner: int, columns: int, dtype: Any) -> Tiling:
    """No larger than the arrays need, and at least the 16 that tensor cores take; smaller for 4-byte operands."""
    most = [n if jnp.dtype(dtype).itemsize <= 2 else n // 2 for n in tiling[:3]]
    sizes = (num_rows, inner, columns)
    fit = [max(16, min(n, pl.next_power_of_2(size))) for n, size in zip(most, sizes, strict=True)]
    return Tiling(fit[0], fit[1], fit[2], tiling.warps, tiling.stages)


def _load(ref: Any, *place: Any, mask: Array) -> Array:
    return pltriton.load(ref.at[place], mask=mask, other=0.0)


def _dot(a: Array, b: Array, *, trans_a: bool = False, trans_b: bool = False) -> Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return pltriton.dot(a, b, trans_a=trans_a, trans_b=trans_b, precision=precision)


def _product_kernel(
    group_T: Any,
    start_T: Any,
    stop_T: Any,
    x_MD: Any,
    w_EDF: Any,
    y_MF: Any,
    *,
    num_groups: int,
    transposed: bool,
    tiling: Tiling,
) -> None:
    part, tile = pl.program_id(0), pl.program_id(1)
    group, start, stop = group_T[tile], start_T[tile], stop_T[tile]
    inner, columns = x_MD.shape[1], y_MF.shape[1]

    @pl.when(start < stop)
    def _() -> None:
        row = start + jnp.arange(tiling.rows)
        column = part * tiling.columns + jnp.arange(tiling.columns)
        is_row, is_column = row < stop, column < columns
        held = jnp.minimum(group, num_groups - 1)

        def turn(i: Array, total: Array) -> Array:
            place = i * tiling.inner + jnp.arange(tiling.inner)
            is_inner = place < inner
            x_RD = _load(x_MD, row[:, None], place[None, :], mask=is_row[:, None] & is_inner[None, :])
            if transposed:
                w_FD = _load(w_EDF, held, column[:, None], place[None, :], mask=is_column[:, None] & is_inner[None, :])
                return total + _dot(x_RD, w_FD, trans_b=True)
            w_DF = _load(w_EDF, held, place[:, None], column[None, :], mask=is_inner[:, None] & is_column[None, :])
            return total + _dot(x_RD, w_DF)

        turns = (group < num_groups).astype(jnp.int32) * pl.cdiv(inner, tiling.inner)
        total_RF = lax.fori_loop(0, turns, turn, jnp.zeros((tiling.rows, tiling.columns), jnp.float32))
        pltriton.store(
            y_MF.at[row[:, None], column[None, :]],
            total_RF.astype(y_MF.dtype),
            mask=is_row[:, None] & is_column[None, :],
        )


def _outer_kernel(start_E: Any, stop_E: Any, x_MD: Any, dy_MF: Any, dw_EDF: Any, *, tiling: Tiling) -> None:
    group = pl.program_id(2)
    start, stop = start_E[group], stop_E[group]
    height, columns = x_MD.shape[1], dy_MF.shape[1]
    line = pl.program_id(1) * tiling.inner + jnp.arange(tiling.inner)
    column = pl.program_id(0) * tiling.columns + jnp.arange(tiling.columns)
    is_line, is_column = line < height, column < columns

    def turn(i: Array, total: Array) -> Array:
        row = start + i * tiling.rows + jnp.arange(tiling.rows)
        is_row = row < stop
        x_RD = _load(x_MD, row[:, None], line[None, :], mask=is_row[:, None] & is_line[None, :])
        dy_RF = _load(dy_MF, row[:, None], column[None, :], mask=is_row[:, None] & is_column[None, :])
        return total + _dot(x_RD, dy_RF, trans_a=True)

    turns = lax.div(stop - start + (tiling.rows - 1), tiling.rows)
    total_DF = lax.fori_loop(0, turns, turn, jnp.zeros((tiling.inner, tiling.columns), jnp.float32))
    pltriton.store(
        dw_EDF.at[group, line[:, None], column[None, :]],
        total_DF.astype(dw_EDF.dtype),
        mask=is_line[:, None] & is_column[None, :],
    )
