"""Causal self-attention that touches only the keys a query can see, and keeps no scores.

B batch  T tokens  N query heads  K kv heads  G = N / K query heads of a kv head  H head dim
S keys that a block can see  Q queries of a block, of all G heads
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from maxtrain.model.kernels.common import (
    Implementation,
    per_platform,
    product,
    round_up,
    stored_transpose,
    transpose_of_product,
)

KEPT_NAMES = ("attention_out", "attention_log_z")
"""Checkpoint names of what the backward pass needs beside q, k and v; a remat policy that saves them spares scores."""


class How(NamedTuple):
    """How a platform goes about it."""

    queries: int
    """Queries of a block; on CPU its scores stay in the cache."""
    one_by_one: bool
    """Rows and kv heads one after another instead of all at once."""


ON_CPU = How(queries=128, one_by_one=True)
DEFAULT = How(queries=512, one_by_one=False)
MOST_SPANS = 16
"""Most spans of a row, which are laid out one after another; blocks of one span are looped over."""
_MASKED = -1e30

Pair = tuple[Array, Array]
Gradients = tuple[Array, Array, Array]
Kept = tuple[Array, Array, Array, Array | None, Array, Array]


@jax.named_scope("attention")
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
    q_BKGTH = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    k_BKTH, v_BKTH = k_BTKH.transpose(0, 2, 1, 3), v_BTKH.transpose(0, 2, 1, 3)
    if implementation == "reference":
        out = _reference(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, scale, compute_dtype)
        out = checkpoint_name(out, KEPT_NAMES[0])
    else:
        out = _blocked(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, scale, compute_dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H).astype(q_BTNH.dtype)


def _reference(
    q_BKGTH: Array,
    k_BKTH: Array,
    v_BKTH: Array,
    segment_ids_BT: Array | None,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> Array:
    position = jnp.arange(k_BKTH.shape[2])
    seen = position[:, None] >= position[None, :]
    if window is not None:
        seen &= position[:, None] - position[None, :] < window
    seen = seen[None]
    if segment_ids_BT is not None:
        seen = seen & (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]) & (segment_ids_BT[:, :, None] > 0)
    seen = seen[:, None, None]
    scores = product("BKGTH,BKSH->BKGTS", q_BKGTH, k_BKTH, compute_dtype) * scale
    weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
    return product("BKGTS,BKSH->BKGTH", jnp.where(seen, weights, 0.0), v_BKTH, compute_dtype)


class Span(NamedTuple):
    """Queries [start, stop), in blocks of `queries`, and the keys [first, stop) that one of them can see."""

    start: int
    stop: int
    first: int
    queries: int


def query_spans(length: int, window: int | None, queries: int) -> list[Span]:
    """Cut a row into at most MOST_SPANS spans, each a whole number of blocks (the last span may be one short block)."""
    size = round_up(-(-length // MOST_SPANS), queries)
    cuts = list(range(0, length, size))
    whole = length - length % queries
    if 0 < whole < length and whole not in cuts:
        cuts.append(whole)
    return [
        Span(start, stop, 0 if window is None else max(0, start - window + 1), min(queries, stop - start))
        for start, stop in zip(cuts, [*cuts[1:], length], strict=True)
    ]


class Row(NamedTuple):
    """One kv head of one row, with its query heads."""

    q_GTH: Array
    k_TH: Array
    v_TH: Array
    segment_ids_T: Array | None


class Local(NamedTuple):
    """How a row is worked through."""

    window: int | None
    scale: float
    compute_dtype: Any
    queries: int


def _scores(row: Row, qT_HQ: Array, start: Array | int, span: Span, local: Local) -> Array:
    """Scores of a block, keys first: products and reductions then run along memory. Masked ones are _MASKED."""
    k_SH = row.k_TH[span.first : span.stop]
    scores_SQ = product("SH,HQ->SQ", k_SH, qT_HQ, local.compute_dtype) * local.scale
    heads = row.q_GTH.shape[0]
    # Positions counted in place: a table of them would be read from memory for every score.
    query_Q = start + lax.rem(lax.broadcasted_iota(jnp.int32, (1, heads * span.queries), 1), span.queries)
    key_S = lax.broadcasted_iota(jnp.int32, (span.stop - span.first, 1), 0) + span.first
    seen = key_S <= query_Q
    if local.window is not None:
        seen &= key_S > query_Q - local.window
    if row.segment_ids_T is not None:
        segment_Q = jnp.tile(lax.dynamic_slice_in_dim(row.segment_ids_T, start, span.queries), heads)[None, :]
        seen &= (row.segment_ids_T[span.first : span.stop, None] == segment_Q) & (segment_Q > 0)
    return jnp.where(seen, scores_SQ, _MASKED)


def _block_of(x_GTH: Array, start: Array | int, size: int) -> Array:
    """A block's queries of all heads as rows (Q, H)."""
    return lax.dynamic_slice_in_dim(x_GTH, start, size, axis=1).reshape(-1, x_GTH.shape[-1])


