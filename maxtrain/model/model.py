"""The decoder: modules split once, then plain functions of nested dicts of arrays.

B batch  T tokens  D model  V vocabulary  E experts
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import MeshConfig, ModelConfig, PipelineConfig, PrecisionConfig, RematConfig
from maxtrain.core.errors import UserError
from maxtrain.model.attention import LayerCache
from maxtrain.model.block import Block, Kind, Layer, LayerStats, Shared, combine_microbatches
from maxtrain.model.decoder import decode_stack, run_stack
from maxtrain.model.kernels.common import round_up
from maxtrain.model.kernels.cross_entropy import cross_entropy
from maxtrain.model.linear import project
from maxtrain.model.loss import LossAux, add_up
from maxtrain.model.norm import RMSNorm
from maxtrain.model.parameters import ParameterSpec, Params, init_params, parameter, specs_of, to_tree
from maxtrain.model.rope import make_rotation
from maxtrain.model.runtime import Implementation, Runtime
from maxtrain.parallel.context import ring_order
from maxtrain.parallel.dispatch import sharded_cross_entropy
from maxtrain.parallel.exchange import Exchange
from maxtrain.parallel.pipeline import Pipeline
from maxtrain.parallel.rules import parameter_rules, to_partition_spec

Cache = dict[str, LayerCache]
"""Of each kind of layer, `key` and `value` [layers, B, S, K, H]."""


class VocabularyTable(nnx.Module):
    """A [V, D] matrix: the embedding, or the output projection."""

    def __init__(self, config: ModelConfig) -> None:
        self.weight = parameter(
            (config.vocab_size, config.d_model), ("vocab", "embed"), std=config.init_std, num_input_dims=1
        )


class Model:
    """A decoder as functions of its parameters; holds no arrays.

    Args:
        config: shape.
        precision: number formats.
        remat: what the backward pass recomputes.
        scan_unroll: layers laid out in one turn of the layer loop.
        kernels: `reference` for the plain forms.
        mesh: where it runs; None for one device.
        pipeline: how the layers are cut where the mesh has stages.
        max_logits: measure the greatest attention logit of every head in `loss`.
        tells_experts: layers tell the chosen experts, for `chosen_experts`.
        layout: what the mesh divides beyond its axes' sizes, and how rows meet experts; None for the defaults.

    Raises:
        UserError: the config asks for a part that is not available yet, or not on this mesh's devices.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        precision: PrecisionConfig | None = None,
        remat: RematConfig | None = None,
        scan_unroll: int = 4,
        kernels: Implementation = "auto",
        mesh: Mesh | None = None,
        pipeline: PipelineConfig | None = None,
        max_logits: bool = False,
        tells_experts: bool = False,
        layout: MeshConfig | None = None,
    ) -> None:
        if config.attention != "gqa":
            raise UserError(f"model.attention: {config.attention} is not available yet; use gqa")
        if config.num_mtp:
            raise UserError(f"model.num_mtp: {config.num_mtp} extra predicted tokens are not available yet; use 0")
        self.config = config
        self.mesh = mesh
        self._precision = precision or PrecisionConfig()
        self._layout = layout or MeshConfig()
        moe = config.moe
        groups = {"num_groups": moe.num_groups, "top_groups": moe.top_groups} if moe else {}
        exchange = Exchange.create(self._layout, mesh, **groups)
        self.runtime = Runtime.create(
            self._precision,
            kernels,
            mesh,
            exchange,
            max_logits=max_logits,
            tells_experts=tells_experts,
            zero=self._layout.zero,
            sequence_parallel=self._layout.sequence_parallel,
        )
        self._remat = remat or RematConfig()
        self._unroll = scan_unroll
        self._logit_factor = multipliers(config).logits
        self.layers_of: dict[Kind, list[int]] = {}
        """Numbers of the layers of each kind, in order."""
        for layer in range(config.num_layers):
            self.layers_of.setdefault("moe" if config.is_moe(layer) else "dense", []).append(layer)
        self._staged: Kind = list(self.layers_of)[-1]
        """The kind of the layers that a pipeline divides; those of another kind come before its first stage."""
        self._pipeline_config = pipeline or PipelineConfig()
        self.pipeline: Pipeline | None = None
        """Stages of the mesh; None for one, where nothing is divided."""
        if mesh is not None and mesh.shape["pipeline"] > 1:
            self.pipeline = Pipeline(mesh, self._pipeline_config.rounds, len(self.layers_of[self._staged]))
        self._graphs: dict[Kind, nnx.GraphDef[Block]] = {}
        specs = specs_of(nnx.state(VocabularyTable(config)), "embedding")
        for kind, chosen in self.layers_of.items():
            self._graphs[kind], state = nnx.split(Block(config, self.runtime, kind))
            axis = "layers" if kind == self._staged else "leading_layers"
            specs += specs_of(state, f"layers/{kind}", axis, len(chosen))
        self._final_norm, state = nnx.split(RMSNorm(config.d_model, config.norm_eps))
        specs += specs_of(state, "final_norm")
        if not config.tie_embeddings:
            specs += specs_of(nnx.state(VocabularyTable(config)), "output")
        stored = jnp.dtype(self._precision.parameters)
        self.table: tuple[ParameterSpec, ...] = tuple(spec.stored_in(stored) for spec in specs)
        """Every leaf of the parameters."""

    def dropless(self) -> "Model":
        """This model dropping no choice, as evaluation and inference run it; it has the same parameters."""
        moe = self.config.moe
        if moe is None or (moe.capacity_factor is None and self._layout.exchange_overflow == "replay"):
            return self
        config = self.config.model_copy(update={"moe": moe.model_copy(update={"capacity_factor": None})})
        return self._variant(config=config, layout=self._layout.model_copy(update={"exchange_overflow": "replay"}))

    def _variant(self, **changes: Any) -> "Model":
        """A model of the same parameters with other arguments; it measures no attention logits."""
        arguments: dict[str, Any] = {
            "config": self.config,
            "precision": self._precision,
            "remat": self._remat,
            "scan_unroll": self._unroll,
            "kernels": self.runtime.implementation,
            "mesh": self.mesh,
            "pipeline": self._pipeline_config,
            "layout": self._layout,
        }
        return Model(**arguments | changes)

    def unflatten(self, leaves: Mapping[str, Any]) -> Params:
        """Nested dicts from one leaf for each path of the table."""
        return to_tree((spec.path, leaves[spec.path]) for spec in self.table)

    def abstract_params(self) -> Params:
        """Shapes and dtypes of the parameters, with their shardings."""
        return to_tree(
            (spec.path, jax.ShapeDtypeStruct(self._memory_shape(spec), spec.dtype, sharding=self._sharding(spec)))
            for spec in self.table
        )

    def _memory_shape(self, spec: ParameterSpec) -> tuple[int, ...]:
        """Shape of a parameter in memory, where a stack may have empty places."""
        if self.pipeline is None or not self.is_staged(spec.path):
            return spec.shape
        return (self.pipeline.num_places, *spec.shape[1:])

    def shardings(self) -> Params:
        """Where each parameter lies."""
        return to_tree((spec.path, self._sharding(spec)) for spec in self.table)

    def update_shardings(self) -> Params:
        """Where what the optimizer keeps of each parameter lies: divided over `fsdp` whatever mesh.zero is."""
        return to_tree((spec.path, self._sharding(spec, zero=3)) for spec in self.table)

    def _sharding(self, spec: ParameterSpec, zero: int | None = None) -> Sharding:
        if self.mesh is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        rules = parameter_rules(spec.axes, self._layout.expert_axes, zero or self._layout.zero)
        return NamedSharding(self.mesh, to_partition_spec(spec.axes, rules))

    def init(self, key: jax.Array) -> Params:
        """Initial parameters; pure, so that `jax.jit(model.init, out_shardings=...)` bears them sharded."""
        params = init_params(key, self.table)
        if self.pipeline is None:
            return params
        staged = jax.tree.map(self.pipeline.to_memory, params["layers"][self._staged])
        return {**params, "layers": {**params["layers"], self._staged: staged}}

    @property
    def memory_order(self) -> dict[str, np.ndarray]:
        """Layer at each place of the stacks that do not lie in the order of layers, by path; 0 for an empty place."""
        if self.pipeline is None or self.pipeline.keeps_order:
            return {}
        order = np.maximum(self.pipeline.layer_at, 0)
        return {spec.path: order for spec in self.table if self.is_staged(spec.path)}

    def is_staged(self, path: str) -> bool:
        """Whether a path, such as `mu/layers/moe/attention/query`, names a stack that the pipeline's stages divide."""
        return self.pipeline is not None and f"/layers/{self._staged}/" in f"/{path}"

    def expert_bias(self) -> jax.Array:
        """Initial expert bias, zeros [MoE layers, E]; [0, 0] without mixture-of-experts layers."""
        num_experts = self.config.moe.num_experts if self.config.moe else 0
        num_layers = len(self.layers_of.get("moe", ()))
        return jnp.zeros((num_layers, num_experts if num_layers else 0), jnp.float32)

    def loss(
        self,
        params: Params,
        batch: Mapping[str, jax.Array],
        *,
        expert_bias: jax.Array,
        row_keys: jax.Array | None = None,
    ) -> tuple[jax.Array, LossAux]:
        """Loss of a batch as a sum: divided by the weights of the whole global batch it is the mean loss.

        Args:
            params: parameters.
            batch: `tokens`, `targets`, `segment_ids` (0 = padding), `positions` (int32) and `weights` (float32), all
                [B, T], in ring order where the mesh has a context axis; on a mesh with pipeline stages M microbatches
                at once, [M, B, T], M a multiple of the stages. `experts` (int32 [B, T, MoE layers, k] or [M, B, T,
                MoE layers, k]), where given, replays a routing: no router chooses, and the weights are those of its
                logits at these experts.
            expert_bias: [MoE layers, E].
            row_keys: typed keys [B] or [M, B] for dropout; None for none.

        Returns:
            Σ weight × (nll + z_weight × logsumexp²) + balance_weight × balance_sum + moe.z_weight × router_z_sum, and
            the parts.
        """
        config = self.config
        weights_BT = batch["weights"].astype(jnp.float32)
        batch = {**batch, "weights": weights_BT}
        keys = row_keys if config.dropout else None
        x, found = self._run(params, batch, keys, expert_bias)
        if self.pipeline is None:
            total, nll_BT, z_BT = self._score(params, x, batch)
        else:
            totals, nll_BT, z_BT = self.pipeline.over_microbatches(lambda part: self._score(params, *part), (x, batch))
            total = totals.sum()
        return add_up(config, total, (weights_BT, nll_BT, z_BT), found)

    def chosen_experts(
        self,
        params: Params,
        batch: Mapping[str, jax.Array],
        *,
        expert_bias: jax.Array,
        row_keys: jax.Array | None = None,
    ) -> jax.Array:
        """The experts that the tokens of a batch choose: as its `experts` they make `loss` repeat the choice.

        Args:
            params: parameters.
            batch: as of `loss`.
            expert_bias: [MoE layers, E].
            row_keys: as of `loss`.

        Returns:
            int32 [B, T, MoE layers, k], with pipeline stages [M, B, T, MoE layers, k], laid out as the batch; -1 for
            padding. Capacity is not applied: it is to what is replayed.

        Raises:
            ValueError: the model has no experts.
        """
        if "moe" not in self.layers_of:
            raise ValueError("model.moe: without experts there is no choice to tell")
        if not self.runtime.tells_experts:
            teller = self._variant(tells_experts=True)
            return teller.chosen_experts(params, batch, expert_bias=expert_bias, row_keys=row_keys)
        keys = row_keys if self.config.dropout else None
        _, found = self._run(params, batch, keys, expert_bias)
        experts_LBTk = found["moe"].experts_BTk
        assert experts_LBTk is not None
        experts_BTLk = jnp.moveaxis(experts_LBTk, 0, -2)
        return self.runtime.constrain(experts_BTLk, *(None,) * (experts_BTLk.ndim - 4), "batch", "sequence", None, None)

    def _run(
        self, params: Params, batch: Mapping[str, jax.Array], row_keys: jax.Array | None, expert_bias: jax.Array
    ) -> tuple[jax.Array, dict[Kind, LayerStats]]:
        """The residual stream of a batch as `loss` takes it, after all layers, and what they tell."""
        if self.pipeline is not None:
            return self._run_stages(self.pipeline, params, batch, row_keys, expert_bias)
        shared = self._share(batch, row_keys)
        return self._run_layers(params, self._embed(params, batch["tokens"]), shared, expert_bias)

    def _share(self, batch: Mapping[str, Any], row_keys: jax.Array | None) -> Shared:
        experts_BTLk = batch.get("experts")
        if experts_BTLk is not None and self.config.moe is not None:
            expected = len(self.layers_of["moe"]), self.config.moe.top_k
            if experts_BTLk.shape[-2:] != expected:
                raise ValueError(f"experts of a batch: {experts_BTLk.shape} should end in (MoE layers, k) = {expected}")
        return Shared(
            rotation=make_rotation(batch["positions"], self.config.dim_per_head, self.config.rope),
            valid_BT=batch["segment_ids"] > 0,
            segment_ids_BT=batch["segment_ids"],
            weight_BT=batch["weights"],
            row_keys_B=row_keys,
            experts_BTLk=experts_BTLk,
        )

    def _score(
        self, params: Params, x_BTD: jax.Array, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cross-entropy of the last layer's output: its weighted sum, and each token's nll and logsumexp²."""
        return sharded_cross_entropy(
            self._normalize(params, x_BTD),
            self._output_table(params),
            batch["targets"],
            batch["weights"],
            mesh=self.mesh,
            zero=self.runtime.zero,
            sequence_parallel=self.runtime.sequence_parallel,
            compute=partial(
                cross_entropy,
                z_weight=self.config.z_weight,
                compute_dtype=self.runtime.compute_dtype,
                implementation=self.runtime.implementation,
            ),
        )

    def logits(
        self,
        params: Params,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        expert_bias: jax.Array | None = None,
    ) -> jax.Array:
        """Logits of every token, float32 [B, T, V]; experts have no capacity here.

        Args:
            params: parameters.
            tokens: int32 [B, T].
            segment_ids: int32 [B, T], 0 = padding; None for one segment a row.
            positions: int32 [B, T]; None to count from the row's start.
            expert_bias: [MoE layers, E]; None for zeros.
        """
        segment_ids = jnp.ones_like(tokens) if segment_ids is None else segment_ids
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape) if positions is None else positions
        num_tokens, num_context = tokens.shape[1], self.runtime.num_context
        order = ring_order(round_up(num_tokens, 2 * num_context), num_context)
        if num_context > 1:
            missing = len(order) - num_tokens
            tokens, segment_ids, positions = (
                jnp.pad(a, ((0, 0), (0, missing)))[:, order] for a in (tokens, segment_ids, positions)
            )
        shared = Shared(
            rotation=make_rotation(positions, self.config.dim_per_head, self.config.rope),
            valid_BT=segment_ids > 0,
            segment_ids_BT=segment_ids,
            weight_BT=None,
            row_keys_B=None,
        )
        expert_bias = self.expert_bias() if expert_bias is None else expert_bias
        x_BTD, _ = self._run_layers(params, self._embed(params, tokens), shared, expert_bias)
        if num_context > 1:
            x_BTD = x_BTD[:, np.argsort(order)[:num_tokens]]
        return self._unembed(params, x_BTD)

    def activations(self, params: Params, tokens: jax.Array, expert_bias: jax.Array) -> dict[str, jax.Array]:
        """The residual stream after the embedding and after every layer, and the logits, by name; for inspection.

        Args:
            params: parameters.
            tokens: int32 [B, T].
            expert_bias: [MoE layers, E].
        """
        assert self.runtime.num_context == 1, "tokens are given in order"
        ones, positions_BT = jnp.ones_like(tokens), jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        batch = {"positions": positions_BT, "segment_ids": ones, "weights": None}
        shared, x_BTD = self._share(batch, None), self._embed(params, tokens)
        found = {"embedding": x_BTD}
        for kind, numbers in self.layers_of.items():
            stacked = params["layers"][kind], self._layers(kind, expert_bias)
            for place, number in enumerate(numbers):
                one, layers = jax.tree.map(lambda leaf, place=place: leaf[place : place + 1], stacked)
                x_BTD, _ = self._run_stack(kind, one, layers, x_BTD, shared, [self.config.window_of(number)])
                found[f"layer {number}"] = x_BTD
        return {**found, "logits": self._unembed(params, x_BTD)}

    def decode(
        self,
        params: Params,
        tokens_BT: jax.Array,
        positions_BT: jax.Array,
        cache: Cache,
        *,
        expert_bias: jax.Array,
    ) -> tuple[jax.Array, Cache]:
        """Logits of the next tokens of each row, which are added to its cache.

        Args:
            params: parameters.
            tokens_BT: int32; T > 1 to read a prompt.
            positions_BT: int32, the cache slot of each token: the row's tokens so far, then counting up. Below 0 for
                padding, whose logits mean nothing.
            cache: of the tokens before.
            expert_bias: [MoE layers, E].

        Returns:
            float32 [B, T, V], and the new cache.
        """
        config = self.config
        shared = Shared(
            rotation=make_rotation(positions_BT, config.dim_per_head, config.rope),
            valid_BT=positions_BT >= 0,
            segment_ids_BT=None,
            weight_BT=None,
            row_keys_B=None,
        )
        x_BTD = self._embed(params, tokens_BT)
        new_cache: Cache = {}
        for kind, graph in self._graphs.items():
            x_BTD, new_cache[kind] = decode_stack(
                graph,
                params["layers"][kind],
                self._layers(kind, expert_bias),
                x_BTD,
                positions_BT,
                shared,
                cache[kind],
                windows=self._windows(kind),
                unroll=self._unroll,
            )
        return self._unembed(params, x_BTD), new_cache

    def _windows(self, kind: Kind) -> list[int | None]:
        return [self.config.window_of(layer) for layer in self.layers_of[kind]]

    def _layers(self, kind: Kind, expert_bias: jax.Array) -> Layer:
        numbers = jnp.asarray(self.layers_of[kind], jnp.int32)
        return Layer(numbers, expert_bias if kind == "moe" else jnp.zeros((len(numbers), 0), jnp.float32))

    def _run_layers(
        self,
        params: Params,
        x_BTD: jax.Array,
        shared: Shared,
        expert_bias: jax.Array,
        kinds: Sequence[Kind] | None = None,
    ) -> tuple[jax.Array, dict[Kind, LayerStats]]:
        """The layers of some kinds, by default of all; the statistics are stacked over the layers of a kind."""
        kinds = tuple(self.layers_of) if kinds is None else kinds
        assert not (self.pipeline and self._staged in kinds), "stages run by loss alone"
        stats: dict[Kind, LayerStats] = {}
        for kind in kinds:
            layers = self._layers(kind, expert_bias)
            stack = params["layers"][kind]
            x_BTD, stats[kind] = self._run_stack(kind, stack, layers, x_BTD, shared, self._windows(kind))
        return x_BTD, stats

    def _run_stages(
        self,
        pipeline: Pipeline,
        params: Params,
        batch: Mapping[str, jax.Array],
        row_keys: jax.Array | None,
        expert_bias: jax.Array,
    ) -> tuple[jax.Array, dict[Kind, LayerStats]]:
        """All layers for M microbatches: leading ones before the pipeline, the others in its stages."""
        staged = self._staged
        leading = [kind for kind in self.layers_of if kind != staged]
        windows = self._windows(staged)[: pipeline.slot_layers]

        def enter(part: tuple[Mapping[str, jax.Array], jax.Array | None]) -> tuple[jax.Array, dict[Kind, LayerStats]]:
            batch, keys = part
            x_BTD, shared = self._embed(params, batch["tokens"]), self._share(batch, keys)
            return self._run_layers(params, x_BTD, shared, expert_bias, leading)

        def stage(
            params: Params, layers: Layer, x_BTD: jax.Array, part: tuple[Any, jax.Array | None], active: jax.Array
        ) -> tuple[jax.Array, LayerStats]:
            batch, keys = part
            shared = self._share(batch, keys).only_if(active)
            return self._run_stack(staged, params, layers, x_BTD, shared, windows, has_empty=has_empty)

        part = (dict(batch), row_keys)
        x_MBTD, entered = pipeline.over_microbatches(enter, part)
        stats = {kind: combine_microbatches(found, 0) for kind, found in entered.items()}
        has_empty = pipeline.num_places > pipeline.num_layers
        layers = jax.tree.map(lambda leaf: leaf[pipeline.layer_at], self._layers(staged, expert_bias))
        layers = layers._replace(number=jnp.where(pipeline.layer_at < 0, -1, layers.number))
        x_MBTD, stats[staged] = pipeline.run(
            stage, params["layers"][staged], layers, x_MBTD, part, combine_microbatches
        )
        return x_MBTD, stats

    def _run_stack(
        self,
        kind: Kind,
        params: Params,
        layers: Layer,
        x_BTD: jax.Array,
        shared: Shared,
        windows: Sequence[int | None],
        *,
        has_empty: bool = False,
    ) -> tuple[jax.Array, LayerStats]:
        return run_stack(
            self._graphs[kind],
            params,
            layers,
            x_BTD,
            shared,
            windows=windows,
            unroll=self._unroll,
            # The stages of a pipeline hold layers of the same policies.
            remat=[self._remat.policy_of(layer) for layer in self.layers_of[kind]][: len(windows)],
            has_empty=has_empty,
        )

    def _embed(self, params: Params, tokens_BT: jax.Array) -> jax.Array:
        table_VD = self.runtime.gather(params["embedding"]["weight"], "vocab", "embed")
        x_BTD = jnp.take(table_VD, tokens_BT, axis=0).astype(self.runtime.activation_dtype)
        if self.runtime.sequence_parallel:
            # Divided only afterwards: ranks with tokens of their own would gather the whole table.
            x_BTD = self.runtime.constrain(x_BTD, "batch", "sequence", "embed")
        return self.runtime.constrain(x_BTD, "batch", "residual_sequence", "embed")

    def _normalize(self, params: Params, x_BTD: jax.Array) -> jax.Array:
        """The final norm, times the parametrization's factor on the logits."""
        x_BTD = nnx.merge(self._final_norm, params["final_norm"])(x_BTD)
        if self._logit_factor != 1:
            x_BTD = x_BTD * self._logit_factor
        return x_BTD.astype(self.runtime.activation_dtype)

    def _output_table(self, params: Params) -> jax.Array:
        return params["embedding" if self.config.tie_embeddings else "output"]["weight"]

    def _unembed(self, params: Params, x_BTD: jax.Array) -> jax.Array:
        table_VD = self.runtime.gather(self._output_table(params), "vocab", "embed")
        normed_BTD = self._normalize(params, x_BTD).astype(jnp.float32)
        return project(normed_BTD, table_VD.T, 1, self.runtime.compute_dtype)
