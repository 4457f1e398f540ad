"""Attention on TPU: splash attention, as JAX ships it for Pallas, fitted to any length, width and part of the keys.

B batch  T queries  S keys, T or more  K kv heads  G query heads of a kv head  N = K · G  H head dim
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from maxtrain.model.kernels.common import round_up

LANES = 128
"""Lengths and widths are filled up to multiples of it."""
MOST_BLOCK = 512
"""Most queries, and keys, of a block with 2-byte operands of one width of lanes."""
_MASKED = -1e30


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
    interpret: bool = False,
) -> tuple[Array, Array]:
    """Attention, and log Σ exp(scores) [B, K, G, T]; arguments as of the GPU form."""
    fit = _Fit.of(q_BKGTH, k_BKSH, causal, window)
    query_ids_BT, key_ids_BS = fit.ids(q_BKGTH.shape[0], segments)
    kernel = fit.kernel(save_residuals=True, interpret=interpret)
    with _precision(q_BKGTH.dtype):
        out_BNTH, (log_z_BNT,) = jax.vmap(kernel)(
            fit.queries(_scaled(q_BKGTH, scale)),
            fit.keys(k_BKSH),
            fit.keys(v_BKSH),
            splash.SegmentIds(query_ids_BT, key_ids_BS),
        )
    # A query that sees nothing holds some mean of the values, and the log of a number of masked scores.
    is_seen_BNT = log_z_BNT > _MASKED / 2
    out_BKGTH = fit.of_queries(jnp.where(is_seen_BNT[..., None], out_BNTH, 0), q_BKGTH.shape)
    log_z_BKGT = fit.of_queries(jnp.where(is_seen_BNT, log_z_BNT, _MASKED / 2)[..., None], (*q_BKGTH.shape[:4], 1))
    return out_BKGTH.astype(out_dtype), log_z_BKGT[..., 0]


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
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """What these keys add to the gradients of q, k and v; arguments as of the GPU form.

    Splash attention has no public function for it: its own rule is called with outputs that may be of more keys.
    """
    fit = _Fit.of(q_BKGTH, k_BKSH, causal, window)
    query_ids_BT, key_ids_BS = fit.ids(q_BKGTH.shape[0], segments)
    kernel = fit.kernel(save_residuals=False, interpret=interpret)

    def one_row(q: Array, k: Array, v: Array, ids: Any, out: Array, log_z: Array, dout: Array) -> tuple[Array, ...]:
        kept = q, k, v, ids, None, out, log_z, kernel.dq_mask_info, kernel.dkv_mask_info
        how = kernel.kwargs
        return splash._splash_attention_bwd(
            False, how["mask_value"], False, how["block_sizes"], None, how["mask_function"], None, interpret, kept, dout
        )[3:6]

    with _precision(q_BKGTH.dtype):
        dq_BNTH, dk_BKSH, dv_BKSH = jax.vmap(one_row)(
            fit.queries(_scaled(q_BKGTH, scale)),
            fit.keys(k_BKSH),
            fit.keys(v_BKSH),
            splash.SegmentIds(query_ids_BT, key_ids_BS),
            fit.queries(out_BKGTH),
            fit.queries(log_z_BKGT[..., None])[..., 0],
            fit.queries(dout_BKGTH.astype(q_BKGTH.dtype)),
        )
    dq_BKGTH = fit.of_queries(dq_BNTH, q_BKGTH.shape).astype(jnp.float32) * scale
    gradients = dq_BKGTH, fit.of_keys(dk_BKSH, k_BKSH.shape), fit.of_keys(dv_BKSH, v_BKSH.shape)
    return tuple(a.astype(t) for a, t in zip(gradients, out_dtype, strict=True))  # type: ignore[return-value]


class _Fit(NamedTuple):
    """Arrays as the kernel takes them: lengths in whole blocks, widths in whole lanes.

    Queries are filled up behind, and where it is causal the keys too, so that the last query still sees the last key;
    then keys are filled up in front. Documents hide what is filled in.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    behind: int
    before: int
    width: int
    block_queries: int
    block_keys: int
    window: int | None
    causal: bool

    @classmethod
    def of(cls, q_BKGTH: Array, k_BKSH: Array, causal: bool, window: int | None) -> "_Fit":
        assert causal or window is None
        _, kv_heads, heads, num_queries, width = q_BKGTH.shape
        num_keys, width = k_BKSH.shape[2], round_up(width, LANES)
        padded = round_up(num_queries, LANES)
        behind = padded - num_queries if causal else 0
        before = -(num_keys + behind) % LANES
        share = max(1, q_BKGTH.dtype.itemsize // 2) * (width // LANES)
        queries, keys = padded, before + num_keys + behind
        most = max(LANES, MOST_BLOCK // share)
        blocks = _block(queries, most), _block(keys, most)
        return cls(kv_heads * heads, queries, keys, behind, before, width, *blocks, window, causal)

    def kernel(self, **how: Any) -> Any:
        shape = self.num_queries, self.num_keys
        mask: masks.Mask
        if not self.causal:
            mask = masks.FullMask(shape)
        elif self.window is None:
            mask = masks.CausalMask(shape, offset=self.num_keys - self.num_queries)
        else:
            mask = masks.LocalMask(shape, (self.window - 1, 0), offset=self.num_keys - self.num_queries)
        queries, keys = self.block_queries, self.block_keys
        blocks = splash.BlockSizes(
            block_q=queries,
            block_kv=keys,
            block_q_dkv=queries,
            block_kv_dkv=keys,
            block_q_dq=queries,
            block_kv_dq=keys,
        )
        heads = masks.MultiHeadMask([mask] * self.num_heads)
        return splash.make_splash_mha(heads, block_sizes=blocks, head_shards=1, q_seq_shards=1, **how)

    def queries(self, x_BKGTH: Array) -> Array:
        """[B, N, T, H], filled up; a width of 1 is left."""
        batch, _, _, length, width = x_BKGTH.shape
        x = x_BKGTH.reshape(batch, self.num_heads, length, width)
        wide = self.width if width > 1 else 1
        return jnp.pad(x, ((0, 0), (0, 0), (0, self.num_queries - length), (0, wide - width)))

    def of_queries(self, x_BNTH: Array, shape: tuple[int, ...]) -> Array:
        return x_BNTH[:, :, : shape[3], : shape[4]].reshape(shape)

    def keys(self, x_BKSH: Array) -> Array:
        missing = self.width - x_BKSH.shape[3]
        return jnp.pad(x_BKSH, ((0, 0), (0, 0), (self.before, self.behind), (0, missing)))

    def of_keys(self, x_BKSH: Array, shape: tuple[int, ...]) -> Array:
        return x_BKSH[:, :, self.before : self.before + shape[2], : shape[3]]

    def ids(self, batch: int, segments: tuple[Array, Array] | None) -> tuple[Array, Array]:
        """Documents of queries, -1 for padding, which sees nothing, and of keys."""
        num_keys = self.num_keys - self.before - self.behind
        if segments is None:
            segments = jnp.ones((batch, self.num_queries), jnp.int32), jnp.ones((batch, num_keys), jnp.int32)
        query_ids, key_ids = segments
        query_ids = jnp.pad(query_ids, ((0, 0), (0, self.num_queries - query_ids.shape[1])))
        return jnp.where(query_ids > 0, query_ids, -1), jnp.pad(key_ids, ((0, 0), (self.before, self.behind)))


def _block(length: int, most: int) -> int:
    """The largest block that divides a length in lanes."""
    size = most
    while length % size:
        size //= 2
    return size


def _scaled(q_BKGTH: Array, scale: float) -> Array:
    return (q_BKGTH.astype(jnp.float32) * scale).astype(q_BKGTH.dtype)


def _precision(dtype: Any) -> AbstractContextManager[Any]:
    """The kernels state no precision: float32 operands would be rounded to bfloat16."""
    return jax.default_matmul_precision("highest") if dtype == jnp.float32 else nullcontext()
