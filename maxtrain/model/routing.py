"""Which experts a token is sent to, and what keeps their load even.

Scores are handled as logarithms, so that normalising them needs no epsilon: with one, a sigmoid router could shrink
all its scores and hide an uneven load from the balance loss.

B batch  T tokens  E experts  k choices of a token
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from maxtrain.config.schema import MoeConfig


class Routing(NamedTuple):
    """The chosen experts of every token."""

    index_BTk: jax.Array
    """int32; -1 for padding and for what exceeds an expert's capacity."""
    weight_BTk: jax.Array
    """float32; 0 where the index is -1."""


class RouterStats(NamedTuple):
    """What one layer's router did, as sums over the batch; float32."""

    balance_sum: jax.Array
    """Σ over rows of balance loss × target tokens, without balance_weight."""
    router_z_sum: jax.Array
    """Σ over target tokens of logsumexp(logits)², without z_weight."""
    load_E: jax.Array
    """Tokens that chose each expert, padding excluded, dropped ones included."""
    entropy_sum: jax.Array
    """Σ over tokens that are no padding of the entropy of their normalised scores, in nats."""
    dropped: jax.Array
    """Choices dropped for capacity, or in an exchange that may drop."""


def log_scores(logits_BTE: jax.Array, config: MoeConfig) -> jax.Array:
    """Logarithm of the router's scores."""
    if config.score == "softmax":
        return jax.nn.log_softmax(logits_BTE, axis=-1)
    return jax.nn.log_sigmoid(logits_BTE)


def choose_experts(
    logits_BTE: jax.Array, bias_E: jax.Array, config: MoeConfig, given_BTk: jax.Array | None = None
) -> Routing:
    """Pick the top k experts of every token, or take the given ones at the weights that the logits give them.

    The bias (balance `bias`) moves the choice and never the weights (Wang 2024). With groups, only experts of the
    best groups can be chosen; a group is scored by the sum of its two best experts for sigmoid scores or bias
    (DeepSeek-V3), else by its best (DeepSeek-V2).

    Args:
        logits_BTE: float32.
        bias_E: expert bias.
        config: routing choices.
        given_BTk: int32 experts to use instead of choosing; what stands at padding does not matter.
    """
    log_BTE = log_scores(logits_BTE, config)
    index_BTk = _best_experts(log_BTE, bias_E, config) if given_BTk is None else given_BTk
    chosen_BTk = jnp.take_along_axis(log_BTE, index_BTk, axis=-1)
    weight_BTk = jax.nn.softmax(chosen_BTk, axis=-1) if config.normalize_top_k else jnp.exp(chosen_BTk)
    return Routing(index_BTk, weight_BTk * config.routed_scale)


def _best_experts(log_BTE: jax.Array, bias_E: jax.Array, config: MoeConfig) -> jax.Array:
    """The experts of every token by score, groups and bias, int32 [B, T, k]."""
    biased = config.balance == "bias"
    choice_BTE = jnp.exp(log_BTE) + bias_E if biased else log_BTE
    if config.num_groups > 1:
        score_BTE = choice_BTE if biased else jnp.exp(log_BTE)
        choice_BTE = jnp.where(_in_top_groups(score_BTE, config, biased), choice_BTE, -jnp.inf)
    return top_indices(jax.lax.stop_gradient(choice_BTE), config.top_k)


def top_indices(score_BTE: jax.Array, k: int) -> jax.Array:
    """Indices of the k greatest along the last dimension, int32, greatest first, of equal ones the first.

    By k maxima: XLA does not divide its own top-k over ranks, but gathers all of their rows on each (jax 0.10).
    """
    places, chosen = jnp.arange(score_BTE.shape[-1]), []
    for _ in range(k):
        chosen.append(jnp.argmax(score_BTE, axis=-1).astype(jnp.int32))
        score_BTE = jnp.where(places == chosen[-1][..., None], -jnp.inf, score_BTE)
    return jnp.stack(chosen, axis=-1)


def _in_top_groups(score_BTE: jax.Array, config: MoeConfig, biased: bool) -> jax.Array:
    """Whether each expert lies in one of the token's best groups."""
    group_size = config.num_experts // config.num_groups
    grouped = score_BTE.reshape(*score_BTE.shape[:-1], config.num_groups, group_size)
    best = min(2, group_size) if biased or config.score == "sigmoid" else 1
    group_score = jnp.take_along_axis(grouped, top_indices(grouped, best), axis=-1).sum(-1)
    groups = top_indices(group_score, config.top_groups)
    allowed = (groups[..., None] == jnp.arange(config.num_groups)).any(-2)
    return jnp.repeat(allowed, group_size, axis=-1)


