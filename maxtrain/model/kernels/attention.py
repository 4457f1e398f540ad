"""Causal attention that touches only the keys a query can see, and keeps no scores.

B batch  T queries  S keys, T or more  N query heads  K kv heads  G = N / K query heads of a kv head  H head dim
In a block: Q queries of all G heads, S keys that one of them can see
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from maxtrain.model.kernels.attention_kernels import forward_forms, gradient_forms
from maxtrain.model.kernels.common import (
    Implementation,
    by_platform,
    product,
    round_up,
    stored_transpose,
    transpose_of_product,
)
from maxtrain.parallel.context import Attention, Blocks

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
Segments = tuple[Array, Array] | None
"""Documents of the queries and of the keys; None where all are of one."""
Kept = tuple[Array, Array, Array, Segments, Array, Array]


@jax.named_scope("attention")
def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    segment_ids_BT: Array | None,
    key_segment_ids_BS: Array | None = None,
    *,
    window: int | None,
    scale: float,
    compute_dtype: Any,
    implementation: Implementation = "auto",
) -> Array:
    """Softmax attention of each token over itself and earlier tokens of its segment.

    Args:
        q_BTNH: queries, rotated: those of the last T of the S positions.
        k_BSKH: keys, rotated; K divides N, and query head n reads kv head n // (N / K).
        v_BSKH: values.
        segment_ids_BT: int32 documents of the queries; 0 is padding, which attends to nothing (output and gradient
            0). None where all is one segment.
        key_segment_ids_BS: documents of the keys; None where S is T and they are the queries'.
        window: a token sees itself and window - 1 tokens before it; None for all.
        scale: factor on the scores.
        compute_dtype: type of the products' operands; scores, softmax and sums are float32.
        implementation: `auto` or `reference`.

    Returns:
        out_BTNH in q's dtype.
    """
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    segments = None
    if segment_ids_BT is not None:
        segments = segment_ids_BT, segment_ids_BT if key_segment_ids_BS is None else key_segment_ids_BS
    q_BKGTH = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    k_BKSH, v_BKSH = k_BSKH.transpose(0, 2, 1, 3), v_BSKH.transpose(0, 2, 1, 3)
    if implementation == "reference":
        out = _reference(q_BKGTH, k_BKSH, v_BKSH, segments, window, scale, compute_dtype)
        out = checkpoint_name(out, KEPT_NAMES[0])
    else:
        out = _blocked(q_BKGTH, k_BKSH, v_BKSH, segments, window, scale, compute_dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H).astype(q_BTNH.dtype)


def _reference(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: Segments,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> Array:
    num_queries, num_keys = q_BKGTH.shape[3], k_BKSH.shape[2]
    key = jnp.arange(num_keys)
    query = key[num_keys - num_queries :]
    seen = query[:, None] >= key[None, :]
    if window is not None:
        seen &= query[:, None] - key[None, :] < window
    seen = seen[None]
    if segments is not None:
        query_ids_BT, key_ids_BS = segments
        seen = seen & (query_ids_BT[:, :, None] == key_ids_BS[:, None, :]) & (query_ids_BT[:, :, None] > 0)
    seen = seen[:, None, None]
    scores = product("BKGTH,BKSH->BKGTS", q_BKGTH, k_BKSH, compute_dtype) * scale
    weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
    return product("BKGTS,BKSH->BKGTH", jnp.where(seen, weights, 0.0), v_BKSH, compute_dtype)


class Span(NamedTuple):
    """Queries [start, stop), in blocks of `queries`, and the keys [first, last) that one of them can see."""

    start: int
    stop: int
    first: int
    last: int
    queries: int


def query_spans(num_queries: int, num_keys: int, window: int | None, queries: int, *, causal: bool) -> list[Span]:
    """Cut queries into at most MOST_SPANS spans of whole blocks (the last span may be one short block).

    Args:
        num_queries: queries; where it is causal, those of the last positions.
        num_keys: keys.
        window: tokens that a query sees, itself included; None for all.
        queries: of a block.
        causal: a query sees no later key; otherwise all of them, and one span does.
    """
    size = round_up(-(-num_queries // MOST_SPANS), queries) if causal else num_queries
    cuts = list(range(0, num_queries, size))
    whole = num_queries - num_queries % queries
    if 0 < whole < num_queries and whole not in cuts:
        cuts.append(whole)
    before = num_keys - num_queries
    return [
        Span(
            start,
            stop,
            0 if window is None else max(0, before + start - window + 1),
            before + stop if causal else num_keys,
            min(queries, stop - start),
        )
        for start, stop in zip(cuts, [*cuts[1:], num_queries], strict=True)
    ]


class Row(NamedTuple):
    """One kv head of one row, with its query heads."""

    q_GTH: Array
    k_SH: Array
    v_SH: Array
    segments: Segments
    """[T] and [S]."""


class Local(NamedTuple):
    """How a row is worked through."""

    window: int | None
    scale: float
    compute_dtype: Any
    queries: int
    causal: bool
    out_dtype: Any
    """Of the output and the gradients; None for that of q, k and v."""

    def spans(self, row: Row) -> list[Span]:
        """The row's queries and what they can see."""
        return query_spans(row.q_GTH.shape[1], row.k_SH.shape[0], self.window, self.queries, causal=self.causal)


