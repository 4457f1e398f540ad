"""Digests of arrays, computed on the devices that hold them and independent of how they are sharded.

A leaf's digest is the sum, modulo 2**32, of one mixed word for each element: a murmur-style hash of the element's
bits and its global coordinates. The sum does not depend on order, so neither mesh nor process count changes it, and
no device needs another's data but for one 32-bit word. Two words with different salts make 64 bits.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtrain.core.trees import is_key, leaf_paths
from maxtrain.parallel.emulation import settle
from maxtrain.parallel.xla_flags import quick_compile

_SALTS = (0x9E3779B9, 0x7F4A7C15)
_FOLD = 0x01000193


def _mix(word: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3: a bijection of uint32 in which every input bit moves every output bit."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of each element as uint32; 64-bit elements and key data add a last dimension."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    bits = jnp.finfo(leaf.dtype).bits if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.iinfo(leaf.dtype).bits
    if bits < 8:
        return leaf.astype(jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32).view(jnp.uint32)
    word = {8: jnp.uint8, 16: jnp.uint16}.get(bits, jnp.uint32)
    return lax.bitcast_convert_type(leaf, word).astype(jnp.uint32)


def _digest(leaf: jax.Array) -> jax.Array:
    """Digest of one leaf: uint32 [2], both words in one pass, since compiling costs more than running."""
    words = _words(leaf)
    salts = jnp.array(_SALTS, jnp.uint32)
    place = salts.reshape(2, *[1] * words.ndim)
    for dim, size in enumerate(words.shape):
        # Each coordinate is hashed by itself, so that leaves of over 2**32 elements need no 64-bit index.
        coordinate = _mix(lax.broadcasted_iota(jnp.uint32, (2, size), 1) + salts[:, None])
        place = place * jnp.uint32(_FOLD) + coordinate.reshape(2, *[size if d == dim else 1 for d in range(words.ndim)])
    mixed = _mix(words ^ place)
    return jnp.sum(mixed, axis=range(1, mixed.ndim), dtype=jnp.uint32)


@functools.lru_cache(maxsize=64)
def _program(mesh: Mesh | None) -> Any:
    """The jitted digest of one leaf; parameters and their moments share a compilation."""
    # Replicated on its mesh, so that every process can read it.
    return jax.jit(
        _digest,
        out_shardings=NamedSharding(mesh, PartitionSpec()) if mesh is not None else None,
        compiler_options=quick_compile(jax.default_backend()),
    )


def start_digest(leaves: Sequence[tuple[str, jax.Array]]) -> dict[str, jax.Array]:
    """Dispatch the digests of named leaves without waiting; every process must call it.

    The leaves may be donated as soon as this returns.

    Returns:
        For each path, uint32 [2] on its way.
    """
    return {
        path: settle(_program(leaf.sharding.mesh if isinstance(leaf.sharding, NamedSharding) else None)(leaf))
        for path, leaf in leaves
    }


def finish_digest(started: Mapping[str, jax.Array]) -> dict[str, str]:
    """Wait for started digests and write each as 16 hexadecimal digits."""
    return {path: "{:08x}{:08x}".format(*words.tolist()) for path, words in jax.device_get(dict(started)).items()}


def leaf_digest(tree: Any) -> dict[str, str]:
    """Digest every leaf of a tree of JAX arrays on its devices; every process must call it.

    Equal bits at equal coordinates give equal digests on any mesh, device count and process count. Shape and dtype
    are not part of it. Typed PRNG keys count by their key data.

    Returns:
        For each path of `core.trees.leaf_paths`, 16 hexadecimal digits.
    """
    return finish_digest(start_digest(leaf_paths(tree)))
