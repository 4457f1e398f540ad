"""Eight-bit products in blocks; a CPU widens their operands, as every device without such units does."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from maxtrain.model.kernels.common import product
from maxtrain.model.kernels.mxfp8 import BLOCK, E8M0, block_quantize, mxfp8_contract
from maxtrain.model.linear import project


def blocks_of(x, axis):
    """The axis last, filled with zeros to whole blocks, and cut into them."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 32)])
    return x.reshape(*x.shape[:-1], -1, 32)


def rounded(x, axis):
    """Oracle in float64, by the format's words: a power of two for 32 values, e4m3 for each of them."""
    x, size = blocks_of(x, axis), x.shape[axis]
    top = np.abs(x).max(-1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(top > 0, top, 448.0) / 448.0)))
    assert (scale == scale.astype(ml_dtypes.float8_e8m0fnu).astype(np.float64)).all()
    low = (x / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    return np.moveaxis(low.reshape(*low.shape[:-2], -1)[..., :size], -1, axis)


def draw(seed, *shape, spread=1.0):
    return jnp.asarray(spread * np.random.default_rng(seed).normal(size=shape), jnp.float32)


def widened(values, scale):
    return np.asarray(values, np.float64) * np.repeat(np.asarray(scale, np.float64), BLOCK, -1)


@pytest.mark.parametrize("spread", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_blocks_have_the_scales_and_values_of_the_format(spread):
    x = draw(0, 16, 4 * BLOCK, spread=spread) * 2.0 ** jnp.arange(-8, 8)[:, None]
    values, scale = block_quantize(x)
    assert (values.dtype, scale.dtype, scale.shape) == (jnp.float8_e4m3fn, E8M0, (16, 4))
    np.testing.assert_array_equal(widened(values, scale), rounded(x, 1))
    greatest = np.abs(np.asarray(values, np.float32)).reshape(16, 4, BLOCK).max(-1)
    assert (greatest > 208).all()  # over half the range, but for what rounds
    assert (greatest <= 448).all()


def test_scales_are_rounded_up_only_where_a_value_would_be_clipped():
    for top, expected in ((448.0, 1.0), (np.nextafter(np.float32(448), np.float32(500)), 2.0), (1.75, 2.0**-8)):
        values, scale = block_quantize(jnp.full((1, BLOCK), -top))
        assert float(scale[0, 0]) == expected
        assert float(values[0, 0]) == pytest.approx(-top / expected, rel=1e-6)


def test_extremes_of_blocks():
    zeros, scale = block_quantize(jnp.zeros((2, BLOCK)))
    assert (widened(zeros, scale) == 0).all()
    values, scale = block_quantize(jnp.full((1, BLOCK), jnp.finfo(jnp.float32).max))
    assert widened(values, scale)[0, 0] == 2.0**128  # the nearest value
    for bad in (jnp.inf, -jnp.inf, jnp.nan):
        x = jnp.ones((1, 3 * BLOCK)).at[0, BLOCK].set(bad)
        values, scale = block_quantize(x)
        assert np.isnan(np.asarray(scale, np.float32)).tolist() == [[False, True, False]]
        assert jnp.isnan(mxfp8_contract(x, jnp.ones((5, 3 * BLOCK)), (((1,), (1,)), ((), ())))).all()


@pytest.mark.parametrize("spec", ["ND,EDF->ENF", "CF,FD->CD", "FC,CD->FD", "CF,DF->CD", "ENF,EFD->END"])
@pytest.mark.parametrize("size", [(64, 96), (40, 7)])
def test_products_equal_those_of_rounded_operands(spec, size):
    sizes = {"N": 5, "E": 3, "D": size[0], "F": size[1], "C": 33}
    inputs, output = spec.split("->")
    left, right = inputs.split(",")
    a, b = draw(0, *map(sizes.get, left)), draw(1, *map(sizes.get, right), spread=1e-3)
    (summed,) = set(left) & set(right) - set(output)
    expected = np.einsum(spec, rounded(a, left.index(summed)), rounded(b, right.index(summed)))
    got = product(spec, a, b, E8M0)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_several_contracted_dimensions_are_one():
    a, b = draw(0, 4, 16, 5, 3), draw(1, 5, 16, 4)
    got = mxfp8_contract(a, b, (((0, 1), (2, 1)), ((2,), (0,))))
    low_a = rounded(np.moveaxis(a, 2, 0).reshape(5, 64, 3), 1)
    low_b = rounded(np.swapaxes(b, 1, 2).reshape(5, 64), 1)
    np.testing.assert_allclose(got, np.einsum("zkn,zk->zn", low_a, low_b), rtol=1e-5, atol=1e-5)


def test_a_projection_and_both_its_gradients_are_products_of_rounded_operands():
    x, weight, grad = draw(0, 4, 24, 64), draw(1, 64, 2, 48), draw(2, 4, 24, 2, 48)
    y, pull = jax.vjp(lambda x, weight: project(x, weight, 1, E8M0), x, weight)
    dx, dweight = pull(grad)
    x_NI, weight_IO, grad_NO = (
        np.asarray(v).reshape(shape) for v, shape in ((x, (96, 64)), (weight, (64, 96)), (grad, (96, 96)))
    )
    for got, a, b in (
        (y, rounded(x_NI, 1), rounded(weight_IO, 0)),
        (dx, rounded(grad_NO, 1), rounded(weight_IO, 1).T),
        (dweight, rounded(x_NI, 0).T, rounded(grad_NO, 0)),
    ):
        np.testing.assert_allclose(np.asarray(got).reshape(a.shape[0], -1), a @ b, rtol=1e-5, atol=1e-4)
    # Each operand is rounded by 2⁻⁴ of itself at most; errors of a sum add up like a random walk.
    for got, exact in ((y, x_NI @ weight_IO), (dx, grad_NO @ weight_IO.T), (dweight, x_NI.T @ grad_NO)):
        distance = np.linalg.norm(np.asarray(got).reshape(exact.shape) - exact) / np.linalg.norm(exact)
        assert 0.01 < distance < 0.05
