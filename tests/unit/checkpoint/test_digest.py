from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.checkpoint import leaf_digest
from maxtrain.checkpoint.digest import finish_digest, start_digest


def _one(array: Any) -> str:
    return leaf_digest({"x": jnp.asarray(array)})["x"]


def test_no_mesh_or_sharding_changes_a_digest(kit):
    whole = leaf_digest(jax.device_put(kit.state(kit.mesh(1, 1)), jax.devices()[0]))
    for shape in ((2, 4), (4, 1)):
        assert leaf_digest(kit.state(kit.mesh(*shape))) == whole, shape
    assert set(whole) >= {"params/w", "params/half", "expert_bias", "step", "flags", "key", "row_keys"}
    assert all(len(digest) == 16 for digest in whole.values())


def test_leaves_may_live_on_different_devices(kit, mesh):
    state = kit.state(mesh)
    mixed = state | {"step": jax.device_put(np.int32(3), jax.devices()[5])}
    assert leaf_digest(mixed) == leaf_digest(state)


def test_every_bit_counts():
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 96, dtype=np.uint32)
    seen = {_one(bits)}
    for place in random.choice(96 * 32, 200, replace=False).tolist():
        flipped = bits.copy()
        flipped[place // 32] ^= np.uint32(1 << (place % 32))
        seen.add(_one(flipped))
    assert len(seen) == 201


def test_every_place_counts():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    swapped = [values.copy() for _ in range(3)]
    swapped[0][[0, 1]] = swapped[0][[1, 0]]
    swapped[1][0, [0, 1]] = swapped[1][0, [1, 0]]
    swapped[2][0, 0], swapped[2][3, 5] = values[3, 5], values[0, 0]
    assert len({_one(array) for array in (values, *swapped, values.T.copy(), values.reshape(6, 4))}) == 6


def test_constant_arrays_of_other_sizes_and_signed_zeros_differ():
    arrays = [np.zeros(shape, np.float32) for shape in ((1,), (2,), (3,), (2, 2), (2, 3), (3, 2))]
    digests = {_one(array) for array in (*arrays, -arrays[2])}
    assert len(digests) == 7


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "bfloat16", "float16", "float8_e4m3fn", "int4", "int32", "complex64"]
)
def test_every_dtype_has_a_digest_that_sees_a_swap(dtype):
    values = jnp.array([0, 1, 1, 0, 1], dtype)
    assert _one(values) != _one(values[jnp.array([1, 0, 2, 3, 4])])


def test_both_halves_of_64_bit_integers_count():
    with jax.enable_x64(True):
        low, high, both = (_one(np.array([5, value], np.int64)) for value in (1, 2**40, 2**40 + 1))
    assert len({low, high, both}) == 3


def test_keys_count_by_their_data():
    key = jax.random.key(7)
    assert _one(key) == _one(jax.random.key_data(key)) != _one(jax.random.key(8))


def test_a_donated_leaf_was_digested_before(kit, mesh):
    expected = leaf_digest(kit.state(mesh))
    spoil = jax.jit(lambda w: w * 0, donate_argnums=0)
    w = jax.device_put(kit.state(mesh)["params"]["w"], NamedSharding(mesh, PartitionSpec("data", "fsdp")))
    started = start_digest([("params/w", w)])
    spoil(w).block_until_ready()
    assert finish_digest(started)["params/w"] == expected["params/w"]
