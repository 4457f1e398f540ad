"""What every module of a model shares: number formats, kernels, mesh."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from maxtrain.config.schema import PrecisionConfig
from maxtrain.parallel.rules import constrain

Implementation = Literal["auto", "reference"]


@dataclass(frozen=True)
class Context:
    """Static surroundings of a module."""

    compute_dtype: jnp.dtype
    """Operands of matrix products; they accumulate in float32."""
    activation_dtype: jnp.dtype
    """The residual stream."""
    implementation: Implementation
    mesh: Mesh | None

    @classmethod
    def create(cls, precision: PrecisionConfig, implementation: Implementation, mesh: Mesh | None) -> "Context":
        """From the config's section."""
        return cls(jnp.dtype(precision.compute), jnp.dtype(precision.activations), implementation, mesh)

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Lay an activation out over the mesh by its logical axes; the identity without a mesh."""
        return x if self.mesh is None else constrain(x, axes, self.mesh)
