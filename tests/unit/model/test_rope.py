"""Rotary frequencies against the papers' formulas, written out pair by pair."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import RopeConfig, RopeScaling
from maxtrain.model.rope import make_rotation, rope_frequencies, rotate


def base(head_dim, theta):
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def scaled(kind, **values):
    return RopeConfig(theta=500000.0, scaling=RopeScaling(kind=kind, original_length=8192, **values))


def test_plain_and_linear():
    frequency, factor = rope_frequencies(64, RopeConfig(theta=10000.0))
    np.testing.assert_allclose(frequency, base(64, 10000.0), rtol=1e-6)
    assert factor == 1
    frequency, factor = rope_frequencies(64, scaled("linear", factor=4.0))
    np.testing.assert_allclose(frequency, np.array(base(64, 500000.0)) / 4, rtol=1e-6)
    assert factor == 1


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between():
    frequency, factor = rope_frequencies(128, scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0))
    expected, kinds = [], set()
    for value in base(128, 500000.0):
        wave = 2 * math.pi / value
        if wave < 8192 / 4:
            expected.append(value)
            kinds.add("kept")
        elif wave > 8192 / 1:
            expected.append(value / 8)
            kinds.add("stretched")
        else:
            smooth = (8192 / wave - 1) / (4 - 1)
            expected.append((1 - smooth) * value / 8 + smooth * value)
            kinds.add("blended")
    assert len(kinds) == 3
    np.testing.assert_allclose(frequency, expected, rtol=1e-6)
    assert factor == 1


def test_yarn_ramps_between_the_two_turn_counts_and_warms_the_attention():
    config = scaled("yarn", factor=16.0, beta_fast=32.0, beta_slow=1.0)
    frequency, factor = rope_frequencies(128, config)

    def pair_that_turns(times):
        return 128 * math.log(8192 / (times * 2 * math.pi)) / (2 * math.log(500000.0))

    low, high = math.floor(pair_that_turns(32)), math.ceil(pair_that_turns(1))
    assert 0 < low < high < 63
    expected = []
    for i, value in enumerate(base(128, 500000.0)):
        stretched = min(max((i - low) / (high - low), 0), 1)
        expected.append(stretched * value / 16 + (1 - stretched) * value)
    np.testing.assert_allclose(frequency, expected, rtol=1e-6)
    assert factor == pytest.approx(0.1 * math.log(16) + 1)


def test_scores_depend_on_distance_alone_and_scale_with_the_temperature():
    q, k = (jnp.asarray(np.random.default_rng(i).normal(size=(1, 1, 1, 16)), jnp.float32) for i in range(2))

    def score(config, at_query, at_key):
        turned = [rotate(x, make_rotation(jnp.array([[at]]), 16, config)) for x, at in ((q, at_query), (k, at_key))]
        return float((turned[0] * turned[1]).sum())

    plain = RopeConfig()
    assert score(plain, 7, 3) == pytest.approx(score(plain, 104, 100), rel=1e-4)
    assert score(plain, 7, 3) != pytest.approx(score(plain, 57, 3), rel=1e-2)
    assert score(plain, 5, 5) == pytest.approx(float((q * k).sum()), rel=1e-5)
    warm = scaled("yarn", factor=16.0)
    assert score(warm, 5, 5) == pytest.approx(float((q * k).sum()) * (0.1 * math.log(16) + 1) ** 2, rel=1e-5)


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="even head_dim, not 7"):
        rope_frequencies(7, RopeConfig())
