import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from maxtrain.config.schema import MeshConfig
from maxtrain.model.kernels.cross_entropy import CPU_CHUNK_LOGITS, _chunks, cross_entropy, logits_at_once
from maxtrain.parallel.dispatch import sharded_cross_entropy
from maxtrain.parallel.mesh import make_mesh

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


@pytest.mark.parametrize("num_rows", [1, 31, 32, 33, 1000, 4096])
@pytest.mark.parametrize("vocab", [50, 8192, 131_072, 150_000, 5_000_000])
def test_no_chunk_is_over_the_declared_one(num_rows, vocab):
    limit = 4 * 2**20
    num_chunks, rows = _chunks(num_rows, vocab, limit)
    assert rows == 1 or rows * vocab <= limit
    assert num_chunks * rows >= num_rows > (num_chunks - 1) * rows


LARGE_V, LARGE_N, LARGE_D = 131_072, 1024, 16


def logits_held(program: str, columns: int) -> list[int]:
    """Elements of every array of a compiled program that has the vocabulary as a dimension and is no projection."""
    shapes = [tuple(map(int, dims.split(","))) for dims in re.findall(r"\b(?:f32|bf16|pred|s32)\[([0-9,]+)\]", program)]
    return [math.prod(dims) for dims in shapes if columns in dims and LARGE_D not in dims]


@pytest.mark.parametrize("num_shards", [1, 8])
def test_at_a_vocabulary_of_128k_a_chunk_of_logits_is_all_that_is_held(monkeypatch, num_shards):
    """Read from the compiled forward and backward pass, the vocabulary whole and divided over `tensor`."""
    monkeypatch.undo()  # the real chunks
    mesh = make_mesh(MeshConfig(devices=num_shards, tensor=num_shards))
    columns = LARGE_V // num_shards
    shapes = (LARGE_N, LARGE_D), (LARGE_V, LARGE_D), (LARGE_N,), (LARGE_N,)
    dtypes = jnp.float32, jnp.float32, jnp.int32, jnp.float32
    specs = P(), P("tensor"), P(), P()
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, dtype, spec in zip(shapes, dtypes, specs, strict=True)
    ]

    def loss(x, output, target, weight):
        compute = partial(cross_entropy, z_weight=1e-4, compute_dtype=jnp.float32)
        return sharded_cross_entropy(x[None], output, target[None], weight[None], mesh=mesh, compute=compute)[0]

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arguments).compile()
    program, memory = compiled.as_text(), compiled.memory_analysis()
    assert program is not None
    assert memory is not None
    declared = logits_at_once(LARGE_N, columns, "auto", "cpu")
    assert declared <= CPU_CHUNK_LOGITS < LARGE_N * columns
    assert max(logits_held(program, columns)) == declared
    # In bytes: gradients and copies of the projection, and a chunk of logits as often as the pass over it needs it.
    projection, chunk = 4 * columns * LARGE_D, 4 * declared
    assert memory.temp_size_in_bytes < 4 * projection + 5 * chunk


def test_bfloat16_operands():
    x, output, target, weight = inputs()
    low = jax.grad(lambda x: run(x, output, target, weight, dtype=jnp.bfloat16)[0])(x)
    high = jax.grad(lambda x: run(x, output, target, weight)[0])(x)
    assert low.dtype == jnp.float32
    assert 0 < np.linalg.norm(low - high) < 2e-2 * np.linalg.norm(high)
