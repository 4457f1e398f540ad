"""Counter-based random numbers (Threefry-2x32 of 20 rounds, Salmon 2011), written out elementwise.

The bits are as good as `jax.random`'s, whose loop form takes the CPU compiler about a second for every draw in a
program; this form takes a fraction, and fuses with what uses the bits. Each element is a function of (key, its index)
alone, so that no sharding changes it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

Key = tuple[jax.Array, jax.Array]
"""Two uint32 words."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(key: Key, high: jax.Array, low: jax.Array) -> Key:
    """Encrypt counters; the results are two independent uint32 words for each."""
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << distance) | (y >> (32 - distance))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def key_words(key: jax.Array) -> Key:
    """The words of a typed key (threefry2x32, JAX's default)."""
    words = jax.random.key_data(key)
    if words.shape[-1] != 2:
        raise ValueError("a threefry2x32 key is needed: jax.random.key(seed)")
    return words[..., 0], words[..., 1]


def fold(key: Key, number: jax.Array | np.ndarray | int) -> Key:
    """Key of one purpose, layer or row; equal to `jax.random.fold_in`."""
    number = jnp.asarray(number, jnp.uint32)
    return threefry(key, jnp.zeros_like(number), number)


def random_bits(key: Key, shape: tuple[int, ...], first: jax.Array | None = None) -> jax.Array:
    """uint32; a key for every array (words of shape []).

    Args:
        key: of the array.
        shape: of the array.
        first: index along the first dimension of each of its slices; None to count.
    """
    rest = math.prod(shape[1:])
    assert rest < 2**32, f"an index of shape {shape} does not fit two words"
    low = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for dim in range(len(shape) - 1, 0, -1):
        low = low + jax.lax.broadcasted_iota(jnp.uint32, shape, dim) * jnp.uint32(stride)
        stride *= shape[dim]
    if first is not None:
        high = jnp.broadcast_to(first.astype(jnp.uint32).reshape(-1, *[1] * (len(shape) - 1)), shape)
    else:
        high = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) if shape else jnp.uint32(0)
    x, y = threefry(key, high, low)
    return x ^ y


def uniform(key: Key, shape: tuple[int, ...], first: jax.Array | None = None) -> jax.Array:
    """float32 in [0, 1), 23 bits each; arguments as of `random_bits`."""
    # The mantissa of a number in [1, 2).
    bits = (random_bits(key, shape, first) >> 9) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(bits, jnp.float32) - 1.0


def truncated_normal(key: Key, bound: float, shape: tuple[int, ...]) -> jax.Array:
    """Unit normal cut at ± bound, by inversion of its distribution function; float32."""
    edge = math.erf(bound / math.sqrt(2))
    value = math.sqrt(2) * jax.lax.erf_inv((2 * uniform(key, shape) - 1) * edge)
    return jnp.clip(value, -bound, bound)
