"""Choosing the next token from its logits.

B rows  V vocabulary
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from maxtrain.core.errors import UserError
from maxtrain.core.random_bits import fold, uniform

_LEAST = 2.0**-24
"""Stands for a random number of 0, whose logarithm is not finite."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Filters apply in the order temperature, top_k, top_p."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach p (Holtzman 2020); 1 for all."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature: {self.temperature} is not a finite number >= 0")
        if self.top_k < 0:
            raise UserError(f"top_k: {self.top_k} is below 0; 0 keeps all tokens")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p} is not in (0, 1]; 1 keeps all tokens")


def filter_logits(logits_BV: jax.Array, sampling: Sampling) -> jax.Array:
    """Logits over the temperature, minus infinity for tokens that are not kept; temperature over 0."""
    logits_BV = logits_BV / sampling.temperature
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        least_B1 = jax.lax.top_k(logits_BV, sampling.top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
    if sampling.top_p < 1:
        sorted_BV = -jnp.sort(-logits_BV, axis=-1)
        probability_BV = jax.nn.softmax(sorted_BV, axis=-1)
        before_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
        # The likeliest token has nothing before it, so at least one is kept.
        least_B1 = jnp.where(before_BV < sampling.top_p, sorted_BV, jnp.inf).min(-1, keepdims=True)
        logits_BV = jnp.where(logits_BV >= least_B1, logits_BV, -jnp.inf)
    return logits_BV


def sample(logits_BV: jax.Array, seeds_B: jax.Array, positions_B: jax.Array, sampling: Sampling) -> jax.Array:
    """Draw the next token of each row.

    The draw is a function of (seed, position, logits): rows do not depend on each other, and a row that is continued
    draws what it would have drawn without the interruption.

    Args:
        logits_BV: float32.
        seeds_B: uint32 seed of each row.
        positions_B: int32 position of the token to draw.
        sampling: how.

    Returns:
        int32 [B].
    """
    if sampling.temperature == 0:
        return logits_BV.argmax(-1).astype(jnp.int32)

    def draw(seed: jax.Array, position: jax.Array, logits_V: jax.Array) -> jax.Array:
        # The largest of logits with Gumbel noise is a draw from their softmax.
        noise_V = uniform(fold((jnp.zeros_like(seed), seed), position), (1, logits_V.shape[0]))[0]
        return jnp.argmax(logits_V - jnp.log(-jnp.log(jnp.maximum(noise_V, _LEAST))))

    return jax.vmap(draw)(seeds_B, positions_B, filter_logits(logits_BV, sampling)).astype(jnp.int32)
