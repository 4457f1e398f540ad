"""Attention on GPU: Pallas kernels that Triton compiles (FlashAttention-2, Dao 2023, arXiv 2307.08691).

JAX's cuDNN attention knows no documents; these kernels mask by document and by window, and give log Σ exp(scores), by
which a ring joins attention to several parts of the keys. Sums over keys, and over the query heads of a kv head, have a
fixed order.

B batch  T queries  S keys, T or more  K kv heads  G query heads of a kv head  H head dim
Q queries of a block  C keys of a block
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

FORWARD_NAME, QUERIES_NAME, KEYS_NAME = "attention_forward", "attention_dq", "attention_dkv"
"""Names of the kernels in a compiled program."""
_MASKED = -1e30
_LOG2_E = math.log2(math.e)


class Tiling(NamedTuple):
    """What one program works through; powers of two."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD = Tiling(queries=128, keys=64, warps=8, stages=3)
BACKWARD = Tiling(queries=64, keys=64, warps=8, stages=2)


class _Task(NamedTuple):
    """What all programs of a kernel know; static."""

    num_queries: int
    num_keys: int
    heads: int
    """G."""
    width: int
    """H."""
    window: int | None
    causal: bool
    scale: float
    has_segments: bool
    tiling: Tiling

    @property
    def before(self) -> int:
        """Keys before the first query."""
        return self.num_keys - self.num_queries

    def queries(self, block: Array) -> Array:
        return block * self.tiling.queries + jnp.arange(self.tiling.queries)

    def keys(self, block: Array) -> Array:
        return block * self.tiling.keys + jnp.arange(self.tiling.keys)

    def key_blocks(self, block: Array) -> tuple[Array | int, Array | int]:
        """First and last (exclusive) block of keys that a block of queries can see."""
        first: Array | int = 0
        last: Array | int = pl.cdiv(self.num_keys, self.tiling.keys)
        if not self.causal:
            return first, last
        start = block * self.tiling.queries + self.before
        last = jnp.minimum(lax.div(start + (self.tiling.queries + self.tiling.keys - 1), self.tiling.keys), last)
        if self.window is not None:
            first = lax.div(jnp.maximum(start - (self.window - 1), 0), self.tiling.keys)
        return first, last

    def query_blocks(self, block: Array) -> tuple[Array | int, Array | int]:
        """First and last (exclusive) block of queries that can see a block of keys."""
        first: Array | int = 0
        last: Array | int = pl.cdiv(self.num_queries, self.tiling.queries)
        if not self.causal:
            return first, last
        start = block * self.tiling.keys - self.before
        first = lax.div(jnp.maximum(start, 0), self.tiling.queries)
        if self.window is not None:
            stop = jnp.maximum(start + (self.tiling.keys + self.window - 1), 0)
            last = jnp.minimum(lax.div(stop + (self.tiling.queries - 1), self.tiling.queries), last)
        return first, last

    def seen(self, query: Array, key: Array, query_ids: Array | None, key_ids: Array | None) -> Array:
        """Whether a query sees a key; the arguments broadcast against each other."""
        seen = (query < self.num_queries) & (key < self.num_keys)
        if self.causal:
            seen &= key <= query + self.before
        if self.window is not None:
            seen &= key > query + (self.before - self.window)
        if query_ids is not None:
            seen &= (query_ids == key_ids) & (query_ids > 0)
        return seen