def _scores(row: Row, qT_HQ: Array, start: Array | int, span: Span, local: Local) -> Array:
    """Scores of a block, keys first: products and reductions then run along memory. Masked ones are _MASKED."""
    # Tied to the queries: masks that depend on positions and documents alone would be formed for all blocks ahead.
    qT_HQ, start = lax.optimization_barrier((qT_HQ, jnp.asarray(start)))
    scores_SQ = product("SH,HQ->SQ", row.k_SH[span.first : span.last], qT_HQ, local.compute_dtype) * local.scale
    heads, num_queries, _ = row.q_GTH.shape
    seen: Array | None = None
    if local.causal:
        # Positions counted in place: a table of them would be read from memory for every score.
        place = start + (row.k_SH.shape[0] - num_queries)
        query_Q = place + lax.rem(lax.broadcasted_iota(jnp.int32, (1, heads * span.queries), 1), span.queries)
        key_S = lax.broadcasted_iota(jnp.int32, (span.last - span.first, 1), 0) + span.first
        seen = key_S <= query_Q
        if local.window is not None:
            seen &= key_S > query_Q - local.window
    if row.segments is not None:
        query_ids_T, key_ids_S = row.segments
        segment_Q = jnp.tile(lax.dynamic_slice_in_dim(query_ids_T, start, span.queries), heads)[None, :]
        same = (key_ids_S[span.first : span.last, None] == segment_Q) & (segment_Q > 0)
        seen = same if seen is None else seen & same
    return scores_SQ if seen is None else jnp.where(seen, scores_SQ, _MASKED)


def _block_of(x_GTH: Array, start: Array | int, size: int) -> Array:
    """A block's queries of all heads as rows (Q, H)."""
    return lax.dynamic_slice_in_dim(x_GTH, start, size, axis=1).reshape(-1, x_GTH.shape[-1])


