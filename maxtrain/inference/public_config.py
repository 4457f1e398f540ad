"""Reading the `config.json` of a public checkpoint: what is understood is mapped, all else is refused by name."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from maxtrain.config.schema import ModelConfig, MoeConfig, RopeConfig, RopeScaling
from maxtrain.core.errors import UserError

ARCHITECTURES = ("llama", "qwen3", "mixtral", "qwen3_moe")
"""Values of `model_type` that can be read."""

_WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "model_type",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys that do not change what the loaded weights compute (training and bookkeeping)."""

_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"),
}


class _Reader:
    """The keys of a public config; each must be read, or known to be without effect."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read = set(_WITHOUT_EFFECT)

    def get(self, *names: str, default: Any = None) -> Any:
        """Value of the first of these names that is there and not null."""
        self._read.update(names)
        return next((self._values[name] for name in names if self._values.get(name) is not None), default)

    def need(self, *names: str) -> Any:
        """The same, but it must be there."""
        value = self.get(*names)
        if value is None:
            raise UserError(f"{self._where}: {names[0]} is missing")
        return value

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse a value that this model cannot compute."""
        value = self.get(name, default=allowed[0])
        if value not in allowed:
            raise UserError(f"{self._where}: {name} {value!r} is not supported; only {allowed[0]!r} is")

    def finish(self) -> None:
        """Refuse keys that nothing read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise UserError(f"{self._where}: unknown key {unknown[0]}; the weights may not mean what is read")


def read_public_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    """Translate a public config of transformers 4 or 5.

    Balancing of experts is left off: the public config does not say how its coefficient was normalised.

    Args:
        values: the content of `config.json`.
        where: the file, for messages.

    Raises:
        UserError: an unknown architecture or key, or a value that this model cannot compute.
    """
    kind = values.get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(f"{where}: model_type {kind!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    reader = _Reader(values, where)
    reader.expect("hidden_act", "silu")
    reader.expect("attention_bias", False)
    reader.expect("mlp_bias", False)
    num_layers = reader.need("num_hidden_layers")
    window, global_every = _read_windows(reader, kind, num_layers, where)
    max_length = reader.get("max_position_embeddings", default=2048)
    fields = {
        "vocab_size": reader.need("vocab_size"),
        "num_layers": num_layers,
        "d_model": reader.need("hidden_size"),
        "num_heads": reader.need("num_attention_heads"),
        "num_kv_heads": reader.get("num_key_value_heads"),
        "head_dim": reader.get("head_dim"),
        "d_ff": reader.need("intermediate_size"),
        "window": window,
        "global_every": global_every,
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "norm_eps": reader.get("rms_norm_eps", default=1e-6),
        "tie_embeddings": reader.get("tie_word_embeddings", default=False),
        "rope": _read_rope(reader, max_length, where),
        "moe": _read_moe(reader, kind, num_layers, where),
    }
    reader.finish()
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{where}: {first['loc'][0]}: {first['msg']} (found {first['input']!r})") from None


def _read_windows(reader: _Reader, kind: str, num_layers: int, where: str) -> tuple[int | None, int]:
    """The sliding window, and every how many layers one attends fully."""
    size = reader.get("sliding_window")
    used = reader.get("use_sliding_window", default=kind == "mixtral")
    first_windowed = reader.get("max_window_layers", default=0)
    types = reader.get("layer_types")
    if size is None or not used:
        return None, 0
    if types is None:
        full = range(num_layers) if first_windowed >= num_layers else range(first_windowed)
        types = ["full_attention" if layer in full else "sliding_attention" for layer in range(num_layers)]
    is_full = [name == "full_attention" for name in types]
    if all(is_full):
        return None, 0
    if not any(is_full):
        return size, 0
    every = is_full.index(True) + 1
    if is_full != [(layer + 1) % every == 0 for layer in range(num_layers)]:
        raise UserError(f"{where}: layer_types must be all alike, or attend fully in every n-th layer")
    return size, every


def _read_rope(reader: _Reader, max_length: int, where: str) -> RopeConfig:
    """Rotary positions: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4)."""
    parameters = dict(reader.get("rope_parameters", default={}))
    scaling = dict(reader.get("rope_scaling", default={}))
    theta = parameters.pop("rope_theta", None) or reader.get("rope_theta", default=10000.0)
    reader.get("rope_theta")
    scaling |= parameters
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    if kind not in _ROPE_KEYS:
        raise UserError(f"{where}: rope_type {kind!r} is not supported; supported are {', '.join(_ROPE_KEYS)}")
    unknown = sorted(set(scaling) - set(_ROPE_KEYS[kind]))
    if unknown:
        raise UserError(f"{where}: rope key {unknown[0]} is not supported with rope_type {kind}")
    if kind == "default":
        return RopeConfig(theta=theta)
    original = scaling.pop("original_max_position_embeddings", max_length)
    length = None if kind == "linear" else original
    return RopeConfig(theta=theta, scaling=RopeScaling(kind=kind, original_length=length, **scaling))


def _read_moe(reader: _Reader, kind: str, num_layers: int, where: str) -> MoeConfig | None:
    if kind not in ("mixtral", "qwen3_moe"):
        return None
    width, first_dense, normalize = "intermediate_size", 0, True
    if kind == "qwen3_moe":
        reader.expect("decoder_sparse_step", 1)
        dense = reader.get("mlp_only_layers", default=[])
        if sorted(dense) != list(range(len(dense))):
            raise UserError(f"{where}: mlp_only_layers {dense} must be the first layers")
        width, first_dense = "moe_intermediate_size", len(dense)
        normalize = reader.get("norm_topk_prob", default=False)
    return MoeConfig(
        num_experts=reader.need("num_local_experts", "num_experts"),
        top_k=reader.need("num_experts_per_tok"),
        d_expert=reader.need(width),
        first_dense=first_dense,
        normalize_top_k=normalize,
        balance="none",
        balance_weight=0.0,
    )
