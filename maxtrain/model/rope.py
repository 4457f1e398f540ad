"""Rotary position embedding (Su 2021) with linear, llama3 and YaRN scaling."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from maxtrain.config.schema import RopeConfig


class Rotation(NamedTuple):
    """Cosines and sines of every position, float32 [B, T, H / 2]."""

    cos: jax.Array
    sin: jax.Array


def rope_frequencies(head_dim: int, config: RopeConfig) -> tuple[np.ndarray, float]:
    """Angle per position of each pair of dimensions, and the factor on cosines and sines.

    Sources: linear, Chen 2023 (arXiv 2306.15595); llama3, the Llama 3.1 reference code; yarn, Peng 2023 (arXiv
    2309.00071) sections 3.2 (ramp) and 3.4 (temperature 0.1 ln(factor) + 1 on queries and keys alike).

    Args:
        head_dim: width of a head, even.
        config: base and scaling.

    Returns:
        float32 [head_dim / 2], and the factor (1 but for yarn).
    """
    if head_dim % 2:
        raise ValueError(f"rotary positions need an even head_dim, not {head_dim}")
    pairs = np.arange(0, head_dim, 2, dtype=np.float64)
    frequency = config.theta ** (-pairs / head_dim)
    scaling = config.scaling
    if scaling is None:
        return frequency.astype(np.float32), 1.0
    stretched = frequency / scaling.factor
    if scaling.kind == "linear":
        return stretched.astype(np.float32), 1.0
    original_length = scaling.original_length
    if original_length is None:
        raise ValueError(f"{scaling.kind} scaling needs original_length")
    if scaling.kind == "llama3":
        turns = original_length * frequency / (2 * math.pi)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = np.clip(keep, 0.0, 1.0)
        return (keep * frequency + (1 - keep) * stretched).astype(np.float32), 1.0

    def dimension_of(turns: float) -> float:
        """Pair (as a real number) that turns so often over the original length."""
        length = original_length / (turns * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(config.theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), head_dim - 1)
    interpolate = np.clip((pairs / 2 - low) / max(high - low, 1e-3), 0.0, 1.0)
    mixed = interpolate * stretched + (1 - interpolate) * frequency
    temperature = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return mixed.astype(np.float32), temperature


def make_rotation(positions_BT: jax.Array, head_dim: int, config: RopeConfig) -> Rotation:
    """Cosines and sines of positions, once for all layers."""
    frequency, factor = rope_frequencies(head_dim, config)
    angle = positions_BT.astype(jnp.float32)[..., None] * frequency
    return Rotation(jnp.cos(angle) * factor, jnp.sin(angle) * factor)


def rotate(x_BTNH: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate each head, its first half paired with its second (the layout of public checkpoints), in float32."""
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    cos, sin = rotation.cos[:, :, None, :], rotation.sin[:, :, None, :]
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1).astype(x_BTNH.dtype)
