"""Greatest attention logits against the whole table of scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels.max_logits import max_logits

B, T, N, K, H = 2, 150, 4, 2, 8


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_it_equals_the_table_of_scores(window, packed):
    q, k = (jax.random.normal(jax.random.key(n), (B, T, heads, H)) for n, heads in ((0, N), (1, K)))
    ids = np.ones((B, T), np.int32)
    ids[:, 70:] = 2
    ids[1, 120:] = 0
    found = max_logits(q, k, jnp.asarray(ids) if packed else None, window=window, scale=0.3, compute_dtype=jnp.float32)
    place = np.arange(T)
    seen = np.broadcast_to(place[:, None] >= place[None], (B, T, T))
    if window:
        seen = seen & (place[:, None] - place[None] < window)
    if packed:
        seen = seen & (ids[:, :, None] == ids[:, None]) & (ids[:, :, None] > 0)
    scores = 0.3 * np.einsum("bqnh,bknh->bnqk", q, np.repeat(k, N // K, axis=2))
    expected = np.where(seen[:, None], scores, -np.inf).max((0, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_padding_only_clips_nothing_and_nothing_is_differentiated():
    q, k = jnp.ones((1, 4, N, H)), jnp.ones((1, 4, K, H))
    options = {"window": None, "scale": 1.0, "compute_dtype": jnp.float32}
    assert np.all(np.asarray(max_logits(q, k, jnp.zeros((1, 4), jnp.int32), **options)) < 0)
    gradient = jax.grad(lambda q: max_logits(q, k, None, **options).sum())(q)
    assert not np.any(np.asarray(gradient))
