"""Rounding what is stored in bfloat16 at random: right on average, so that small updates are not lost."""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from maxtrain.core.random_bits import Key, fold, key_words, random_bits

_ROUNDING = 2
"""Purpose folded into the run's seed; `train.state` has the others."""


def round_at_random(x: jax.Array, key: Key) -> jax.Array:
    """Round float32 to one of the two nearest bfloat16, with odds that make x the mean (Gupta 2015).

    A number that bfloat16 holds stays; so does what is not finite.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    dither = random_bits(key, x.shape) >> 16
    up = jax.lax.bitcast_convert_type((bits + dither) & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), up, x).astype(jnp.bfloat16)


class Store(NamedTuple):
    """How arrays are written in their format; the bits are a function of (seed, update, name, index), not of a mesh.

    Attributes:
        seed: the run's seed.
        at_random: stochastic rounding to bfloat16 instead of rounding to the nearest.
    """

    seed: int
    at_random: bool

    def __call__(
        self, x: jax.Array, dtype: jnp.dtype, name: str, count: jax.Array, layers: np.ndarray | None
    ) -> jax.Array:
        """Write float32 x.

        Args:
            x: the array.
            dtype: the format to store.
            name: its name, such as `mu/layers/moe/experts/up`.
            count: updates applied before this one (int32 scalar).
            layers: number of the layer at each place of the first dimension; None where it enumerates no layers.
        """
        if not self.at_random or dtype != jnp.bfloat16:
            return x.astype(dtype)
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        key = fold(fold(fold(key_words(jax.random.key(self.seed)), _ROUNDING), number), count)
        if layers is None:
            return round_at_random(x, key)
        return jax.vmap(round_at_random)(x, fold(key, layers))
