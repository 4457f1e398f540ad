"""Root-mean-square normalisation (Zhang and Sennrich 2019)."""

import jax
import jax.numpy as jnp
from flax import nnx

from maxtrain.model.parameters import parameter


class RMSNorm(nnx.Module):
    """x / rms(x) × scale over the last dimension, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        self.eps = eps
        self.scale = parameter((width,), ("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise [..., width]; the result is float32 for the caller to round."""
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + self.eps) * self.scale[...]
