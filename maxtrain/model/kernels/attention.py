"""Causal self-attention that touches only the keys a query can see, and keeps no scores.

B batch  T tokens  N query heads  K kv heads  G = N / K  H head dim
Q queries of a block  S keys that the block can see
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from maxtrain.model.kernels.common import Implementation, product, varying_as

KEPT_NAMES = ("attention_out", "attention_log_z")
"""Checkpoint names of what the backward pass needs beside q, k and v; a remat policy that saves them spares scores."""
LEAST_BLOCK = 64
"""Fewest queries of a block."""
MOST_BLOCKS = 16
"""Most blocks of a row; their code is laid out one after another."""
_MASKED = -1e30


def attention(
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segment_ids_BT: Array | None,
    *,
    window: int | None,
    scale: float,
    compute_dtype: Any,
    implementation: Implementation = "auto",
) -> Array:
    """Softmax attention of each token over itself and earlier tokens of its segment.

    Args:
        q_BTNH: queries, rotated.
        k_BTKH: keys, rotated; K divides N, and query head n reads kv head n // (N / K).
        v_BTKH: values.
        segment_ids_BT: int32 documents of a row; 0 is padding, which attends to nothing (output and gradient 0).
            None where the whole row is one segment.
        window: a token sees itself and window - 1 tokens before it; None for all.
        scale: factor on the scores.
        compute_dtype: type of the products' operands; scores, softmax and sums are float32.
        implementation: `auto` or `reference`.

    Returns:
        out_BTNH in q's dtype.
    """
    B, T, N, H = q_BTNH.shape
    K = k_BTKH.shape[2]
    q_BKGTH = (q_BTNH * scale).reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    k_BKTH, v_BKTH = k_BTKH.transpose(0, 2, 1, 3), v_BTKH.transpose(0, 2, 1, 3)
    if implementation == "reference":
        out = _reference(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, compute_dtype)
    else:
        out = _blocked(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, compute_dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H).astype(q_BTNH.dtype)


class Block(NamedTuple):
    """Queries [start, stop) and the keys [first, stop) that one of them can see."""

    start: int
    stop: int
    first: int


def query_blocks(length: int, window: int | None) -> list[Block]:
    """Cut a row into blocks of queries, each with its keys."""
    size = max(LEAST_BLOCK, -(-length // MOST_BLOCKS))
    return [
        Block(start, min(start + size, length), 0 if window is None else max(0, start - window + 1))
        for start in range(0, length, size)
    ]


def _visible(block: Block, segment_ids_BT: Array | None, window: int | None) -> Array:
    """Which keys each query of a block sees: (1 or B, 1, 1, Q, S)."""
    query = jnp.arange(block.start, block.stop)[:, None]
    key = jnp.arange(block.first, block.stop)[None, :]
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    seen = seen[None]
    if segment_ids_BT is not None:
        query_seg = segment_ids_BT[:, block.start : block.stop, None]
        seen = seen & (query_seg == segment_ids_BT[:, None, block.first : block.stop]) & (query_seg > 0)
    return seen[:, None, None]


def _reference(
    q_BKGTH: Array, k_BKTH: Array, v_BKTH: Array, segment_ids_BT: Array | None, window: int | None, compute_dtype: Any
) -> Array:
    length = k_BKTH.shape[2]
    seen = _visible(Block(0, length, 0), segment_ids_BT, window)
    scores = product("BKGQH,BKSH->BKGQS", q_BKGTH, k_BKTH, compute_dtype)
    weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
    return product("BKGQS,BKSH->BKGQH", jnp.where(seen, weights, 0.0), v_BKTH, compute_dtype)


def _scores(
    q_BKGTH: Array, k_BKTH: Array, segment_ids_BT: Array | None, block: Block, window: int | None, compute_dtype: Any
) -> Array:
    q = q_BKGTH[:, :, :, block.start : block.stop]
    scores = product("BKGQH,BKSH->BKGQS", q, k_BKTH[:, :, block.first : block.stop], compute_dtype)
    return jnp.where(_visible(block, segment_ids_BT, window), scores, _MASKED)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _blocked(
    q_BKGTH: Array, k_BKTH: Array, v_BKTH: Array, segment_ids_BT: Array | None, window: int | None, compute_dtype: Any
) -> Array:
    return _blocked_forward(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, compute_dtype)[0]


Kept = tuple[Array, Array, Array, Array | None, Array, Array]


def _blocked_forward(
    q_BKGTH: Array, k_BKTH: Array, v_BKTH: Array, segment_ids_BT: Array | None, window: int | None, compute_dtype: Any
) -> tuple[Array, Kept]:
    outs, log_zs = [], []
    for block in query_blocks(k_BKTH.shape[2], window):
        scores = _scores(q_BKGTH, k_BKTH, segment_ids_BT, block, window, compute_dtype)
        # A query that sees nothing keeps exp(scores - top) at 0 because its top is far above _MASKED.
        top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), _MASKED / 2)
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        total = jnp.where(total > 0, total, 1.0)
        values = v_BKTH[:, :, block.first : block.stop]
        outs.append(product("BKGQS,BKSH->BKGQH", weights, values, compute_dtype) / total)
        log_zs.append(top + jnp.log(total))
    out = checkpoint_name(jnp.concatenate(outs, axis=3).astype(q_BKGTH.dtype), KEPT_NAMES[0])
    log_z = checkpoint_name(jnp.concatenate(log_zs, axis=3), KEPT_NAMES[1])
    return out, (q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, out, log_z)


def _blocked_backward(
    window: int | None, compute_dtype: Any, kept: Kept, dout: Array
) -> tuple[Array, Array, Array, None]:
    q, k, v, segment_ids_BT, out, log_z = kept
    dq: list[Array] = []
    dk = varying_as(jnp.zeros(k.shape, jnp.float32), q, k, v, dout)
    dv = dk
    delta = jnp.sum(out.astype(jnp.float32) * dout.astype(jnp.float32), axis=-1, keepdims=True)
    for block in query_blocks(k.shape[2], window):
        queries, keys = slice(block.start, block.stop), slice(block.first, block.stop)
        scores = _scores(q, k, segment_ids_BT, block, window, compute_dtype)
        weights = jnp.exp(scores - log_z[:, :, :, queries])
        dout_Q = dout[:, :, :, queries]
        dweights = product("BKGQH,BKSH->BKGQS", dout_Q, v[:, :, keys], compute_dtype)
        dscores = weights * (dweights - delta[:, :, :, queries])
        dq.append(product("BKGQS,BKSH->BKGQH", dscores, k[:, :, keys], compute_dtype))
        dk_S = product("BKGQS,BKGQH->BKSH", dscores, q[:, :, :, queries], compute_dtype)
        dv_S = product("BKGQS,BKGQH->BKSH", weights, dout_Q, compute_dtype)
        dk = lax.dynamic_update_slice_in_dim(dk, dk[:, :, keys] + dk_S, block.first, 2)
        dv = lax.dynamic_update_slice_in_dim(dv, dv[:, :, keys] + dv_S, block.first, 2)
    return jnp.concatenate(dq, axis=3).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_blocked.defvjp(_blocked_forward, _blocked_backward)
