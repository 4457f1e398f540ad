import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.core.errors import UserError
from maxtrain.inference.sample import Sampling, filter_logits, sample

PROBABILITY = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
LOGITS = jnp.log(jnp.asarray(PROBABILITY, jnp.float32))[None]


def kept(sampling):
    return np.flatnonzero(np.isfinite(filter_logits(LOGITS, sampling))[0]).tolist()


def test_filters_keep_the_likeliest():
    assert kept(Sampling()) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_k=2)) == [1, 3]
    assert kept(Sampling(top_k=9)) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_p=0.01)) == [1]
    assert kept(Sampling(top_p=0.6)) == [1, 3]
    assert kept(Sampling(top_p=0.75)) == [1, 3, 4]
    assert kept(Sampling(top_k=2, top_p=0.5)) == [1]


def test_temperature_comes_before_top_p():
    assert kept(Sampling(temperature=0.25, top_p=0.6)) == [1]


def test_draws_have_the_stated_frequencies():
    draws = sample(
        jnp.repeat(LOGITS, 20000, 0), jnp.zeros(20000, jnp.uint32), jnp.arange(20000), Sampling(temperature=0.5)
    )
    expected = PROBABILITY**2 / (PROBABILITY**2).sum()
    np.testing.assert_allclose(np.bincount(draws, minlength=5) / 20000, expected, atol=0.015)


def test_a_draw_is_a_function_of_seed_and_position():
    logits = jax.random.normal(jax.random.key(0), (6, 1000)) * 0.01
    logits = jnp.repeat(logits[:1], 6, 0)
    seeds, positions = jnp.array([1, 1, 2, 2, 1, 1], jnp.uint32), jnp.array([0, 1, 0, 1, 0, 1])
    draws = sample(logits, seeds, positions, Sampling())
    assert draws[:2].tolist() == draws[4:].tolist()
    assert len(set(draws[:4].tolist())) == 4


def test_zero_temperature_takes_the_likeliest():
    assert sample(LOGITS, jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.int32), Sampling(temperature=0)).tolist() == [1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"top_k": -1}, "top_k: -1"),
        ({"top_p": 0.0}, "top_p: 0.0"),
        ({"top_p": 1.5}, "top_p: 1.5"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Sampling(**values)
