"""Cross-entropy that never holds all logits; its gradient is formed in the forward pass.

N rows  D model  V vocabulary (or this rank's shard of it)  C rows of a chunk
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.common import Implementation, pad_rows, per_platform, product, stored_transpose

CPU_CHUNK_LOGITS = 4 * 2**20
"""Logits held at once on CPU, where more of them leave the cache."""
DEFAULT_CHUNK_LOGITS = 256 * 2**20
"""Logits held at once elsewhere: 1 GiB."""

Losses = tuple[Array, Array, Array]


@jax.named_scope("cross_entropy")
def cross_entropy(
    x_ND: Array,
    output_VD: Array,
    target_N: Array,
    weight_N: Array,
    *,
    z_weight: float,
    compute_dtype: Any,
    vocab_axis: str | None = None,
    implementation: Implementation = "auto",
) -> Losses:
    """Weighted sum of next-token losses.

    total = Σ weight · (nll + z_weight · z), with nll = log Σ exp(logits) - logit of the target and the z-loss
    z = (log Σ exp(logits))² (PaLM, Chowdhery 2022). The fast form computes logits chunk by chunk and, where total is
    differentiated, turns each chunk into its gradient at once; nothing is computed twice.

    Args:
        x_ND: final hidden rows.
        output_VD: output projection; with vocab_axis, this rank's consecutive rows of it.
        target_N: int32 target ids of the whole vocabulary; one outside it makes its row's loss nan.
        weight_N: float32 weight of each row; a row of weight 0 adds nothing to total.
        z_weight: weight of the z-loss.
        compute_dtype: type of the products' operands; they accumulate in float32.
        vocab_axis: mesh axis over which the vocabulary is divided, manual in a `shard_map` with check_vma=False, or
            None.
        implementation: `auto` or `reference`.

    Returns:
        (total, nll_N, z_N) in float32. Only total may be differentiated, with respect to x and output.
    """
    if implementation == "reference":
        logits_NV = product("ND,VD->NV", x_ND, output_VD, compute_dtype)
        log_z_N, nll_N, _ = _statistics(logits_NV, target_N, vocab_axis)
        total = _total(weight_N, nll_N, jnp.square(log_z_N), z_weight)
        return total, lax.stop_gradient(nll_N), lax.stop_gradient(jnp.square(log_z_N))
    return _chunked(x_ND, output_VD, target_N, weight_N, z_weight, compute_dtype, vocab_axis)


def _total(weight_N: Array, nll_N: Array, z_N: Array, z_weight: float) -> Array:
    rows_N = weight_N * (nll_N + z_weight * z_N if z_weight else nll_N)
    return jnp.sum(jnp.where(weight_N == 0, 0.0, rows_N))


def _statistics(logits_CV: Array, target_C: Array, vocab_axis: str | None) -> tuple[Array, Array, Array]:
    """Log Σ exp, nll, and the target's column in this shard (a column that is not there where it is elsewhere)."""
    num_local = logits_CV.shape[1]
    num_all, column_C = num_local, target_C
    max_C = lax.stop_gradient(jnp.max(logits_CV, axis=1))
    if vocab_axis is not None:
        num_all = num_local * lax.axis_size(vocab_axis)
        column_C = target_C - lax.axis_index(vocab_axis) * num_local
        max_C = lax.pmax(max_C, vocab_axis)
    sum_C = jnp.sum(jnp.exp(logits_CV - max_C[:, None]), axis=1)
    here_C = (column_C >= 0) & (column_C < num_local)
    picked_C = jnp.take_along_axis(logits_CV, jnp.clip(column_C, 0, num_local - 1)[:, None], axis=1)[:, 0]
    picked_C = jnp.where(here_C, picked_C, 0.0)
    if vocab_axis is not None:
        sum_C, picked_C = lax.psum((sum_C, picked_C), vocab_axis)
    known_C = (target_C >= 0) & (target_C < num_all)
    log_z_C = max_C + jnp.log(sum_C)
    return log_z_C, jnp.where(known_C, log_z_C - picked_C, jnp.nan), column_C