def _forward_row(row: Row, local: Local) -> tuple[Array, Array]:
    """out_GTH and log Σ exp(scores) (G, T)."""
    heads, _, width = row.q_GTH.shape
    outs, log_zs = [], []
    vT_HT = stored_transpose(row.v_TH)

    def block(start: Array | int, span: Span) -> tuple[Array, Array]:
        qT_HQ = stored_transpose(_block_of(row.q_GTH, start, span.queries))
        scores_SQ = _scores(row, qT_HQ, start, span, local)
        # A query that sees nothing keeps its weights at 0 because its top is far above _MASKED.
        top_Q = jnp.maximum(jnp.max(scores_SQ, axis=0), _MASKED / 2)
        weights_SQ = jnp.exp(scores_SQ - top_Q)
        total_Q = jnp.sum(weights_SQ, axis=0)
        total_Q = jnp.where(total_Q > 0, total_Q, 1.0)
        out_HQ = product("HS,SQ->HQ", vT_HT[:, span.first : span.stop], weights_SQ, local.compute_dtype)
        out_GQH = transpose_of_product(out_HQ / total_Q).reshape(heads, span.queries, width).astype(row.q_GTH.dtype)
        return out_GQH, (top_Q + jnp.log(total_Q)).reshape(heads, span.queries)

    for span in query_spans(row.k_TH.shape[0], local.window, local.queries):
        if span.stop - span.start == span.queries:
            out_GQH, log_z_GQ = block(span.start, span)
        else:
            starts = jnp.arange(span.start, span.stop, span.queries)
            out_GQH, log_z_GQ = lax.map(partial(block, span=span), starts)
            out_GQH = jnp.moveaxis(out_GQH, 0, 1).reshape(heads, -1, width)
            log_z_GQ = jnp.moveaxis(log_z_GQ, 0, 1).reshape(heads, -1)
        outs.append(out_GQH)
        log_zs.append(log_z_GQ)
    return jnp.concatenate(outs, axis=1), jnp.concatenate(log_zs, axis=1)


