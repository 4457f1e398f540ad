"""Routing choices and balance statistics against loops over tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import MoeConfig
from maxtrain.model.routing import choose_experts, drop_padding, limit_capacity, router_stats

ROWS, TOKENS, EXPERTS = 3, 10, 8


def moe(**changes):
    return MoeConfig(**{"num_experts": EXPERTS, "top_k": 2, "d_expert": 4, **changes})


@pytest.fixture(scope="module")
def logits():
    return jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, TOKENS, EXPERTS)), jnp.float32)


@pytest.fixture(scope="module")
def valid():
    return jnp.arange(TOKENS) < jnp.array([[10], [6], [0]])


@pytest.fixture(scope="module")
def weights(valid):
    return (valid & (jnp.arange(TOKENS) % 4 != 3)).astype(jnp.float32)


def scores_of(logits, config):
    logits = np.asarray(logits, np.float64)
    if config.score == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


NO_BIAS = jnp.zeros(EXPERTS)


class TestChoice:
    @pytest.mark.parametrize("score", ["softmax", "sigmoid"])
    @pytest.mark.parametrize("normalize", [True, False])
    def test_weights_are_the_chosen_scores(self, logits, score, normalize):
        config = moe(score=score, normalize_top_k=normalize, routed_scale=2.5)
        routing = choose_experts(logits, NO_BIAS, config)
        scores = scores_of(logits, config)
        for at in np.ndindex(ROWS, TOKENS):
            chosen = np.argsort(-scores[at])[:2]
            np.testing.assert_array_equal(routing.index_BTk[at], chosen)
            total = scores[at][chosen].sum() if normalize else 1
            np.testing.assert_allclose(routing.weight_BTk[at], 2.5 * scores[at][chosen] / total, rtol=1e-5)

    def test_bias_moves_the_choice_and_not_the_weights(self, logits):
        bias = jnp.zeros(EXPERTS).at[3].set(10.0)
        config = moe(balance="bias", score="sigmoid", normalize_top_k=False)
        routing = choose_experts(logits, bias, config)
        assert (routing.index_BTk == 3).any(-1).all()
        chosen = np.take_along_axis(scores_of(logits, config), np.asarray(routing.index_BTk), -1)
        np.testing.assert_allclose(routing.weight_BTk, chosen, rtol=1e-5)

    def test_bias_is_for_balance_by_bias_alone(self, logits):
        routings = [choose_experts(logits, bias, moe(score="sigmoid")) for bias in (NO_BIAS, NO_BIAS.at[3].set(10.0))]
        np.testing.assert_array_equal(routings[0].index_BTk, routings[1].index_BTk)

    def test_groups_by_their_best_or_their_two_best(self):
        # Group 0 holds the best expert; group 1 the better pair.
        logits = jnp.asarray([[[3.0, -9, 2.5, 2.4, -9, -9, -9, -9]]])
        best = choose_experts(logits, NO_BIAS, moe(num_groups=4, top_groups=1))
        assert best.index_BTk.tolist() == [[[0, 1]]]
        pair = choose_experts(logits, NO_BIAS, moe(num_groups=4, top_groups=1, score="sigmoid"))
        assert pair.index_BTk.tolist() == [[[2, 3]]]
        bias = NO_BIAS.at[6].set(2.0)
        biased = choose_experts(logits, bias, moe(num_groups=4, top_groups=1, score="sigmoid", balance="bias"))
        assert biased.index_BTk[0, 0, 0] == 6

    def test_top_groups_limit_where_experts_lie(self, logits):
        routing = choose_experts(logits, NO_BIAS, moe(num_groups=4, top_groups=2, top_k=4))
        groups = np.asarray(routing.index_BTk) // 2
        assert all(len(set(token)) == 2 for token in groups.reshape(-1, 4))


class TestCapacity:
    def test_rows_share_nothing_and_first_choices_go_first(self, logits, valid):
        config = moe(capacity_factor=1.0)
        routing = drop_padding(choose_experts(logits, NO_BIAS, config), valid)
        kept, dropped = limit_capacity(routing, config)
        expected, count = np.array(routing.index_BTk), 0
        for row in range(ROWS):
            room = [int(valid[row].sum()) * 2 // EXPERTS] * EXPERTS
            for choice in range(2):
                for token in range(TOKENS):
                    expert = expected[row, token, choice]
                    if expert < 0:
                        continue
                    if room[expert] == 0:
                        expected[row, token, choice], count = -1, count + 1
                    else:
                        room[expert] -= 1
        assert 0 < count < (expected >= 0).sum() + count
        np.testing.assert_array_equal(kept.index_BTk, expected)
        assert dropped == count
        assert (kept.weight_BTk[kept.index_BTk < 0] == 0).all()

    def test_earlier_tokens_go_first_wherever_they_lie(self, logits, valid):
        config = moe(capacity_factor=1.0)
        routing = drop_padding(choose_experts(logits, NO_BIAS, config), valid)
        place = jnp.asarray([3, 8, 0, 9, 1, 2, 7, 4, 6, 5])
        moved, dropped = limit_capacity(jax.tree.map(lambda a: a[:, place], routing), config, place)
        kept, count = limit_capacity(routing, config)
        np.testing.assert_array_equal(moved.index_BTk, kept.index_BTk[:, place])
        np.testing.assert_array_equal(moved.weight_BTk, kept.weight_BTk[:, place])
        assert dropped == count

    def test_a_wide_capacity_drops_nothing(self, logits, valid):
        config = moe(capacity_factor=8.0)
        routing = drop_padding(choose_experts(logits, NO_BIAS, config), valid)
        kept, dropped = limit_capacity(routing, config)
        assert dropped == 0
        np.testing.assert_array_equal(kept.index_BTk, routing.index_BTk)


def stats_of(logits, valid, weights, **changes):
    return _stats(logits, valid, weights, moe(**changes))


@partial(jax.jit, static_argnums=3)
def _stats(logits, valid, weights, config):
    routing = drop_padding(choose_experts(logits, NO_BIAS, config), valid)
    return router_stats(logits, routing, jnp.float32(0), config=config, valid_BT=valid, weight_BT=weights)


class TestStatistics:
    @pytest.mark.parametrize("score", ["softmax", "sigmoid"])
    def test_padding_counts_nowhere_and_sums_are_weighted_by_targets(self, logits, valid, weights, score):
        config = moe(score=score)
        stats = stats_of(logits, valid, weights, score=score)
        scores = scores_of(logits, config)
        normal = scores / scores.sum(-1, keepdims=True)
        load, balance, entropy, z = np.zeros(EXPERTS), 0.0, 0.0, 0.0
        for row in range(ROWS):
            tokens = np.flatnonzero(valid[row])
            counts = np.zeros(EXPERTS)
            for token in tokens:
                counts[np.argsort(-scores[row, token])[:2]] += 1
                entropy -= (normal[row, token] * np.log(normal[row, token])).sum()
                z += float(weights[row, token]) * np.log(np.exp(np.float64(logits[row, token])).sum()) ** 2
            load += counts
            if len(tokens):
                share, mean = counts / len(tokens), normal[row, tokens].mean(0)
                balance += EXPERTS / 2 * (share * mean).sum() * float(weights[row].sum())
        np.testing.assert_array_equal(stats.load_E, load)
        np.testing.assert_allclose(stats.balance_sum, balance, rtol=1e-5)
        np.testing.assert_allclose(stats.entropy_sum, entropy, rtol=1e-5)
        np.testing.assert_allclose(stats.router_z_sum, z, rtol=1e-5)

    def test_global_balance_counts_over_the_whole_batch(self, logits, valid, weights):
        """Two rows with opposite favourites are even together and uneven each alone."""
        even = jnp.full((2, TOKENS, EXPERTS), -4.0)
        opposite = even.at[0, :, :2].set(4.0).at[1, :, 2:4].set(4.0)
        every = jnp.ones((2, TOKENS), bool)
        ones = jnp.ones((2, TOKENS))
        alone = stats_of(opposite, every, ones, balance="sequence").balance_sum
        together = stats_of(opposite, every, ones, balance="global").balance_sum
        assert float(together) == pytest.approx(float(alone) / 2, rel=1e-3)
        row = stats_of(logits[:1], valid[:1], weights[:1], balance="global").balance_sum
        assert float(row) == pytest.approx(float(stats_of(logits[:1], valid[:1], weights[:1]).balance_sum), rel=1e-5)
        assert stats_of(logits, valid, weights, balance="none").balance_sum == 0

    def test_an_even_router_costs_one(self, valid, weights):
        cycle = 5.0 * jax.nn.one_hot(jnp.arange(TOKENS * 4).reshape(4, TOKENS) % EXPERTS, EXPERTS)
        stats = stats_of(cycle, jnp.ones((4, TOKENS), bool), jnp.ones((4, TOKENS)), balance="global", top_k=1)
        assert float(stats.balance_sum) / (4 * TOKENS) == pytest.approx(1.0, rel=1e-3)

    @pytest.mark.parametrize("shift", [0.0, -30.0, -80.0])
    def test_scores_near_zero_do_not_hide_the_load(self, shift):
        """An epsilon in the normalisation would let a sigmoid router cheat by shrinking every score."""
        uneven = jnp.zeros((1, TOKENS, EXPERTS)).at[..., 0].set(6.0).at[..., 1].set(5.0) + shift - 6.0
        ones = jnp.ones((1, TOKENS))

        def loss(logits):
            return stats_of(logits, ones > 0, ones, score="sigmoid").balance_sum / TOKENS

        value, grad = jax.value_and_grad(loss)(uneven)
        assert value > 3.5
        assert grad[..., :2].min() > 1e-4
        routing = choose_experts(uneven, NO_BIAS, moe(score="sigmoid"))
        np.testing.assert_allclose(routing.weight_BTk.sum(-1), 1.0, rtol=1e-5)
