from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels.cross_entropy import cross_entropy

N, D, V = 37, 12, 50


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("maxtrain.model.kernels.cross_entropy.CPU_CHUNK_LOGITS", 8 * V)
    monkeypatch.setattr("maxtrain.model.kernels.cross_entropy.DEFAULT_CHUNK_LOGITS", 8 * V)


def inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    x, output = jax.random.normal(keys[0], (N, D)), jax.random.normal(keys[1], (V, D))
    target = jax.random.randint(keys[2], (N,), 0, V)
    weight = jax.random.uniform(keys[3], (N,)).at[5:9].set(0.0)
    return x, output, target, weight


@partial(jax.jit, static_argnames=("z_weight", "implementation", "dtype"))
def run(*arguments, z_weight=0.0, implementation="auto", dtype=jnp.float32):
    return cross_entropy(
        *arguments, z_weight=z_weight, compute_dtype=dtype, vocab_axis=None, implementation=implementation
    )


@pytest.mark.parametrize("z_weight", [0.0, 0.01])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_equals_the_sum_by_hand(z_weight, implementation):
    x, output, target, weight = inputs()
    logits = np.asarray(x, np.float64) @ np.asarray(output, np.float64).T
    log_z = np.array([np.log(np.sum(np.exp(row - row.max()))) + row.max() for row in logits])
    nll = np.array([log_z[n] - logits[n, target[n]] for n in range(N)])
    total, nll_N, z_N = run(x, output, target, weight, z_weight=z_weight, implementation=implementation)
    np.testing.assert_allclose(nll_N, nll, rtol=2e-6, atol=1e-5)
    np.testing.assert_allclose(z_N, log_z**2, rtol=1e-5)
    np.testing.assert_allclose(total, np.sum(np.asarray(weight) * (nll + z_weight * log_z**2)), rtol=1e-6)


@pytest.mark.parametrize("z_weight", [0.0, 0.01])
def test_gradients_equal_the_reference_and_the_value_is_the_same(z_weight):
    x, output, target, weight = inputs()

    def gradients(implementation):
        def loss(x, output):
            total, nll_N, _ = run(x, output, target, weight, z_weight=z_weight, implementation=implementation)
            return 3.0 * total, nll_N

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, output)

    (fast, nll_fast), fast_gradients = gradients("auto")
    (slow, nll_slow), slow_gradients = gradients("reference")
    np.testing.assert_allclose(fast, slow, rtol=1e-6)
    np.testing.assert_allclose(nll_fast, nll_slow, rtol=1e-5, atol=1e-5)
    for a, b in zip(fast_gradients, slow_gradients, strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)
    assert float(3.0 * run(x, output, target, weight, z_weight=z_weight)[0]) == pytest.approx(float(fast), rel=1e-6)


def test_reported_values_have_no_gradient():
    x, output, target, weight = inputs()
    for implementation in ("auto", "reference"):
        for part in (1, 2):
            gradient = jax.grad(
                lambda x, part=part, implementation=implementation: jnp.sum(
                    run(x, output, target, weight, implementation=implementation)[part]
                )
            )(x)
            assert (gradient == 0).all()


@pytest.mark.parametrize("bad", [-1, V, 10 * V])
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_a_target_outside_the_vocabulary_is_nan_not_zero(bad, implementation):
    x, output, target, weight = inputs()
    total, nll_N, _ = run(x, output, target.at[3].set(bad), weight, implementation=implementation)
    assert np.isnan(total)
    assert np.flatnonzero(np.isnan(nll_N)).tolist() == [3]
    total, _, _ = run(x, output, target.at[5].set(bad), weight, implementation=implementation)
    assert np.isfinite(total), "a row of weight 0 adds nothing"


def test_no_array_of_all_logits():
    x, output, target, weight = inputs()
    jaxpr = str(jax.make_jaxpr(jax.grad(lambda x: run(x, output, target, weight)[0]))(x))
    assert f"f32[{N},{V}]" not in jaxpr
    assert f"f32[8,{V}]" in jaxpr


def test_bfloat16_operands():
    x, output, target, weight = inputs()
    low = jax.grad(lambda x: run(x, output, target, weight, dtype=jnp.bfloat16)[0])(x)
    high = jax.grad(lambda x: run(x, output, target, weight)[0])(x)
    assert low.dtype == jnp.float32
    assert 0 < np.linalg.norm(low - high) < 2e-2 * np.linalg.norm(high)