def _backward_row(row: Row, out_GTH: Array, log_z_GT: Array, dout_GTH: Array, local: Local) -> Gradients:
    """Gradients of q, k and v, scores computed anew block by block."""
    kT_HT = stored_transpose(row.k_TH)
    delta_GT = jnp.sum(out_GTH.astype(jnp.float32) * dout_GTH.astype(jnp.float32), axis=-1)

    def block(sums: Pair, start: Array | int, span: Span) -> tuple[Pair, Array]:
        dk_TH, dv_TH = sums
        seen = slice(span.first, span.stop)
        q_QH = _block_of(row.q_GTH, start, span.queries)
        dout_QH = _block_of(dout_GTH, start, span.queries)
        log_z_Q = lax.dynamic_slice_in_dim(log_z_GT, start, span.queries, axis=1).reshape(-1)
        delta_Q = lax.dynamic_slice_in_dim(delta_GT, start, span.queries, axis=1).reshape(-1)
        weights_SQ = jnp.exp(_scores(row, stored_transpose(q_QH), start, span, local) - log_z_Q)
        dweights_SQ = product("SH,HQ->SQ", row.v_TH[seen], stored_transpose(dout_QH), local.compute_dtype)
        dscores_SQ = weights_SQ * (dweights_SQ - delta_Q)
        dv_SH = product("SQ,QH->SH", weights_SQ, dout_QH, local.compute_dtype)
        dk_SH = product("SQ,QH->SH", dscores_SQ, q_QH, local.compute_dtype)
        dq_HQ = product("HS,SQ->HQ", kT_HT[:, seen], dscores_SQ, local.compute_dtype)
        sums = (
            lax.dynamic_update_slice_in_dim(dk_TH, dk_TH[seen] + dk_SH, span.first, axis=0),
            lax.dynamic_update_slice_in_dim(dv_TH, dv_TH[seen] + dv_SH, span.first, axis=0),
        )
        dq_HQ *= local.scale
        return sums, transpose_of_product(dq_HQ).reshape(row.q_GTH.shape[0], span.queries, -1).astype(row.q_GTH.dtype)

    zero_TH = jnp.zeros(row.k_TH.shape, jnp.float32)
    sums, parts = (zero_TH, zero_TH), []
    for span in query_spans(row.k_TH.shape[0], local.window, local.queries):
        if span.stop - span.start == span.queries:
            sums, dq_GQH = block(sums, span.start, span)
        else:
            starts = jnp.arange(span.start, span.stop, span.queries)
            sums, dq_GQH = lax.scan(partial(block, span=span), sums, starts)
            dq_GQH = jnp.moveaxis(dq_GQH, 0, 1).reshape(row.q_GTH.shape[0], span.stop - span.start, -1)
        parts.append(dq_GQH)
    dk_TH, dv_TH = sums[0] * local.scale, sums[1]
    return jnp.concatenate(parts, axis=1), dk_TH.astype(row.k_TH.dtype), dv_TH.astype(row.v_TH.dtype)


def _over_rows(function: Callable[..., Any], how: How, arrays: Any, segment_ids_BT: Array | None) -> Any:
    """Call function(arrays, segment_ids) for every row and kv head: one by one, or all at once."""
    over: Callable[..., Any] = _map if how.one_by_one else _vmap

    def one_row(item: tuple[Any, Array | None]) -> Any:
        return over(lambda arrays: function(arrays, item[1]), item[0])

    return over(one_row, (arrays, segment_ids_BT))


def _map(function: Callable[..., Any], items: Any) -> Any:
    return lax.map(function, items)


def _vmap(function: Callable[..., Any], items: Any) -> Any:
    return jax.vmap(function)(items)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _blocked(
    q_BKGTH: Array,
    k_BKTH: Array,
    v_BKTH: Array,
    segment_ids_BT: Array | None,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> Array:
    return _blocked_forward(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, scale, compute_dtype)[0]


def _blocked_forward(
    q_BKGTH: Array,
    k_BKTH: Array,
    v_BKTH: Array,
    segment_ids_BT: Array | None,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> tuple[Array, Kept]:
    def run(how: How, q: Array, k: Array, v: Array, ids: Array | None) -> Pair:
        local = Local(window, scale, compute_dtype, how.queries)
        return _over_rows(lambda qkv, ids: _forward_row(Row(qkv[0], qkv[1], qkv[2], ids), local), how, (q, k, v), ids)

    out, log_z = per_platform(run, ON_CPU, DEFAULT, q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT)
    out, log_z = checkpoint_name(out, KEPT_NAMES[0]), checkpoint_name(log_z, KEPT_NAMES[1])
    return out, (q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, out, log_z)


def _blocked_backward(
    window: int | None, scale: float, compute_dtype: Any, kept: Kept, dout_BKGTH: Array
) -> tuple[Array, Array, Array, None]:
    q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, out, log_z = kept

    def run(how: How, arrays: tuple[Array, ...], ids: Array | None) -> Gradients:
        local = Local(window, scale, compute_dtype, how.queries)

        def one_row(arrays: tuple[Array, ...], ids: Array | None) -> Gradients:
            q, k, v, out, log_z, dout = arrays
            return _backward_row(Row(q, k, v, ids), out, log_z, dout, local)

        return _over_rows(one_row, how, arrays, ids)

    arrays = q_BKGTH, k_BKTH, v_BKTH, out, log_z, dout_BKGTH
    return *per_platform(run, ON_CPU, DEFAULT, arrays, segment_ids_BT), None


_blocked.defvjp(_blocked_forward, _blocked_backward)
