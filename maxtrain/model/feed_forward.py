"""Dense feed-forward: SwiGLU, GeGLU (Shazeer 2020) or squared ReLU (So 2021)."""

from functools import partial

import jax
from flax import nnx

from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import ModelConfig
from maxtrain.model.kernels.feed_forward import feed_forward
from maxtrain.model.parameters import parameter
from maxtrain.model.runtime import Runtime
from maxtrain.parallel.dispatch import sharded_feed_forward


class FeedForward(nnx.Module):
    """Feed-forward of one layer; also all shared experts of a layer as one."""

    def __init__(self, config: ModelConfig, runtime: Runtime, width: int, output_std: float) -> None:
        std = config.init_std * multipliers(config).hidden_std

        def inward() -> nnx.Param:
            return parameter((config.d_model, width), ("embed", "mlp"), std=std, num_input_dims=1)

        self.gate = None if config.activation == "relu2" else inward()
        self.up = inward()
        self.down = parameter((width, config.d_model), ("mlp", "embed"), std=output_std, num_input_dims=1)
        self.runtime = runtime
        self.activation = config.activation

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """Returns [B, T, D] of x's dtype."""
        compute = partial(
            feed_forward,
            activation=self.activation,
            compute_dtype=self.runtime.linear_dtype,
            implementation=self.runtime.implementation,
        )
        gate = None if self.gate is None else self.gate[...]
        y_BTD = sharded_feed_forward(
            x_BTD,
            gate,
            self.up[...],
            self.down[...],
            mesh=self.runtime.mesh,
            zero=self.runtime.zero,
            sequence_parallel=self.runtime.sequence_parallel,
            compute=compute,
        )
        return y_BTD.astype(x_BTD.dtype)
