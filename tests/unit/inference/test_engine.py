"""Decoding with a cache against full forward passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.core.errors import UserError
from maxtrain.inference.cache import cache_length, make_cache
from maxtrain.inference.engine import Engine
from maxtrain.inference.sample import Sampling

GREEDY = Sampling(temperature=0)
PROMPTS = [[3, 7, 1, 9, 30, 2, 4], [5], [8, 8, 2]]


@pytest.fixture(scope="module")
def next_logits(model, params, bias):
    """Logits after a sequence, by a full forward pass without a cache; padded to one shape behind the end."""
    full = jax.jit(model.logits)

    def run(tokens):
        padded = np.zeros((1, 24), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(full(params, padded, expert_bias=bias))[0, len(tokens) - 1]

    return run


@pytest.fixture(scope="module")
def engine(model, params, bias):
    return Engine(model, params, bias, end_id=None)


def test_decode_equals_the_full_forward_pass(model, params, bias):
    """A prompt of several tokens, then one at a time; rows of different lengths, so one is padded."""
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12)).astype(np.int32)
    full = jax.jit(model.logits)(params, tokens, expert_bias=bias)
    decode = jax.jit(model.decode)
    cache = make_cache(model, 2, cache_length(12))
    lengths = np.array([6, 4])
    positions = np.where(np.arange(6) < lengths[:, None], np.arange(6), -1)
    logits, cache = decode(params, tokens[:, :6], positions, cache, expert_bias=bias)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(logits[row, :length], full[row, :length], rtol=1e-4, atol=1e-4)
    assert np.isfinite(logits).all()
    for turn in range(6):
        at = lengths + turn
        logits, cache = decode(params, tokens[np.arange(2), at][:, None], at[:, None], cache, expert_bias=bias)
        np.testing.assert_allclose(logits[:, 0], full[np.arange(2), at], rtol=1e-4, atol=1e-4)


def test_greedy_rows_are_those_of_full_forward_passes(engine, next_logits):
    completions = engine.generate(PROMPTS, 8, GREEDY, seeds=[0, 0, 0])
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        tokens = list(prompt)
        for token, log_prob in zip(completion.tokens, completion.log_probs, strict=True):
            logits = next_logits(tokens)
            assert token == logits.argmax()
            expected = float(logits[token] - jax.nn.logsumexp(jnp.asarray(logits)))
            assert log_prob == pytest.approx(expected, abs=1e-4)
            tokens.append(token)
        assert len(completion.tokens) == 8
        assert completion.stop_reason == "length"


def test_a_row_ends_at_the_end_token_and_the_others_go_on(model, params, bias, engine):
    plain = engine.generate(PROMPTS, 8, GREEDY, seeds=[0, 0, 0])
    end = plain[0].tokens[3]
    stop = plain[0].tokens.index(end)
    ended = Engine(model, params, bias, end_id=end).generate(PROMPTS, 8, GREEDY, seeds=[0, 0, 0])
    assert ended[0].tokens == plain[0].tokens[:stop]
    assert len(ended[0].log_probs) == stop
    assert ended[0].stop_reason == "end"
    for row in (1, 2):
        until = plain[row].tokens.index(end) if end in plain[row].tokens else 8
        assert ended[row].tokens == plain[row].tokens[:until]


def test_a_rows_draws_follow_its_seed_and_not_its_neighbours(engine):
    warm = Sampling(temperature=1.5)
    first = engine.generate(PROMPTS, 8, warm, seeds=[4, 5, 6])
    again = engine.generate(PROMPTS[::-1], 8, warm, seeds=[6, 5, 4])[::-1]
    assert [c.tokens for c in first] == [c.tokens for c in again]
    other = engine.generate(PROMPTS, 8, warm, seeds=[7, 5, 6])
    assert other[0].tokens != first[0].tokens
    assert other[1].tokens == first[1].tokens


def test_tokens_behind_the_tokenizer_are_never_drawn(model, params, bias):
    engine = Engine(model, params, bias, end_id=None, num_tokens=10)
    (completion,) = engine.generate([[5]], 8, Sampling(temperature=100.0), seeds=[0])
    assert max(completion.tokens) < 10


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "seeds", "message"),
    [
        ([[]], 1, [0], "prompt 0 is empty"),
        ([[1], [50]], 1, [0, 0], "prompt 1 holds a token outside the vocabulary of 50"),
        ([[-1]], 1, [0], "prompt 0 holds a token outside"),
        ([[1]], -1, [0], "max_tokens: -1"),
        ([[1]], 1, [-1], "seed: -1"),
    ],
)
def test_bad_requests_are_refused(engine, prompts, max_tokens, seeds, message):
    with pytest.raises(UserError, match=message):
        engine.generate(prompts, max_tokens, GREEDY, seeds=seeds)
