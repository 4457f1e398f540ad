"""Grouped-query attention (Ainslie 2023) over a row of the batch or over a key–value cache.

B batch  T tokens  S cache slots  N query heads  K kv heads  G query heads of a kv head  H head dim  D model
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import ModelConfig
from maxtrain.model.kernels.attention import divisible_attention
from maxtrain.model.kernels.max_logits import max_logits
from maxtrain.model.linear import project
from maxtrain.model.norm import RMSNorm
from maxtrain.model.parameters import parameter
from maxtrain.model.rope import Rotation, rotate
from maxtrain.model.runtime import Runtime
from maxtrain.parallel.dispatch import sharded_attention, sharded_input_projections, sharded_output_projection

_Gate = jax.Array | None
LayerCache = dict[str, jax.Array]
"""`key` and `value` of one layer, [B, S, K, H]; slot s holds position s."""


class GroupedQueryAttention(nnx.Module):
    """Causal attention of one layer, with optional per-head QK-norm and output gate."""

    def __init__(self, config: ModelConfig, runtime: Runtime, output_std: float) -> None:
        width, heads, kv_heads, head_dim = config.d_model, config.num_heads, config.kv_heads, config.dim_per_head
        factors = multipliers(config)
        std = config.init_std * factors.hidden_std
        self.runtime = runtime
        self.query = parameter((width, heads, head_dim), ("embed", "heads", "head_dim"), std=std, num_input_dims=1)
        self.key = parameter((width, kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), std=std, num_input_dims=1)
        self.value = parameter(
            (width, kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), std=std, num_input_dims=1
        )
        self.output = parameter(
            (heads, head_dim, width), ("heads", "head_dim", "embed"), std=output_std, num_input_dims=2
        )
        self.query_norm = RMSNorm(head_dim, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(head_dim, config.norm_eps) if config.qk_norm else None
        self.gate = (
            parameter((width, heads), ("embed", "heads"), std=std, num_input_dims=1) if config.attention_gate else None
        )
        self.scale = factors.attention / math.sqrt(head_dim)

    def __call__(
        self, x_BTD: jax.Array, segment_ids_BT: jax.Array | None, rotation: Rotation, window: int | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attend within each segment of a row; returns [B, T, D], and the heads' greatest logits [N] if asked for."""
        q_BTNH, k_BTKH, v_BTKH, gate_BTN = self._project_inputs(x_BTD, rotation)
        attention = divisible_attention(
            window=window,
            scale=self.scale,
            compute_dtype=self.runtime.compute_dtype,
            implementation=self.runtime.implementation,
        )
        out_BTNH = sharded_attention(
            q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, mesh=self.runtime.mesh, attention=attention
        )
        max_logit_N = None
        if self.runtime.max_logits:
            max_logit_N = max_logits(
                q_BTNH,
                k_BTKH,
                segment_ids_BT,
                window=window,
                scale=self.scale,
                compute_dtype=self.runtime.compute_dtype,
                place_T=self.runtime.places(x_BTD.shape[1]),
            )
        return self._project_output(out_BTNH, gate_BTN, x_BTD.dtype), max_logit_N

    def decode(
        self, x_BTD: jax.Array, positions_BT: jax.Array, rotation: Rotation, window: int | None, cache: LayerCache
    ) -> tuple[jax.Array, LayerCache]:
        """Attend to the cache, to which the tokens are added first.

        Args:
            x_BTD: the layer's normalised input.
            positions_BT: cache slot of each token; below 0 for padding, which is not stored.
            rotation: of the positions.
            window: tokens that a query sees, itself included; None for all.
            cache: keys and values of all positions before.

        Returns:
            [B, T, D] and the new cache.
        """
        q_BTNH, k_BTKH, v_BTKH, gate_BTN = self._project_inputs(x_BTD, rotation)
        num_slots = cache["key"].shape[1]
        slots_BT = jnp.where(positions_BT < 0, num_slots, positions_BT)
        rows_B1 = jnp.arange(x_BTD.shape[0])[:, None]
        cache = {
            name: cache[name].at[rows_B1, slots_BT].set(new.astype(cache[name].dtype), mode="drop")
            for name, new in (("key", k_BTKH), ("value", v_BTKH))
        }
        slot_S = jnp.arange(num_slots)
        visible_BTS = slot_S <= positions_BT[..., None]
        if window is not None:
            visible_BTS &= slot_S > positions_BT[..., None] - window
        out_BTNH = _attend_to_cache(q_BTNH, cache, visible_BTS, self.scale)
        return self._project_output(out_BTNH, gate_BTN, x_BTD.dtype), cache

    def _project_inputs(self, x_BTD: jax.Array, rotation: Rotation) -> tuple[jax.Array, jax.Array, jax.Array, _Gate]:
        """Queries, keys, values, and the logits of the output gate [B, T, N] where there is one."""
        runtime = self.runtime
        outward = {"query": "heads", "key": "kv_heads", "value": "kv_heads"}
        weights = [getattr(self, name)[...] for name in outward]
        axes: list[tuple[str, ...]] = [("embed", heads, "head_dim") for heads in outward.values()]
        dtypes = [runtime.linear_dtype for _ in weights]
        if self.gate is not None:
            weights.append(self.gate[...])
            axes.append(("embed", "heads"))
            dtypes.append(runtime.compute_dtype)
        q_BTNH, k_BTKH, v_BTKH, *gate = sharded_input_projections(
            x_BTD,
            weights,
            axes,
            mesh=runtime.mesh,
            zero=runtime.zero,
            sequence_parallel=runtime.sequence_parallel,
            compute=[partial(project, num_inputs=1, compute_dtype=dtype) for dtype in dtypes],
        )

        def finish(x_BTNH: jax.Array, name: str, norm: RMSNorm | None, *, turn: bool) -> jax.Array:
            if norm is not None:
                x_BTNH = norm(x_BTNH).astype(x_BTNH.dtype)
            if turn:
                x_BTNH = rotate(x_BTNH, rotation)
            return checkpoint_name(runtime.constrain(x_BTNH, "batch", "sequence", outward[name], "head_dim"), name)

        return (
            finish(q_BTNH, "query", self.query_norm, turn=True),
            finish(k_BTKH, "key", self.key_norm, turn=True),
            finish(v_BTKH, "value", None, turn=False),
            gate[0] if gate else None,
        )

    def _project_output(self, out_BTNH: jax.Array, gate_BTN: _Gate, dtype: jnp.dtype) -> jax.Array:
        runtime = self.runtime
        if gate_BTN is not None:
            out_BTNH = out_BTNH * jax.nn.sigmoid(gate_BTN.astype(jnp.float32))[..., None].astype(out_BTNH.dtype)
        return sharded_output_projection(
            out_BTNH.astype(dtype),
            self.output[...],
            mesh=runtime.mesh,
            zero=runtime.zero,
            sequence_parallel=runtime.sequence_parallel,
            compute=partial(project, num_inputs=2, compute_dtype=runtime.linear_dtype),
        )


