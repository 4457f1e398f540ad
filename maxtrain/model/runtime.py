"""What every module of a model shares: number formats, kernels, mesh."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from maxtrain.config.schema import BATCH_AXES, PrecisionConfig
from maxtrain.model.kernels.float8 import E4M3
from maxtrain.model.kernels.mxfp8 import E8M0
from maxtrain.parallel.context import place_of
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
    tells_experts: bool = False
    """Whether a layer with experts also tells which ones every token chose."""
    sequence_parallel: bool = False
    """Whether `tensor` divides the residual stream too, along the sequence."""

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
        tells_experts: bool = False,
        zero: int = 3,
        sequence_parallel: bool = False,
    ) -> "Runtime":
        """From the config's section."""
        eight_bit = {"float8": E4M3, "mxfp8": E8M0}
        compute = jnp.dtype("bfloat16" if precision.compute in eight_bit else precision.compute)
        linear = eight_bit.get(precision.compute, compute)
        activations = jnp.dtype(precision.activations)
        divides = sequence_parallel and mesh is not None and mesh.shape["tensor"] > 1
        return cls(
            compute, linear, activations, implementation, mesh, exchange, max_logits, tells_experts, divides, zero
        )

    @property
    def num_context(self) -> int:
        """Ranks over which the tokens of a row are divided; over 1, they lie in ring order (`parallel.context`)."""
        return 1 if self.mesh is None else self.mesh.shape["context"]

    def places(self, num_tokens: int) -> jax.Array | None:
        """int32 place in its row of each token; None where they lie in order."""
        if self.num_context == 1:
            return None
        return place_of(jnp.arange(num_tokens, dtype=jnp.int32), num_tokens, self.num_context)

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Lay an activation out over the mesh by its logical axes.

        A batch or sequence that the ranks do not divide (a prompt, a token) stays whole on each of them.
        """
        if self.mesh is None:
            return x
        if axes[0] == "batch" and x.shape[0] % math.prod(self.mesh.shape[axis] for axis in BATCH_AXES):
            axes = (None, *axes[1:])
        axes = tuple(self._divide(axis, size) for axis, size in zip(axes, x.shape, strict=True))
        return constrain(x, axes, self.mesh)

    def gather(self, weight: jax.Array, *axes: str | None) -> jax.Array:
        """Lay a weight out for use by its logical axes, whole along `fsdp`."""
        if self.mesh is None:
            return weight
        return constrain(shard_gradient(weight, axes, self.mesh) if self.zero == 2 else weight, axes, self.mesh)

    def _divide(self, axis: str | None, num_tokens: int) -> str | None:
        """The logical axis by which so many tokens can be divided."""
        assert self.mesh is not None
        if axis == "residual_sequence":
            whole = self.sequence_parallel and num_tokens % (self.num_context * self.mesh.shape["tensor"]) == 0
            axis = axis if whole else "sequence"
        return None if axis == "sequence" and num_tokens % self.num_context else axis