def _forward_row(row: Row, local: Local) -> tuple[Array, Array]:
    """out_GTH and log Σ exp(scores) (G, T)."""
    heads, _, width = row.q_GTH.shape
    outs, log_zs = [], []
    vT_HS = stored_transpose(row.v_SH)
    dtype = row.q_GTH.dtype if local.out_dtype is None else local.out_dtype

    def block(start: Array | int, span: Span) -> tuple[Array, Array]:
        qT_HQ = stored_transpose(_block_of(row.q_GTH, start, span.queries))
        scores_SQ = _scores(row, qT_HQ, start, span, local)
        # A query that sees nothing keeps its weights at 0 because its top is far above _MASKED.
        top_Q = jnp.maximum(jnp.max(scores_SQ, axis=0), _MASKED / 2)
        weights_SQ = jnp.exp(scores_SQ - top_Q)
        total_Q = jnp.sum(weights_SQ, axis=0)
        total_Q = jnp.where(total_Q > 0, total_Q, 1.0)
        out_HQ = product("HS,SQ->HQ", vT_HS[:, span.first : span.last], weights_SQ, local.compute_dtype)
        out_GQH = transpose_of_product(out_HQ / total_Q).reshape(heads, span.queries, width).astype(dtype)
        return out_GQH, (top_Q + jnp.log(total_Q)).reshape(heads, span.queries)

    for span in local.spans(row):
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
    kT_HS = stored_transpose(row.k_SH)
    heads = row.q_GTH.shape[0]
    q_dtype = row.q_GTH.dtype if local.out_dtype is None else local.out_dtype
    delta_GT = jnp.sum(out_GTH.astype(jnp.float32) * dout_GTH.astype(jnp.float32), axis=-1)
    k_dtype, v_dtype = (a.dtype if local.out_dtype is None else local.out_dtype for a in (row.k_SH, row.v_SH))

    def block(sums: Pair, start: Array | int, span: Span) -> tuple[Pair, Array]:
        dk_SH, dv_SH = sums
        seen = slice(span.first, span.last)
        q_QH = _block_of(row.q_GTH, start, span.queries)
        dout_QH = _block_of(dout_GTH, start, span.queries)
        log_z_Q = lax.dynamic_slice_in_dim(log_z_GT, start, span.queries, axis=1).reshape(-1)
        delta_Q = lax.dynamic_slice_in_dim(delta_GT, start, span.queries, axis=1).reshape(-1)
        weights_SQ = jnp.exp(_scores(row, stored_transpose(q_QH), start, span, local) - log_z_Q)
        dweights_SQ = product("SH,HQ->SQ", row.v_SH[seen], stored_transpose(dout_QH), local.compute_dtype)
        dscores_SQ = weights_SQ * (dweights_SQ - delta_Q)
        more_dv_SH = product("SQ,QH->SH", weights_SQ, dout_QH, local.compute_dtype)
        more_dk_SH = product("SQ,QH->SH", dscores_SQ, q_QH, local.compute_dtype)
        dq_HQ = product("HS,SQ->HQ", kT_HS[:, seen], dscores_SQ, local.compute_dtype)
        sums = (
            lax.dynamic_update_slice_in_dim(dk_SH, dk_SH[seen] + more_dk_SH, span.first, axis=0),
            lax.dynamic_update_slice_in_dim(dv_SH, dv_SH[seen] + more_dv_SH, span.first, axis=0),
        )
        dq_HQ *= local.scale
        return sums, transpose_of_product(dq_HQ).reshape(heads, span.queries, -1).astype(q_dtype)

    zero_SH = jnp.zeros(row.k_SH.shape, jnp.float32)
    sums, parts = (zero_SH, zero_SH), []
    for span in local.spans(row):
        if span.stop - span.start == span.queries:
            sums, dq_GQH = block(sums, span.start, span)
        else:
            starts = jnp.arange(span.start, span.stop, span.queries)
            sums, dq_GQH = lax.scan(partial(block, span=span), sums, starts)
            dq_GQH = jnp.moveaxis(dq_GQH, 0, 1).reshape(heads, span.stop - span.start, -1)
        parts.append(dq_GQH)
    dk_SH, dv_SH = sums[0] * local.scale, sums[1]
    return jnp.concatenate(parts, axis=1), dk_SH.astype(k_dtype), dv_SH.astype(v_dtype)


def _over_rows(function: Callable[..., Any], how: How, arrays: Any, segments: Segments) -> Any:
    """Call function(arrays, segments) for every row and kv head: one by one, or all at once."""
    over: Callable[..., Any] = _map if how.one_by_one else _vmap

    def one_row(item: tuple[Any, Segments]) -> Any:
        return over(lambda arrays: function(arrays, item[1]), item[0])

    return over(one_row, (arrays, segments))


def _map(function: Callable[..., Any], items: Any) -> Any:
    return lax.map(function, items)


def _vmap(function: Callable[..., Any], items: Any) -> Any:
    return jax.vmap(function)(items)


def attention_block(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: Segments,
    *,
    causal: bool,
    scale: float,
    compute_dtype: Any,
    window: int | None = None,
    out_dtype: Any = jnp.float32,
) -> Pair:
    """Attention to some of the keys, with what joins it to attention to others.

    Args:
        q_BKGTH: queries.
        k_BKSH: keys.
        v_BKSH: values.
        segments: documents of queries and keys, [B, T] and [B, S].
        causal: queries are those of the last T of the S positions and see no later key; otherwise each sees all.
        scale: factor on the scores.
        compute_dtype: type of the products' operands.
        window: tokens that a query sees, itself included; only where causal.
        out_dtype: of the output; None for q's.

    Returns:
        out_BKGTH, and log Σ exp(scores) [B, K, G, T] in float32, far below any score where a query sees nothing.
    """
    assert causal or window is None

    def run(how: How, q: Array, k: Array, v: Array, segments: Segments) -> Pair:
        local = Local(window, scale, compute_dtype, how.queries, causal, out_dtype)
        return _over_rows(
            lambda qkv, ids: _forward_row(Row(qkv[0], qkv[1], qkv[2], ids), local), how, (q, k, v), segments
        )

    forms = forward_forms(compute_dtype, out_dtype, causal=causal, window=window, scale=scale)
    return by_platform(
        *(q_BKGTH, k_BKSH, v_BKSH, segments), cpu=partial(run, ON_CPU), default=partial(run, DEFAULT), **forms
    )