def _attend_to_cache(q_BTNH: jax.Array, cache: LayerCache, visible_BTS: jax.Array, scale: float) -> jax.Array:
    """Attention of a few queries to all visible slots, statistics in float32."""
    key_BSKH, value_BSKH = cache["key"], cache["value"]
    batch, tokens, heads, head_dim = q_BTNH.shape
    kv_heads = key_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(batch, tokens, kv_heads, heads // kv_heads, head_dim).astype(key_BSKH.dtype)
    highest = jax.lax.Precision.HIGHEST if key_BSKH.dtype == jnp.float32 else None
    logits_BKGTS = jnp.einsum(
        "BTKGH,BSKH->BKGTS", q_BTKGH, key_BSKH, precision=highest, preferred_element_type=jnp.float32
    )
    # Finite, so that a padding query, which sees nothing, stays finite too.
    logits_BKGTS = jnp.where(visible_BTS[:, None, None], logits_BKGTS * scale, -1e30)
    weights_BKGTS = jax.nn.softmax(logits_BKGTS, axis=-1).astype(value_BSKH.dtype)
    out_BTKGH = jnp.einsum(
        "BKGTS,BSKH->BTKGH", weights_BKGTS, value_BSKH, precision=highest, preferred_element_type=jnp.float32
    )
    return out_BTKGH.reshape(batch, tokens, heads, head_dim).astype(q_BTNH.dtype)