def drop_padding(routing: Routing, valid_BT: jax.Array) -> Routing:
    """Send padding tokens nowhere."""
    valid = valid_BT[..., None]
    return Routing(jnp.where(valid, routing.index_BTk, -1), jnp.where(valid, routing.weight_BTk, 0.0))


def limit_capacity(routing: Routing, config: MoeConfig, place_T: jax.Array | None = None) -> tuple[Routing, jax.Array]:
    """Drop what exceeds capacity_factor × tokens × top_k / num_experts tokens of a row at one expert.

    First choices go before second choices, and within them earlier tokens before later ones (GShard, Lepikhin 2020).
    Tokens are those of the row that are no padding.

    Args:
        routing: choices.
        config: capacity.
        place_T: place in its row of each token; None where they lie in order.

    Returns:
        The routing, and the number of choices dropped.
    """
    assert config.capacity_factor is not None
    index_BTk = routing.index_BTk
    batch, tokens, top_k = index_BTk.shape
    num_tokens_B = (index_BTk[..., 0] >= 0).sum(-1)
    share = config.capacity_factor * top_k / config.num_experts
    capacity_B = jnp.floor(num_tokens_B * share + 1e-4)
    natural_BTk = index_BTk if place_T is None else index_BTk[:, jnp.argsort(place_T)]
    in_order = jnp.swapaxes(natural_BTk, 1, 2).reshape(batch, top_k * tokens)
    chosen = in_order[..., None] == jnp.arange(config.num_experts)
    rank = (jnp.cumsum(chosen, axis=1) * chosen).sum(-1)
    fits = (rank <= capacity_B[:, None]).reshape(batch, top_k, tokens).swapaxes(1, 2)
    if place_T is not None:
        fits = fits[:, place_T]
    dropped = (~fits & (index_BTk >= 0)).sum().astype(jnp.float32)
    return Routing(jnp.where(fits, index_BTk, -1), jnp.where(fits, routing.weight_BTk, 0.0)), dropped


def router_stats(
    logits_BTE: jax.Array,
    routing: Routing,
    dropped: jax.Array,
    *,
    config: MoeConfig,
    valid_BT: jax.Array,
    weight_BT: jax.Array,
) -> RouterStats:
    """Statistics and losses of one layer's router.

    The balance loss of a row is E / k × Σ_e (share of the row's tokens that chose e, without gradient) × (mean
    normalised score of e): 1 when even (Switch, Fedus 2021; DeepSeek-V3 eq. 17–20). `global` takes both factors over
    the whole batch (Qiu 2025).

    Args:
        logits_BTE: the router's logits.
        routing: before capacity.
        dropped: choices dropped for capacity.
        config: balance.
        valid_BT: False for padding.
        weight_BT: loss weights of the targets.
    """
    log_BTE = log_scores(logits_BTE, config)
    log_normal_BTE = log_BTE - jax.nn.logsumexp(log_BTE, axis=-1, keepdims=True)
    score_BTE = jnp.where(valid_BT[..., None], jnp.exp(log_normal_BTE), 0.0)
    entropy_sum = -(score_BTE * log_normal_BTE).sum()

    load_BE = (routing.index_BTk[..., None] == jnp.arange(config.num_experts)).astype(jnp.float32).sum((1, 2))
    score_BE, tokens_B, weight_B = score_BTE.sum(1), valid_BT.sum(-1).astype(jnp.float32), weight_BT.sum(-1)
    factor = config.num_experts / config.top_k
    if config.balance == "global":
        tokens = jnp.maximum(tokens_B.sum(), 1.0)
        balance_sum = factor * (load_BE.sum(0) / tokens) @ (score_BE.sum(0) / tokens) * weight_B.sum()
    elif config.balance == "none":
        balance_sum = jnp.zeros((), jnp.float32)
    else:
        tokens_B1 = jnp.maximum(tokens_B, 1.0)[:, None]
        balance_B = factor * ((load_BE / tokens_B1) * (score_BE / tokens_B1)).sum(-1)
        balance_sum = (balance_B * weight_B).sum()

    z_BT = jnp.square(jax.nn.logsumexp(logits_BTE, axis=-1))
    return RouterStats(balance_sum, (z_BT * weight_BT).sum(), load_BE.sum(0), entropy_sum, dropped)
