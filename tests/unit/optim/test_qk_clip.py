"""QK-clip: every head is scaled by its own factor, whether it shares its keys or not."""

import jax.numpy as jnp
import numpy as np

from maxtrain.optim import clip_factors


def test_each_heads_logits_are_scaled_by_its_own_factor():
    logits = np.array([[50.0, 200.0, 100.0, 400.0], [1.0, 2.0, 3.0, -1e30]], np.float32)
    factors = clip_factors({"moe": jnp.asarray(logits)}, 100.0, 2)
    queries = np.asarray(factors["layers/moe/attention/query"]).reshape(2, 4)
    keys = np.asarray(factors["layers/moe/attention/key"]).reshape(2, 2)
    product = queries * np.repeat(keys, 2, axis=1)
    expected = np.array([[1, 0.5, 1, 0.25], [1, 1, 1, 1]])
    np.testing.assert_allclose(product, expected, rtol=1e-6)
    np.testing.assert_allclose(keys, [[0.5**0.5, 0.5], [1, 1]], rtol=1e-6)  # half of the worst head's
    np.testing.assert_array_equal(queries[1], 1.0)


def test_without_sharing_queries_and_keys_take_half_each():
    factors = clip_factors({"dense": jnp.array([[400.0, 10.0]])}, 100.0, 2)
    for name in ("query", "key"):
        np.testing.assert_allclose(np.asarray(factors[f"layers/dense/attention/{name}"]).reshape(-1), [0.5, 1.0])