def attention_block_gradients(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: Segments,
    out_BKGTH: Array,
    log_z_BKGT: Array,
    dout_BKGTH: Array,
    *,
    causal: bool,
    scale: float,
    compute_dtype: Any,
    window: int | None = None,
    out_dtype: Any = jnp.float32,
) -> Gradients:
    """What some of the keys add to the gradients of q, k and v.

    Args:
        q_BKGTH: queries.
        k_BKSH: keys.
        v_BKSH: values.
        segments: documents of queries and keys, [B, T] and [B, S].
        out_BKGTH: output of attention to all the keys of a query, these and others.
        log_z_BKGT: log Σ exp(scores) over all of them.
        dout_BKGTH: gradient of the output.
        causal: as in `attention_block`.
        scale: factor on the scores.
        compute_dtype: type of the products' operands.
        window: as in `attention_block`.
        out_dtype: of the gradients; None for those of q, k and v.
    """
    assert causal or window is None

    def run(how: How, arrays: tuple[Array, ...], segments: Segments) -> Gradients:
        local = Local(window, scale, compute_dtype, how.queries, causal, out_dtype)

        def one_row(arrays: tuple[Array, ...], ids: Segments) -> Gradients:
            q, k, v, out, log_z, dout = arrays
            return _backward_row(Row(q, k, v, ids), out, log_z, dout, local)

        return _over_rows(one_row, how, arrays, segments)

    arrays = q_BKGTH, k_BKSH, v_BKSH, out_BKGTH, log_z_BKGT, dout_BKGTH
    forms = gradient_forms(compute_dtype, out_dtype, causal=causal, window=window, scale=scale)
    return by_platform(arrays, segments, cpu=partial(run, ON_CPU), default=partial(run, DEFAULT), **forms)


def keep(out: Array, log_z: Array) -> Pair:
    """Name what the backward pass needs, for a remat policy to save."""
    return checkpoint_name(out, KEPT_NAMES[0]), checkpoint_name(log_z, KEPT_NAMES[1])


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _blocked(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: Segments,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> Array:
    return _blocked_forward(q_BKGTH, k_BKSH, v_BKSH, segments, window, scale, compute_dtype)[0]


def _blocked_forward(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: Segments,
    window: int | None,
    scale: float,
    compute_dtype: Any,
) -> tuple[Array, Kept]:
    out, log_z = keep(
        *attention_block(
            q_BKGTH,
            k_BKSH,
            v_BKSH,
            segments,
            causal=True,
            scale=scale,
            compute_dtype=compute_dtype,
            window=window,
            out_dtype=None,
        )
    )
    return out, (q_BKGTH, k_BKSH, v_BKSH, segments, out, log_z)


def _blocked_backward(
    window: int | None, scale: float, compute_dtype: Any, kept: Kept, dout_BKGTH: Array
) -> tuple[Array, Array, Array, None]:
    q_BKGTH, k_BKSH, v_BKSH, segments, out, log_z = kept

    gradients = attention_block_gradients(
        q_BKGTH,
        k_BKSH,
        v_BKSH,
        segments,
        out,
        log_z,
        dout_BKGTH,
        causal=True,
        scale=scale,
        compute_dtype=compute_dtype,
        window=window,
        out_dtype=None,
    )
    return *gradients, None


_blocked.defvjp(_blocked_forward, _blocked_backward)


def divisible_attention(
    *, window: int | None, scale: float, compute_dtype: Any, implementation: Implementation
) -> Attention:
    """Attention for `parallel` to divide; arguments as of `attention`."""
    options = {"scale": scale, "compute_dtype": compute_dtype}
    whole = partial(attention, window=window, implementation=implementation, **options)
    blocks = Blocks(partial(attention_block, **options), partial(attention_block_gradients, **options), keep)
    return Attention(whole, window, None if implementation == "reference" else blocks)