def forward(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: tuple[Array, Array] | None,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    out_dtype: Any,
    tiling: Tiling = FORWARD,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """Attention, and log Σ exp(scores) [B, K, G, T] in float32, far below any score where a query sees nothing.

    Args:
        q_BKGTH: queries, float32 or bfloat16: where causal, those of the last T of the S positions.
        k_BKSH: keys, of q's dtype.
        v_BKSH: values, of q's dtype.
        segments: documents of queries and keys, int32 [B, T] and [B, S], 0 for padding; None where all are of one.
        causal: a query sees no later key.
        window: tokens that a query sees, itself included; None for all.
        scale: factor on the scores.
        out_dtype: of the output.
        tiling: of the kernel.
        interpret: run it in the interpreter (for tests).
    """
    B, K, G, T, _ = q_BKGTH.shape
    task = _task(q_BKGTH, k_BKSH, segments, causal, window, scale, tiling)
    shapes = jax.ShapeDtypeStruct(q_BKGTH.shape, out_dtype), jax.ShapeDtypeStruct((B, K, G, T), jnp.float32)
    grid = pl.cdiv(T, task.tiling.queries), K * G, B
    return _call(_forward_kernel, FORWARD_NAME, task, grid, shapes, interpret)(
        *(segments or ()), q_BKGTH, k_BKSH, v_BKSH
    )


def gradients(
    q_BKGTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    segments: tuple[Array, Array] | None,
    out_BKGTH: Array,
    log_z_BKGT: Array,
    dout_BKGTH: Array,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    out_dtype: tuple[Any, Any, Any],
    tiling: Tiling = BACKWARD,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """What these keys add to the gradients of q, k and v; out and log_z may be of attention to more keys than these.

    Args:
        q_BKGTH: as in `forward`, like all arguments that are not named here.
        k_BKSH: keys.
        v_BKSH: values.
        segments: documents.
        out_BKGTH: output.
        log_z_BKGT: log Σ exp(scores).
        dout_BKGTH: gradient of the output.
        causal: as above.
        window: as above.
        scale: as above.
        out_dtype: of the three gradients.
        tiling: of the kernels.
        interpret: run them in the interpreter (for tests).
    """
    B, K, G, T, _ = q_BKGTH.shape
    task = _task(q_BKGTH, k_BKSH, segments, causal, window, scale, tiling)
    delta_BKGT = jnp.sum(out_BKGTH.astype(jnp.float32) * dout_BKGTH.astype(jnp.float32), axis=-1)
    arguments = (
        *(segments or ()),
        q_BKGTH,
        k_BKSH,
        v_BKSH,
        dout_BKGTH.astype(q_BKGTH.dtype),
        log_z_BKGT,
        delta_BKGT,
    )
    dq, dk, dv = (jax.ShapeDtypeStruct(a.shape, t) for a, t in zip((q_BKGTH, k_BKSH, v_BKSH), out_dtype, strict=True))
    grid = pl.cdiv(T, task.tiling.queries), K * G, B
    (dq_BKGTH,) = _call(_queries_kernel, QUERIES_NAME, task, grid, (dq,), interpret)(*arguments)
    grid = pl.cdiv(task.num_keys, task.tiling.keys), K, B
    dk_BKSH, dv_BKSH = _call(_keys_kernel, KEYS_NAME, task, grid, (dk, dv), interpret)(*arguments)
    return dq_BKGTH, dk_BKSH, dv_BKSH


def _task(
    q_BKGTH: Array, k_BKSH: Array, segments: Any, causal: bool, window: int | None, scale: float, tiling: Tiling
) -> _Task:
    assert causal or window is None
    _, _, heads, num_queries, width = q_BKGTH.shape
    share = max(1, q_BKGTH.dtype.itemsize // 2) * max(1, pl.next_power_of_2(width) // 128)
    queries, keys = (
        max(16, min(most // share, pl.next_power_of_2(size)))
        for most, size in ((tiling.queries, num_queries), (tiling.keys, k_BKSH.shape[2]))
    )
    tiling = tiling._replace(queries=queries, keys=keys)
    return _Task(num_queries, k_BKSH.shape[2], heads, width, window, causal, scale, segments is not None, tiling)


def _call(
    kernel: Callable[..., None], name: str, task: _Task, grid: tuple[int, ...], shapes: Any, interpret: bool
) -> Callable[..., Any]:
    def run(*refs: Any) -> None:
        ids = refs[:2] if task.has_segments else (None, None)
        kernel(task, *ids, *refs[2 if task.has_segments else 0 :])

    return pl.pallas_call(
        run,
        out_shape=shapes,
        grid=grid,
        compiler_params=pltriton.CompilerParams(num_warps=task.tiling.warps, num_stages=task.tiling.stages),
        interpret=interpret,
        name=name,
    )


def _rows(ref: Any, head: tuple[Any, ...], row: Array, num_rows: int, width: int) -> Array:
    """Rows of a matrix as (rows, power of two), 0 outside of it."""
    column = jnp.arange(pl.next_power_of_2(width))
    mask = (row < num_rows)[:, None] & (column < width)[None, :]
    return pltriton.load(ref.at[(*head, row[:, None], column[None, :])], mask=mask, other=0.0)


def _store_rows(ref: Any, head: tuple[Any, ...], row: Array, num_rows: int, width: int, value: Array) -> None:
    column = jnp.arange(pl.next_power_of_2(width))
    mask = (row < num_rows)[:, None] & (column < width)[None, :]
    pltriton.store(ref.at[(*head, row[:, None], column[None, :])], value.astype(ref.dtype), mask=mask)


def _items(ref: Any, head: tuple[Any, ...], row: Array, num_rows: int, other: Any) -> Array:
    return pltriton.load(ref.at[(*head, row)], mask=row < num_rows, other=other)


def _ids(ref: Any, row: int | Array, place: Array, length: int) -> Array | None:
    return None if ref is None else _items(ref, (row,), place, length, 0)


def _dot(a: Array, b: Array, *, trans_b: bool = False) -> Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return pltriton.dot(a, b, trans_b=trans_b, precision=precision)


def _column(ids: Array | None) -> Array | None:
    return None if ids is None else ids[:, None]


def _line(ids: Array | None) -> Array | None:
    return None if ids is None else ids[None, :]


_Queries = tuple[Array, Array, Array, Array, Array | None]
_Keys = tuple[Array, Array, Array | None]


def _forward_kernel(
    task: _Task, query_ids: Any, key_ids: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, log_z_ref: Any
) -> None:
    # The last queries see most keys: they start first.
    block, head, row = pl.num_programs(0) - 1 - pl.program_id(0), pl.program_id(1), pl.program_id(2)
    kv, width = lax.div(head, task.heads), task.width
    place = row, kv, lax.rem(head, task.heads)
    query_Q = task.queries(block)
    q_QH = _rows(q_ref, place, query_Q, task.num_queries, width)
    ids_Q = _ids(query_ids, row, query_Q, task.num_queries)

    def turn(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        out_QH, top_Q, total_Q = state
        key_C = task.keys(i)
        k_CH = _rows(k_ref, (row, kv), key_C, task.num_keys, width)
        ids_C = _ids(key_ids, row, key_C, task.num_keys)
        seen = task.seen(query_Q[:, None], key_C[None, :], _column(ids_Q), _line(ids_C))
        scores_QC = jnp.where(seen, _dot(q_QH, k_CH, trans_b=True) * (task.scale * _LOG2_E), _MASKED)
        new_top_Q = jnp.maximum(top_Q, jnp.max(scores_QC, axis=1))
        weights_QC, shrink_Q = jnp.exp2(scores_QC - new_top_Q[:, None]), jnp.exp2(top_Q - new_top_Q)
        v_CH = _rows(v_ref, (row, kv), key_C, task.num_keys, width)
        out_QH = out_QH * shrink_Q[:, None] + _dot(weights_QC.astype(v_CH.dtype), v_CH)
        return out_QH, new_top_Q, total_Q * shrink_Q + jnp.sum(weights_QC, axis=1)

    # A query that sees nothing keeps its weights at 0 because its top is far above _MASKED.
    start = (
        jnp.zeros(q_QH.shape, jnp.float32),
        jnp.full(query_Q.shape, _MASKED / 2, jnp.float32),
        jnp.zeros(query_Q.shape, jnp.float32),
    )
    out_QH, top_Q, total_Q = lax.fori_loop(*task.key_blocks(block), turn, start)
    total_Q = jnp.where(total_Q > 0, total_Q, 1.0)
    _store_rows(out_ref, place, query_Q, task.num_queries, width, out_QH / total_Q[:, None])
    log_z_Q = (top_Q + jnp.log2(total_Q)) * (1 / _LOG2_E)
    pltriton.store(log_z_ref.at[(*place, query_Q)], log_z_Q, mask=query_Q < task.num_queries)


def _load_queries(task: _Task, refs: tuple[Any, ...], place: tuple[Any, ...], query_Q: Array) -> _Queries:
    """What the backward pass needs of a block of queries, log_z to base 2."""
    query_ids, q_ref, dout_ref, log_z_ref, delta_ref = refs
    q_QH, dout_QH = (_rows(ref, place, query_Q, task.num_queries, task.width) for ref in (q_ref, dout_ref))
    log_z_Q, delta_Q = (_items(ref, place, query_Q, task.num_queries, 0.0) for ref in (log_z_ref, delta_ref))
    return q_QH, dout_QH, log_z_Q * _LOG2_E, delta_Q, _ids(query_ids, place[0], query_Q, task.num_queries)


def _load_keys(task: _Task, refs: tuple[Any, ...], head: tuple[Any, Any], key_C: Array) -> _Keys:
    """A block of keys, their values and their documents."""
    key_ids, k_ref, v_ref = refs
    k_CH, v_CH = (_rows(ref, head, key_C, task.num_keys, task.width) for ref in (k_ref, v_ref))
    return k_CH, v_CH, _ids(key_ids, head[0], key_C, task.num_keys)


def _queries_kernel(
    task: _Task,
    query_ids: Any,
    key_ids: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    dout_ref: Any,
    log_z_ref: Any,
    delta_ref: Any,
    dq_ref: Any,
) -> None:
    block, head, row = pl.num_programs(0) - 1 - pl.program_id(0), pl.program_id(1), pl.program_id(2)
    kv, width = lax.div(head, task.heads), task.width
    place = row, kv, lax.rem(head, task.heads)
    queries, keys = (query_ids, q_ref, dout_ref, log_z_ref, delta_ref), (key_ids, k_ref, v_ref)
    query_Q = task.queries(block)
    q_QH, dout_QH, log_z_Q, delta_Q, ids_Q = _load_queries(task, queries, place, query_Q)

    def turn(i: Array, dq_QH: Array) -> Array:
        key_C = task.keys(i)
        k_CH, v_CH, ids_C = _load_keys(task, keys, (row, kv), key_C)
        seen = task.seen(query_Q[:, None], key_C[None, :], _column(ids_Q), _line(ids_C))
        scores_QC = jnp.where(seen, _dot(q_QH, k_CH, trans_b=True) * (task.scale * _LOG2_E), _MASKED)
        weights_QC = jnp.exp2(scores_QC - log_z_Q[:, None])
        dscores_QC = weights_QC * (_dot(dout_QH, v_CH, trans_b=True) - delta_Q[:, None])
        return dq_QH + _dot(dscores_QC.astype(k_CH.dtype), k_CH)

    dq_QH = lax.fori_loop(*task.key_blocks(block), turn, jnp.zeros(q_QH.shape, jnp.float32))
    _store_rows(dq_ref, place, query_Q, task.num_queries, width, dq_QH * task.scale)


def _keys_kernel(
    task: _Task,
    query_ids: Any,
    key_ids: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    dout_ref: Any,
    log_z_ref: Any,
    delta_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
) -> None:
    block, kv, row = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    queries, keys = (query_ids, q_ref, dout_ref, log_z_ref, delta_ref), (key_ids, k_ref, v_ref)
    width, key_C = task.width, task.keys(block)
    k_CH, v_CH, ids_C = _load_keys(task, keys, (row, kv), key_C)

    def one_head(head: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        place = row, kv, head

        def turn(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            dk_CH, dv_CH = state
            query_Q = task.queries(i)
            q_QH, dout_QH, log_z_Q, delta_Q, ids_Q = _load_queries(task, queries, place, query_Q)
            # Keys first, so that no product needs a transposed operand out of registers.
            seen = task.seen(query_Q[None, :], key_C[:, None], _line(ids_Q), _column(ids_C))
            scores_CQ = jnp.where(seen, _dot(k_CH, q_QH, trans_b=True) * (task.scale * _LOG2_E), _MASKED)
            weights_CQ = jnp.exp2(scores_CQ - log_z_Q[None, :])
            dscores_CQ = weights_CQ * (_dot(v_CH, dout_QH, trans_b=True) - delta_Q[None, :])
            dv_CH += _dot(weights_CQ.astype(dout_QH.dtype), dout_QH)
            return dk_CH + _dot(dscores_CQ.astype(q_QH.dtype), q_QH), dv_CH

        return lax.fori_loop(*task.query_blocks(block), turn, state)

    zero_CH = jnp.zeros(k_CH.shape, jnp.float32)
    dk_CH, dv_CH = lax.fori_loop(0, task.heads, one_head, (zero_CH, zero_CH))
    _store_rows(dk_ref, (row, kv), key_C, task.num_keys, width, dk_CH * task.scale)
    _store_rows(dv_ref, (row, kv), key_C, task.num_keys, width, dv_CH)
