"""One decoder layer: pre-norm attention, pre-norm feed-forward, dense or mixture of experts."""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import ModelConfig
from maxtrain.core.random_bits import Key, fold, key_words, uniform
from maxtrain.model.attention import GroupedQueryAttention, LayerCache
from maxtrain.model.feed_forward import FeedForward
from maxtrain.model.moe import MixtureOfExperts
from maxtrain.model.norm import RMSNorm
from maxtrain.model.rope import Rotation
from maxtrain.model.routing import RouterStats
from maxtrain.model.runtime import Runtime

Kind = Literal["dense", "moe"]

_ATTENTION_DROPOUT, _FEED_FORWARD_DROPOUT = 0, 1


class Shared(NamedTuple):
    """What every layer reads of the batch, beside the residual stream."""

    rotation: Rotation
    valid_BT: jax.Array
    """False for padding."""
    segment_ids_BT: jax.Array | None
    """int32, 0 = padding; None in decoding."""
    weight_BT: jax.Array | None
    """Loss weights; None in inference."""
    row_keys_B: jax.Array | None
    """Dropout keys; None for no dropout."""
    experts_BTLk: jax.Array | None = None
    """int32 experts to use in each MoE layer; None for those that its router chooses."""

    def experts_of(self, place: jax.Array) -> jax.Array | None:
        """The experts given for one of the MoE layers, [B, T, k], or None."""
        if self.experts_BTLk is None:
            return None
        return jax.lax.dynamic_index_in_dim(self.experts_BTLk, place, axis=2, keepdims=False)

    def only_if(self, works: jax.Array) -> "Shared":
        """The same, or where a layer has no work nothing but padding: no expert runs and no statistics are counted."""
        assert self.segment_ids_BT is not None
        assert self.weight_BT is not None
        return self._replace(
            valid_BT=self.valid_BT & works,
            segment_ids_BT=jnp.where(works, self.segment_ids_BT, 0),
            weight_BT=jnp.where(works, self.weight_BT, 0.0),
        )


class Layer(NamedTuple):
    """What tells one layer of a kind from the others."""

    number: jax.Array
    """int32: its place in the whole decoder."""
    expert_bias_E: jax.Array


class LayerStats(NamedTuple):
    """What one layer tells of a microbatch, beside the residual stream."""

    router: RouterStats | None
    """Sums; None without experts."""
    max_logit_N: jax.Array | None
    """Greatest attention logit of every query head; None where it is not measured."""
    experts_BTk: jax.Array | None
    """int32 experts of every token, -1 for padding; None where the runtime does not ask for them."""


def combine_microbatches(stats: LayerStats, axis: int) -> LayerStats:
    """Statistics of several microbatches as those of one, over an axis of their leaves.

    Experts keep theirs, as [..., M, B, T, k].
    """
    return LayerStats(
        jax.tree.map(lambda leaf: leaf.sum(axis), stats.router),
        jax.tree.map(lambda leaf: leaf.max(axis), stats.max_logit_N),
        jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, -4), stats.experts_BTk),
    )


class Block(nnx.Module):
    """A layer."""

    def __init__(self, config: ModelConfig, runtime: Runtime, kind: Kind) -> None:
        factors = multipliers(config)
        output_std = config.init_std * factors.hidden_std
        if config.depth_scaled_init:
            output_std /= math.sqrt(2 * factors.init_layers)
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = GroupedQueryAttention(config, runtime, output_std)
        self.feed_forward_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward = (
            MixtureOfExperts(config, runtime, output_std)
            if kind == "moe"
            else FeedForward(config, runtime, config.d_ff, output_std)
        )
        self.runtime = runtime
        self.dropout = config.dropout
        self.residual_factor = factors.residual

    def __call__(
        self, x_BTD: jax.Array, shared: Shared, layer: Layer, window: int | None
    ) -> tuple[jax.Array, LayerStats]:
        """Returns the residual stream after the layer, and its statistics."""
        normed_BTD = self.attention_norm(x_BTD).astype(x_BTD.dtype)
        y_BTD, max_logit_N = self.attention(normed_BTD, shared.segment_ids_BT, shared.rotation, window)
        y_BTD = checkpoint_name(y_BTD, "attention_output")
        x_BTD = self._add(x_BTD, y_BTD, shared, layer, _ATTENTION_DROPOUT)
        x_BTD, router, experts_BTk = self._feed_forward(x_BTD, shared, layer)
        return x_BTD, LayerStats(router, max_logit_N, experts_BTk if self.runtime.tells_experts else None)

    def decode(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        shared: Shared,
        layer: Layer,
        window: int | None,
        cache: LayerCache,
    ) -> tuple[jax.Array, LayerCache]:
        """The same with attention to a cache."""
        normed_BTD = self.attention_norm(x_BTD).astype(x_BTD.dtype)
        y_BTD, cache = self.attention.decode(normed_BTD, positions_BT, shared.rotation, window, cache)
        x_BTD, _, _ = self._feed_forward(self._add(x_BTD, y_BTD, shared, layer, _ATTENTION_DROPOUT), shared, layer)
        return x_BTD, cache

    def _feed_forward(
        self, x_BTD: jax.Array, shared: Shared, layer: Layer
    ) -> tuple[jax.Array, RouterStats | None, jax.Array | None]:
        normed_BTD = self.feed_forward_norm(x_BTD)
        stats = experts_BTk = None
        if isinstance(self.feed_forward, MixtureOfExperts):
            given_BTk = shared.experts_of(layer.number - self.feed_forward.config.first_dense)
            y_BTD, stats, experts_BTk = self.feed_forward(
                normed_BTD, layer.expert_bias_E, shared.valid_BT, shared.weight_BT, given_BTk
            )
        else:
            y_BTD = self.feed_forward(normed_BTD.astype(x_BTD.dtype))
        y_BTD = checkpoint_name(y_BTD, "feed_forward_output")
        return self._add(x_BTD, y_BTD, shared, layer, _FEED_FORWARD_DROPOUT), stats, experts_BTk

    def _add(self, x_BTD: jax.Array, y_BTD: jax.Array, shared: Shared, layer: Layer, purpose: int) -> jax.Array:
        if self.dropout and shared.row_keys_B is not None:
            place_T = self.runtime.places(x_BTD.shape[1])
            y_BTD = drop_out(y_BTD, shared.row_keys_B, layer.number, purpose, self.dropout, place_T)
        if self.residual_factor != 1:
            y_BTD = y_BTD * self.residual_factor
        return self.runtime.constrain(x_BTD + y_BTD, "batch", "residual_sequence", "embed")


def drop_out(
    x_BTD: jax.Array,
    row_keys_B: jax.Array,
    layer: jax.Array,
    purpose: int,
    rate: float,
    place_T: jax.Array | None = None,
) -> jax.Array:
    """Dropout (Srivastava 2014) whose mask is a function of (row's key, layer, purpose, place in the row) alone.

    Neither the mesh nor the cut into microbatches changes a row's mask.

    Args:
        x_BTD: values.
        row_keys_B: typed keys.
        layer: number of the layer.
        purpose: which of the layer's dropouts.
        rate: share of values to drop.
        place_T: place in its row of each token; None where they lie in order.
    """

    def mask(key: Key) -> jax.Array:
        return uniform(fold(fold(key, layer), purpose), x_BTD.shape[1:], place_T) >= rate

    keep = 1 - rate
    scaled = x_BTD / keep if keep else jnp.zeros_like(x_BTD)
    return jnp.where(jax.vmap(mask)(key_words(row_keys_B)), scaled, 0)
