from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels import grouped_matmul_gpu, grouped_matmul_tpu
from maxtrain.model.kernels.grouped_matmul import IN_BLOCKS, Form, grouped_matmul

M, D, F, E = 90, 40, 24, 5
TILE = grouped_matmul_gpu.Tiling(16, 16, 16, warps=4, stages=2)
FORMS: dict[str, Any] = {
    "auto": "auto",
    "reference": "reference",
    "blocks": IN_BLOCKS,
    "gpu": Form(
        partial(grouped_matmul_gpu.product, tiling=TILE, interpret=True),
        partial(grouped_matmul_gpu.outer, tiling=TILE, interpret=True),
    ),
    "tpu": Form(partial(grouped_matmul_tpu.product, interpret=True), partial(grouped_matmul_tpu.outer, interpret=True)),
}
SIZES = {
    "misaligned": [17, 1, 33, 16, 7],
    "empty": [0, 30, 0, 0, 0],
    "single": [1, 1, 1, 1, 1],
    "one": [0, 0, 90, 0, 0],
    "nobody": [0, 0, 0, 0, 0],
}


def inputs(poison_from):
    """Normal rows; NaN from a row on, in the gradient of the result too."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, dy = (jax.random.normal(k, s) for k, s in zip(keys, ((M, D), (E, D, F), (M, F)), strict=True))
    tail = (jnp.arange(M) >= poison_from)[:, None]
    return jnp.where(tail, jnp.nan, x), w, jnp.where(tail, jnp.nan, dy)


@partial(jax.jit, static_argnames=("form", "dtype"))
def with_gradients(x, w, sizes, dy, form, dtype=jnp.float32):
    y, pull = jax.vjp(lambda x, w: grouped_matmul(x, w, sizes, compute_dtype=dtype, implementation=FORMS[form]), x, w)
    return y, *pull(dy)


def group_by_group(x, w, sizes, dy):
    """y, dx and dw in float64."""
    x, w, dy = (np.asarray(a, np.float64) for a in (x, w, dy))
    y, dx, dw, start = np.zeros((M, F)), np.zeros((M, D)), np.zeros((E, D, F)), 0
    for e, size in enumerate(sizes):
        rows = slice(start, start + size)
        y[rows], dx[rows], dw[e] = x[rows] @ w[e], dy[rows] @ w[e].T, x[rows].T @ dy[rows]
        start += size
    return y, dx, dw


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_product_of_each_group(form):
    for kind, sizes in SIZES.items():
        x, w, dy = inputs(poison_from=sum(sizes))
        found = with_gradients(x, w, jnp.asarray(sizes, jnp.int32), dy, form)
        for a, b in zip(found, group_by_group(x, w, sizes, dy), strict=True):
            assert a.dtype == jnp.float32
            assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b), kind
            np.testing.assert_array_equal(np.asarray(a)[b == 0], 0, err_msg=kind)


@pytest.mark.parametrize("form", ["blocks", "gpu", "tpu"])
def test_bfloat16_operands_accumulate_in_float32(form):
    sizes = SIZES["misaligned"]
    x, w, dy = (a.astype(jnp.bfloat16).astype(jnp.float32) for a in inputs(poison_from=sum(sizes)))
    found = with_gradients(x, w, jnp.asarray(sizes, jnp.int32), dy, form, jnp.bfloat16)
    # The operands are bfloat16 numbers, whose products float32 holds exactly: only sums round.
    for a, b in zip(found, group_by_group(x, w, sizes, dy), strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


def test_tiles_cover_each_row_once_and_hold_one_group():
    for sizes in SIZES.values():
        tiles = grouped_matmul_gpu.lay_tiles(jnp.asarray(sizes, jnp.int32), M, 16)
        group_of = np.repeat(np.arange(E + 1), [*sizes, M - sum(sizes)])
        seen = np.zeros(M, int)
        for group, start, stop in zip(*map(np.asarray, tiles), strict=True):
            assert stop - start <= 16
            seen[start:stop] += 1
            assert (group_of[start:stop] == group).all()
        assert (seen == 1).all()
