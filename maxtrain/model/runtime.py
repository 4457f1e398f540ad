"""What every module of a model shares: number formats, kernels, mesh."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from maxtrain.config.schema import BATCH_AXES, PrecisionConfig
from maxtrain.parallel.exchange import Exchange
from maxtrain.parallel.rules import constrain

Implementation = Literal["auto", "reference"]


@dataclass(frozen=True)
class Runtime:
    """Static surroundings of a module."""

    compute_dtype: jnp.dtype
    """Operands of matrix products; they accumulate in float32."""
    activation_dtype: jnp.dtype
    """The residual stream."""
    implementation: Implementation
    mesh: Mesh | None
    exchange: Exchange
    """How rows meet experts of other ranks."""
    max_logits: bool = False
    """Whether attention also tells every head's greatest logit."""

    @classmethod
    def create(
        cls,
        precision: PrecisionConfig,
        implementation: Implementation,
        mesh: Mesh | None,
        exchange: Exchange,
        *,
        max_logits: bool = False,
    ) -> "Runtime":
        """From the config's section."""
        compute, activations = jnp.dtype(precision.compute), jnp.dtype(precision.activations)
        return cls(compute, activations, implementation, mesh, exchange, max_logits)

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Lay an activation, or a weight gathered for use, out over the mesh by its logical axes.

        A batch that the ranks do not divide (a prompt) stays whole on each of them.
        """
        if self.mesh is None:
            return x
        if axes[0] == "batch" and x.shape[0] % math.prod(self.mesh.shape[axis] for axis in BATCH_AXES):
            axes = (None, *axes[1:])
        return constrain(x, axes, self.mesh)
