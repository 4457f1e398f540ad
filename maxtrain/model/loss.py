"""What a loss is made of: the tokens' cross-entropy and what the layers add to it.

B rows  T tokens  E experts
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from maxtrain.config.schema import ModelConfig
from maxtrain.model.block import Kind, LayerStats
from maxtrain.model.routing import RouterStats


class LossAux(NamedTuple):
    """What a loss is made of, as float32 sums over the batch: microbatches add up."""

    nll_B: jax.Array
    """Weighted sum of the negative log-likelihoods of each row, in nats."""
    weight_B: jax.Array
    """Weights of each row's targets."""
    z_sum: jax.Array
    """Σ weight × logsumexp(logits)², without z_weight."""
    balance_sum: jax.Array
    """Σ over layers and rows of balance loss × target tokens, without balance_weight."""
    router_z_sum: jax.Array
    """Σ over layers and target tokens of logsumexp(router logits)², without moe.z_weight."""
    expert_load: jax.Array
    """[MoE layers, E]: tokens that chose each expert, padding excluded."""
    router_entropy_sum: jax.Array
    """[MoE layers]: Σ over tokens that are no padding of the router's entropy, in nats."""
    dropped: jax.Array
    """[MoE layers]: choices dropped for capacity, or in an exchange that may drop."""
    max_logits: dict[str, jax.Array]
    """[layers, query heads] by kind of layer: greatest attention logits, which add up by their maximum; empty where
    they are not measured."""


def add_up(
    config: ModelConfig,
    total: jax.Array,
    tokens: tuple[jax.Array, jax.Array, jax.Array],
    found: Mapping[Kind, LayerStats],
) -> tuple[jax.Array, LossAux]:
    """Add the routers' losses to that of the tokens.

    Args:
        config: the weights of the losses.
        total: Σ weight × (nll + z_weight × logsumexp²).
        tokens: weights, nll and logsumexp² of every token, [..., B, T].
        found: what the layers of each kind tell, stacked over them.

    Returns:
        The whole loss, and its parts; per-row values are [..., B].
    """
    weights_BT, nll_BT, z_BT = tokens
    stats = next((layers.router for layers in found.values() if layers.router is not None), None)
    if stats is None:
        none = jnp.zeros((0,), jnp.float32)
        stats = RouterStats(none, none, jnp.zeros((0, 0), jnp.float32), none, none)
    balance_sum, router_z_sum = stats.balance_sum.sum(), stats.router_z_sum.sum()
    if config.moe is not None:
        total += config.moe.balance_weight * balance_sum if config.moe.balance != "none" else jnp.float32(0)
        total += config.moe.z_weight * router_z_sum
    return total, LossAux(
        nll_B=jnp.where(weights_BT == 0, 0.0, weights_BT * nll_BT).sum(-1),
        weight_B=weights_BT.sum(-1),
        z_sum=jnp.where(weights_BT == 0, 0.0, weights_BT * z_BT).sum(),
        balance_sum=balance_sum,
        router_z_sum=router_z_sum,
        expert_load=stats.load_E,
        router_entropy_sum=stats.entropy_sum,
        dropped=stats.dropped,
        max_logits={kind: layers.max_logit_N for kind, layers in found.items() if layers.max_logit_N is not None},
    )
