"""Eight-bit products, which a CPU emulates exactly: it widens the operands."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from maxtrain.config.schema import ModelConfig, MoeConfig, PrecisionConfig
from maxtrain.model import Model
from maxtrain.model.kernels.common import product
from maxtrain.model.kernels.float8 import E4M3, E5M2, quantize
from maxtrain.model.linear import project


def rounded(x, gradient=False):
    """Oracle in NumPy: scaled to the format's range, rounded, scaled back; in float64."""
    kind, most = (ml_dtypes.float8_e5m2, 57344.0) if gradient else (ml_dtypes.float8_e4m3fn, 448.0)
    scale = np.float32(np.abs(x).max()) / np.float32(most)
    return np.asarray(x / scale, np.float32).astype(kind).astype(np.float64) * scale


def draw(seed, *shape, spread=1.0):
    return jnp.asarray(spread * np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_quantized_values_fill_the_range_and_come_back(dtype):
    x = draw(0, 64, 32, spread=1e-6)
    low, scale = quantize(x, dtype)
    assert low.dtype == dtype
    assert float(jnp.abs(low.astype(jnp.float32)).max()) == float(jnp.finfo(dtype).max)
    np.testing.assert_allclose(low.astype(jnp.float32) * scale, rounded(np.asarray(x), dtype == E5M2), rtol=1e-6)


def test_quantized_extremes():
    for dtype in (E4M3, E5M2):
        low, scale = quantize(jnp.zeros((3,)), dtype)
        assert (low.astype(jnp.float32) == 0).all()
        assert scale == 1
        for bad in (jnp.inf, -jnp.inf, jnp.nan):
            low, scale = quantize(jnp.asarray([1.0, bad]), dtype)
            assert not jnp.isfinite((low.astype(jnp.float32) * scale).sum())


@pytest.mark.parametrize("spec", ["ND,EDF->ENF", "CF,FD->CD", "FC,CD->FD", "CF,DF->CD", "ENF,EFD->END"])
@pytest.mark.parametrize("gradient", [None, 0, 1])
def test_products_equal_those_of_rounded_operands(spec, gradient):
    sizes = dict(zip("NDEFC", (5, 8, 3, 6, 7), strict=True))
    a, b = (draw(seed, *(sizes[label] for label in part)) for seed, part in enumerate(spec.split("->")[0].split(",")))
    got = product(spec, a, b, E4M3, gradient=gradient)
    expected = np.einsum(spec, rounded(np.asarray(a), gradient == 0), rounded(np.asarray(b), gradient == 1))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_projections_gradients_are_products_with_the_rounded_gradient():
    x, weight, grad = draw(0, 4, 3, 8), draw(1, 8, 2, 5), draw(2, 4, 3, 2, 5)
    y, pull = jax.vjp(lambda x, weight: project(x, weight, 1, E4M3), x, weight)
    dx, dweight = pull(grad)
    low_x, low_weight, low_grad = rounded(np.asarray(x)), rounded(np.asarray(weight)), rounded(np.asarray(grad), True)
    np.testing.assert_allclose(y, np.einsum("abi,ijk->abjk", low_x, low_weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, np.einsum("abjk,ijk->abi", low_grad, low_weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dweight, np.einsum("abi,abjk->ijk", low_x, low_grad), rtol=1e-5, atol=1e-5)


def dot_operands(jaxpr, found):
    """Pairs of operand dtypes of every product in a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(tuple(str(variable.aval.dtype) for variable in equation.invars))
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, (list, tuple)) else [parameter]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    dot_operands(inner, found)
    return found


@pytest.fixture(scope="module")
def results():
    """Loss and gradients of a model with every kind of layer, by format, and a float8 program's products."""
    moe = MoeConfig(num_experts=4, top_k=2, d_expert=16, first_dense=1, num_shared=1)
    config = ModelConfig(vocab_size=64, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ff=48, moe=moe)
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.integers(0, 64, (4, 33)), jnp.int32)
    batch = {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "segment_ids": jnp.ones((4, 32), jnp.int32),
        "positions": jnp.broadcast_to(jnp.arange(32), (4, 32)),
        "weights": jnp.ones((4, 32)),
    }
    params = Model(config).init(jax.random.key(0))
    found = {}
    for compute in ("float32", "bfloat16", "mxfp8", "float8"):
        precision = PrecisionConfig(compute=compute)
        model = Model(config, precision=precision.model_copy(update={"emulate": precision.is_eight_bit}))
        run = jax.jit(
            jax.value_and_grad(lambda p, model=model: model.loss(p, batch, expert_bias=model.expert_bias())[0])
        )
        found[compute] = run(params)
    return found, dot_operands(jax.make_jaxpr(run)(params).jaxpr, [])


@pytest.mark.parametrize(("low", "high"), [("float8", "float32"), ("mxfp8", "float32"), ("mxfp8", "bfloat16")])
def test_a_models_loss_and_gradients_are_near_those_of_wider_formats(results, low, high):
    """Eight bits round by 2⁻⁴ (e5m2: 2⁻³) at most: the loss moves little, gradients by some per cent of their norm."""
    (loss, grads), (low_loss, low_grads) = results[0][high], results[0][low]
    assert 0 < abs(low_loss - loss) < 2e-3 * loss
    distances = {
        jax.tree_util.keystr(path): float(np.linalg.norm(low - high) / np.linalg.norm(high))
        for (path, low), high in zip(
            jax.tree_util.tree_leaves_with_path(low_grads), jax.tree.leaves(grads), strict=True
        )
    }
    assert 0 < max(distances.values()) < 0.2, distances


def test_which_products_are_eight_bit(results):
    kinds = {frozenset(pair) for pair in results[1]}
    assert ("float8_e4m3fn", "float8_e4m3fn") in results[1]
    assert {("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2")} <= set(results[1])
    assert ("float8_e5m2", "float8_e5m2") not in results[1]
    # Attention and the output projection stay bfloat16, the router float32.
    assert {("bfloat16", "bfloat16"), ("float32", "float32")} <= set(results[1])
    assert all(len(kind) == 1 or kind == {"float8_e4m3fn", "float8_e5m2"} for kind in kinds), kinds
