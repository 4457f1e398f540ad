"""What every module of a model shares: number formats, kernels, mesh."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from maxtrain.config.schema import BATCH_AXES, PrecisionConfig
from maxtrain.model.kernels.float8 import E4M3
from maxtrain.parallel.exchange import Exchange
from maxtrain.parallel.rules import constrain, shard_gradient

Implementation = Literal["auto", "reference"]


@dataclass(frozen=True)
class Runtime:
    """Static surroundings of a module."""

    compute_dtype: jnp.dtype
    """Operands of attention's products and of the output projection; they accumulate in float32."""
    linear_dtype: jnp.dtype
    """Operands of products with the weights of attention, feed-forwards and experts."""
    activation_dtype: jnp.dtype
    """The residual stream."""
    implementation: Implementation
    mesh: Mesh | None
    exchange: Exchange
    """How rows meet experts of other ranks."""
    max_logits: bool = False
    """Whether attention also tells every head's greatest logit."""

    zero: int = 3
    """mesh.zero of the config."""

    @classmethod
    def create(
        cls,
        precision: PrecisionConfig,
        implementation: Implementation,
        mesh: Mesh | None,
        exchange: Exchange,
        *,
        max_logits: bool = False,
        zero: int = 3,
    ) -> "Runtime":
        """From the config's section."""
        low = precision.compute == "float8"
        compute = jnp.dtype("bfloat16" if low else precision.compute)
        linear = E4M3 if low else compute
        activations = jnp.dtype(precision.activations)
        return cls(compute, linear, activations, implementation, mesh, exchange, max_logits, zero)

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Lay an activation out over the mesh by its logical axes.

        A batch that the ranks do not divide (a prompt) stays whole on each of them.
        """
        if self.mesh is None:
            return x
        if axes[0] == "batch" and x.shape[0] % math.prod(self.mesh.shape[axis] for axis in BATCH_AXES):
            axes = (None, *axes[1:])
        return constrain(x, axes, self.mesh)

    def gather(self, weight: jax.Array, *axes: str | None) -> jax.Array:
        """Lay a weight out for use by its logical axes, whole along `fsdp`."""
        if self.mesh is None:
            return weight
        return constrain(shard_gradient(weight, axes, self.mesh) if self.zero == 2 else weight, axes, self.mesh)