def _chunks(num_rows: int, vocab: int, limit: int) -> tuple[int, int]:
    """Number of chunks and rows in each: as few even chunks as have at most `limit` logits, or one row."""
    num_chunks = -(-num_rows // max(1, limit // vocab))
    return num_chunks, -(-num_rows // num_chunks)


def logits_at_once(num_rows: int, vocab: int, implementation: Implementation, platform: str) -> int:
    """Most logits that `cross_entropy` holds at once for so many rows and columns of one rank."""
    if implementation == "reference":
        return num_rows * vocab
    limit = CPU_CHUNK_LOGITS if platform == "cpu" else DEFAULT_CHUNK_LOGITS
    return _chunks(num_rows, vocab, limit)[1] * vocab


def _split(num_chunks: int, rows: int, *arrays: Array) -> tuple[Array, ...]:
    return tuple(pad_rows(a, num_chunks * rows).reshape(num_chunks, rows, *a.shape[1:]) for a in arrays)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _chunked(
    x_ND: Array,
    output_VD: Array,
    target_N: Array,
    weight_N: Array,
    z_weight: float,
    compute_dtype: Any,
    vocab_axis: str | None,
) -> Losses:
    def run(limit: int, x_ND: Array, output_VD: Array, target_N: Array, weight_N: Array) -> Losses:
        num_rows = x_ND.shape[0]
        cast_DV = stored_transpose(output_VD.astype(compute_dtype))

        def step(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
            logits_CV = product("CD,DV->CV", chunk[0], cast_DV, compute_dtype)
            log_z_C, nll_C, _ = _statistics(logits_CV, chunk[1], vocab_axis)
            return nll_C, jnp.square(log_z_C)

        shape = _chunks(num_rows, output_VD.shape[0], limit)
        nll_N, z_N = (a.reshape(-1)[:num_rows] for a in lax.map(step, _split(*shape, x_ND, target_N)))
        return _total(weight_N, nll_N, z_N, z_weight), nll_N, z_N

    return per_platform(run, CPU_CHUNK_LOGITS, DEFAULT_CHUNK_LOGITS, x_ND, output_VD, target_N, weight_N)


def _chunked_forward(
    x_ND: Array,
    output_VD: Array,
    target_N: Array,
    weight_N: Array,
    z_weight: float,
    compute_dtype: Any,
    vocab_axis: str | None,
) -> tuple[Losses, tuple[Array, Array]]:
    def run(
        limit: int, x_ND: Array, output_VD: Array, target_N: Array, weight_N: Array
    ) -> tuple[Losses, tuple[Array, Array]]:
        num_rows = x_ND.shape[0]
        cast_VD = output_VD.astype(compute_dtype)
        cast_DV = stored_transpose(cast_VD)

        def step(doutput_DV: Array, chunk: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
            x_CD, target_C, weight_C = chunk
            logits_CV = product("CD,DV->CV", x_CD, cast_DV, compute_dtype)
            log_z_C, nll_C, column_C = _statistics(logits_CV, target_C, vocab_axis)
            scale_C = weight_C * (1.0 + 2.0 * z_weight * log_z_C) if z_weight else weight_C
            hit_CV = lax.broadcasted_iota(jnp.int32, logits_CV.shape, 1) == column_C[:, None]
            softmax_CV = jnp.exp(logits_CV - log_z_C[:, None])
            dlogits_CV = scale_C[:, None] * softmax_CV - jnp.where(hit_CV, weight_C[:, None], 0.0)
            dlogits_CV = dlogits_CV.astype(compute_dtype)
            dx_CD = product("CV,VD->CD", dlogits_CV, cast_VD, compute_dtype).astype(x_CD.dtype)
            x_DC = stored_transpose(x_CD.astype(compute_dtype))
            doutput_DV += product("DC,CV->DV", x_DC, dlogits_CV, compute_dtype)
            return doutput_DV, (dx_CD, nll_C, jnp.square(log_z_C))

        shape = _chunks(num_rows, output_VD.shape[0], limit)
        start = jnp.zeros(output_VD.shape[::-1], jnp.float32)
        doutput_DV, rows = lax.scan(step, start, _split(*shape, x_ND, target_N, weight_N))
        dx_ND, nll_N, z_N = (a.reshape(-1, *a.shape[2:])[:num_rows] for a in rows)
        return (_total(weight_N, nll_N, z_N, z_weight), nll_N, z_N), (dx_ND, doutput_DV.T.astype(output_VD.dtype))

    return per_platform(run, CPU_CHUNK_LOGITS, DEFAULT_CHUNK_LOGITS, x_ND, output_VD, target_N, weight_N)


def _chunked_backward(
    z_weight: float,
    compute_dtype: Any,
    vocab_axis: str | None,
    kept: tuple[Array, Array],
    cotangents: Losses,
) -> tuple[Array, Array, None, None]:
    dx_ND, doutput_VD = kept
    # Every rank of the vocabulary holds total, and with it a part of its cotangent.
    dtotal = cotangents[0] if vocab_axis is None else lax.psum(cotangents[0], vocab_axis)
    return (dx_ND * dtotal).astype(dx_ND.dtype), (doutput_VD * dtotal).astype(doutput_VD.dtype), None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
