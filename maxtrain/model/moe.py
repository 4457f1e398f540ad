"""Mixture-of-experts feed-forward (Shazeer 2017) with shared experts (DeepSeekMoE, Dai 2024)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import ModelConfig, MoeConfig
from maxtrain.model.feed_forward import FeedForward
from maxtrain.model.kernels.experts import experts
from maxtrain.model.parameters import parameter
from maxtrain.model.routing import (
    RouterStats,
    Routing,
    choose_experts,
    drop_padding,
    limit_capacity,
    router_stats,
)
from maxtrain.model.runtime import Runtime
from maxtrain.parallel.exchange import sharded_experts


class Router(nnx.Module):
    """Logits of every expert, in float32 from a float32 input."""

    def __init__(self, width: int, num_experts: int, std: float) -> None:
        self.kernel = parameter((width, num_experts), ("embed", "router"), std=std, num_input_dims=1)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """Returns float32 [B, T, E]."""
        return jnp.einsum("BTD,DE->BTE", x_BTD, self.kernel[...], precision=jax.lax.Precision.HIGHEST)


class Experts(nnx.Module):
    """The routed experts of one layer."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, runtime: Runtime, output_std: float) -> None:
        std = config.init_std * multipliers(config).hidden_std

        def inward() -> nnx.Param:
            return parameter(
                (moe.num_experts, config.d_model, moe.d_expert),
                ("expert", "embed", "mlp"),
                std=std,
                num_batch_dims=1,
                num_input_dims=1,
            )

        self.gate = None if config.activation == "relu2" else inward()
        self.up = inward()
        self.down = parameter(
            (moe.num_experts, moe.d_expert, config.d_model),
            ("expert", "mlp", "embed"),
            std=output_std,
            num_batch_dims=1,
            num_input_dims=1,
        )
        self.runtime = runtime
        self.activation = config.activation

    def __call__(self, x_BTD: jax.Array, routing: Routing, *, may_drop: bool) -> tuple[jax.Array, jax.Array]:
        """Weighted sum of the chosen experts, [B, T, D] of x's dtype; choices dropped in the exchange, float32 [].

        Args:
            x_BTD: input.
            routing: choices.
            may_drop: whether the exchange may drop what it cannot hold, where it is set to.
        """
        exchange = self.runtime.exchange
        compute = partial(
            experts,
            activation=self.activation,
            compute_dtype=self.runtime.linear_dtype,
            implementation="reference" if exchange.kind == "dense" else self.runtime.implementation,
        )
        gate = None if self.gate is None else self.gate[...]
        return sharded_experts(
            x_BTD,
            routing.index_BTk,
            routing.weight_BTk,
            gate,
            self.up[...],
            self.down[...],
            mesh=self.runtime.mesh,
            zero=self.runtime.zero,
            exchange=exchange if may_drop else exchange.exact(),
            sequence_parallel=self.runtime.sequence_parallel,
            compute=compute,
        )


class MixtureOfExperts(nnx.Module):
    """Router, routed experts, and shared experts as one wide feed-forward."""

    def __init__(self, config: ModelConfig, runtime: Runtime, output_std: float) -> None:
        assert config.moe is not None
        moe = config.moe
        self.router = Router(config.d_model, moe.num_experts, config.init_std * multipliers(config).hidden_std)
        self.experts = Experts(config, moe, runtime, output_std)
        shared_width = moe.num_shared * (moe.d_shared or moe.d_expert)
        self.shared = FeedForward(config, runtime, shared_width, output_std) if shared_width else None
        self.runtime = runtime
        self.config = moe

    def __call__(
        self,
        x_BTD: jax.Array,
        bias_E: jax.Array,
        valid_BT: jax.Array,
        weight_BT: jax.Array | None,
        given_BTk: jax.Array | None = None,
    ) -> tuple[jax.Array, RouterStats | None, jax.Array]:
        """Send each token to its experts.

        Args:
            x_BTD: normalised input, float32.
            bias_E: expert bias.
            valid_BT: False for padding, which is routed nowhere.
            weight_BT: loss weights; None in inference, where nothing is dropped and no statistics are made.
            given_BTk: experts to use instead of the router's choice.

        Returns:
            [B, T, D] in the activation dtype, the statistics, and the experts before any is dropped, [B, T, k], -1 for
            padding.
        """
        logits_BTE = checkpoint_name(self.router(x_BTD), "router_logits")
        routing = drop_padding(choose_experts(logits_BTE, bias_E, self.config, given_BTk), valid_BT)
        index_BTk = routing.index_BTk
        stats = None
        if weight_BT is not None:
            kept, dropped = routing, jnp.zeros((), jnp.float32)
            if self.config.capacity_factor is not None:
                kept, dropped = limit_capacity(routing, self.config, self.runtime.places(x_BTD.shape[1]))
            stats = router_stats(
                logits_BTE, routing, dropped, config=self.config, valid_BT=valid_BT, weight_BT=weight_BT
            )
            routing = kept
        x_BTD = x_BTD.astype(self.runtime.activation_dtype)
        y_BTD, dropped = self.experts(x_BTD, routing, may_drop=stats is not None)
        if stats is not None:
            stats = stats._replace(dropped=stats.dropped + dropped)
        if self.shared is not None:
            y_BTD = y_BTD + self.shared(x_BTD)
        return y_BTD, stats, index_BTk
