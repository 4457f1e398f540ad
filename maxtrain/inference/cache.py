"""The key–value cache that decoding reads and extends."""

import jax.numpy as jnp

from maxtrain.config.schema import ModelConfig
from maxtrain.model import Cache, Model

_SLOTS = 64
"""Caches are a multiple of this long, so that prompts of near lengths share a compiled program."""


def cache_length(num_tokens: int) -> int:
    """Slots of a cache that holds at least `num_tokens` tokens."""
    return -(-num_tokens // _SLOTS) * _SLOTS


def make_cache(model: Model, batch: int, num_slots: int, dtype: jnp.dtype | None = None) -> Cache:
    """An empty cache.

    Args:
        model: whose layers it serves.
        batch: rows.
        num_slots: longest row, prompt and generated tokens together.
        dtype: of keys and values; None for the compute dtype.

    Returns:
        For each kind of layer, `key` and `value` [layers of that kind, batch, num_slots, kv heads, head dim], zeros.
    """
    config: ModelConfig = model.config
    dtype = model.runtime.compute_dtype if dtype is None else dtype

    def zeros(num_layers: int) -> jnp.ndarray:
        return jnp.zeros((num_layers, batch, num_slots, config.kv_heads, config.dim_per_head), dtype)

    return {kind: {"key": zeros(len(layers)), "value": zeros(len(layers))} for kind, layers in model.layers_of.items()}
