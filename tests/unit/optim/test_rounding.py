"""Stochastic rounding: between neighbours, right on average, a pure function of where and when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.config.schema import MeshConfig
from maxtrain.core.random_bits import key_words
from maxtrain.optim.rounding import Store, round_at_random
from maxtrain.parallel.mesh import make_mesh

BF16 = jnp.dtype(jnp.bfloat16)


def test_it_chooses_a_neighbour_and_is_right_on_average():
    values = np.array([1.0, 1.001, -3.1415927, 1e-30, 2.0**-126 * 1.003, 65535.0], np.float32)
    draws = 20_000
    x = jnp.broadcast_to(values, (draws, len(values)))
    got = np.asarray(jax.jit(round_at_random)(x, key_words(jax.random.key(1))).astype(jnp.float32), np.float64)
    below = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    above = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    for column, value in enumerate(values):
        near, far = below[column], above[column]
        assert set(got[:, column]) <= {float(near), float(far)}
        spread = abs(float(far) - float(near))
        # Four standard errors of a Bernoulli variable.
        assert abs(got[:, column].mean() - float(value)) <= 4 * 0.5 * spread / draws**0.5
    assert set(got[:, 0]) == {1.0}  # what bfloat16 holds stays


def test_what_is_not_finite_stays():
    x = jnp.float32([np.nan, np.inf, -np.inf])
    got = np.asarray(round_at_random(x, key_words(jax.random.key(0))).astype(jnp.float32))
    np.testing.assert_array_equal(got, x)


def test_small_steps_add_up_where_rounding_to_the_nearest_loses_them():
    def walk(at_random):
        store = Store(seed=5, at_random=at_random)

        def step(count, x):
            return store(x.astype(jnp.float32) + 2.0**-12, BF16, "params/w", count, None)

        return jax.lax.fori_loop(0, 1024, step, jnp.ones((256,), BF16)).astype(jnp.float32)

    assert np.all(np.asarray(walk(at_random=False)) == 1.0)
    assert abs(float(walk(at_random=True).mean()) - 1.25) < 0.01


def test_bits_depend_on_name_layer_and_update_but_not_on_the_mesh():
    x = jax.random.normal(jax.random.key(0), (2, 8, 16))
    store = Store(seed=5, at_random=True)

    def write(x, count=3, name="mu/w", layers=(0, 1)):
        return store(x, BF16, name, jnp.int32(count), np.array(layers[: len(x)]))

    here = np.asarray(write(x))
    for sizes in ({"fsdp": 8}, {"tensor": 4, "fsdp": 2}):
        mesh = make_mesh(MeshConfig.model_validate(sizes))
        sharding = NamedSharding(mesh, PartitionSpec(None, "fsdp", "tensor"))
        there = jax.jit(write, in_shardings=sharding, out_shardings=sharding)(jax.device_put(x, sharding))
        np.testing.assert_array_equal(np.asarray(there), here)
    for other in (
        write(x, count=4),
        write(x, name="nu/w"),
        Store(6, True)(x, BF16, "mu/w", jnp.int32(3), np.arange(2)),
    ):
        assert np.any(np.asarray(other) != here)
    same = np.asarray(write(jnp.broadcast_to(x[:1], x.shape)))
    assert np.any(same[0] != same[1])
    # A layer keeps its bits wherever it lies, and when layers are added after it.
    np.testing.assert_array_equal(np.asarray(write(x[::-1], layers=(1, 0)))[::-1], here)
    np.testing.assert_array_equal(np.asarray(write(x[:1])), here[:1])


@pytest.mark.parametrize("at_random", [True, False])
def test_float32_is_kept_as_it_is(at_random):
    x = jax.random.normal(jax.random.key(0), (4,))
    got = Store(1, at_random)(x, jnp.dtype(jnp.float32), "mu/w", jnp.int32(0), None)
    np.testing.assert_array_equal(got, x)
