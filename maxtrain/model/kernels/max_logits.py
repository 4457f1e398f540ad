"""The greatest attention logit of every head, for QK-clip: a pass of its own, so that it is exact beside any kernel.

B batch  T tokens  N query heads  K kv heads  G = N / K query heads of a kv head  H head dim  Q queries of a block
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.common import product

_QUERIES = 128
"""Queries of a block: scores of [B, N, Q, T] are all that it holds."""
_MASKED = -1e30


def max_logits(
    q_BTNH: Array,
    k_BTKH: Array,
    segment_ids_BT: Array | None,
    *,
    window: int | None,
    scale: float,
    compute_dtype: Any,
    place_T: Array | None = None,
) -> Array:
    """Greatest scaled score over all pairs that attention looks at.

    Args:
        q_BTNH: queries, rotated.
        k_BTKH: keys, rotated; query head n reads kv head n // (N / K).
        segment_ids_BT: int32 documents of a row; 0 is padding, which sees nothing and is not seen. None for one.
        window: a token sees itself and window - 1 tokens before it; None for all.
        scale: factor on the scores.
        compute_dtype: type of the products' operands.
        place_T: place in its row of each token; None where they lie in order.

    Returns:
        [N] float32, -1e30 where a batch is padding only; it has no gradient.
    """
    B, T, N, H = q_BTNH.shape
    K = k_BTKH.shape[2]
    ids_BT = jnp.ones((B, T), jnp.int32) if segment_ids_BT is None else segment_ids_BT
    blocks = -(-T // _QUERIES)
    size = -(-T // blocks)
    fill = ((0, 0), (0, blocks * size - T))
    q_BTKGH = jnp.pad(lax.stop_gradient(q_BTNH), (*fill, (0, 0), (0, 0))).reshape(B, -1, K, N // K, H)
    query_ids_BT, k_BTKH = jnp.pad(ids_BT, fill), lax.stop_gradient(k_BTKH)
    key_T = jnp.arange(T) if place_T is None else place_T
    place_T = jnp.pad(key_T, fill[1])

    def block(start: Array) -> Array:
        q_BQKGH = lax.dynamic_slice_in_dim(q_BTKGH, start, size, axis=1)
        ids_BQ = lax.dynamic_slice_in_dim(query_ids_BT, start, size, axis=1)
        query_Q1 = lax.dynamic_slice_in_dim(place_T, start, size)[:, None]
        seen_QT = key_T <= query_Q1
        if window is not None:
            seen_QT &= key_T > query_Q1 - window
        seen_BQT = seen_QT & (ids_BQ[:, :, None] == ids_BT[:, None, :]) & (ids_BQ[:, :, None] > 0)
        scores_BKGQT = product("BQKGH,BTKH->BKGQT", q_BQKGH, k_BTKH, compute_dtype) * scale
        return jnp.max(jnp.where(seen_BQT[:, None, None], scores_BKGQT, _MASKED), axis=(0, 3, 4))

    return jnp.max(jax.lax.map(block, jnp.arange(blocks) * size), axis=0).reshape(N)
