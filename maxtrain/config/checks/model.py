"""The model's shape."""

from collections.abc import Iterator, Mapping

from maxtrain.config.checks.numbers import divisors_near, say_either
from maxtrain.config.checks.unused import check_unused
from maxtrain.config.schema import Config, ModelConfig, MoeConfig, RopeScaling
from maxtrain.config.violations import Violation


def _lengths(config: Config) -> list[int]:
    """Sequence length of every stage."""
    lengths = [stage.sequence_length or config.data.sequence_length for stage in config.data.stages]
    return lengths or [config.data.sequence_length]


def _longest(config: Config) -> int:
    return max(_lengths(config))


def _check_attention(config: Config) -> Iterator[Violation]:
    model = config.model
    heads, kv_heads = model.num_heads, model.kv_heads
    if heads % kv_heads:
        near = say_either(divisors_near(kv_heads, heads))
        yield Violation("model.num_kv_heads", kv_heads, f"must divide model.num_heads = {heads}", f"set {near}")
    if model.head_dim is None and model.d_model % heads:
        yield Violation(
            "model.num_heads",
            heads,
            f"must divide model.d_model = {model.d_model:,} where model.head_dim is null",
            f"set {say_either(divisors_near(heads, model.d_model))}, or give model.head_dim",
        )
    elif model.dim_per_head % 2:
        near = say_either([even for even in (model.dim_per_head - 1, model.dim_per_head + 1) if even])
        yield Violation(
            "model.head_dim", model.dim_per_head, "must be even, for rotary positions turn pairs", f"set {near}"
        )
    if model.attention == "mla":
        yield Violation("model.attention", "mla", "is not available yet", "set gqa, with fewer model.num_kv_heads")
    if model.global_every and model.window is None:
        yield Violation(
            "model.global_every",
            model.global_every,
            "needs a window: without one every layer attends fully",
            "give model.window, or set 0",
        )
    elif model.window is not None and model.window >= _longest(config):
        yield Violation(
            "model.window",
            model.window,
            f"has no effect, for no sequence is longer than {_longest(config):,}",
            f"set less than {_longest(config):,}, or null for full attention",
        )
    elif model.global_every > model.num_layers:
        yield Violation(
            "model.global_every",
            model.global_every,
            f"has no effect, for there are model.num_layers = {model.num_layers} layers",
            f"set {model.num_layers} or less, or 0",
        )
    elif model.global_every == 1:
        yield Violation(
            "model.global_every",
            1,
            f"makes every layer attend fully, so that model.window = {model.window:,} has no effect",
            "set 2 or more, or model.window to null",
        )


def _check_rope(model: ModelConfig) -> Iterator[Violation]:
    scaling = model.rope.scaling
    if scaling is None:
        return
    if scaling.factor < 1:
        yield Violation(
            "model.rope.scaling.factor",
            scaling.factor,
            "must be at least 1: positions are stretched",
            "set new / old length",
        )
    yield from _check_rope_keys(scaling)
    if scaling.kind == "llama3" and scaling.low_freq_factor >= scaling.high_freq_factor:
        yield Violation(
            "model.rope.scaling.low_freq_factor",
            scaling.low_freq_factor,
            f"must be under model.rope.scaling.high_freq_factor = {scaling.high_freq_factor}",
            "lower it (Llama 3.1: 1 and 4)",
        )
    if scaling.kind == "yarn" and scaling.beta_slow >= scaling.beta_fast:
        yield Violation(
            "model.rope.scaling.beta_slow",
            scaling.beta_slow,
            f"must be under model.rope.scaling.beta_fast = {scaling.beta_fast}",
            "lower it (YaRN: 1 and 32)",
        )


_ROPE_KEYS = {
    "linear": (),
    "llama3": ("original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": ("original_length", "beta_fast", "beta_slow"),
}
"""Keys of model.rope.scaling that a kind reads beside its factor."""


def _check_rope_keys(scaling: RopeScaling) -> Iterator[Violation]:
    """A kind has the keys that it needs, and no others."""
    used = _ROPE_KEYS[scaling.kind]
    if "original_length" in used and scaling.original_length is None:
        limit = f"is required with kind {scaling.kind}"
        yield Violation("model.rope.scaling.original_length", None, limit, "give the length of the first training")
    for name in sorted({key for keys in _ROPE_KEYS.values() for key in keys}.difference(used)):
        value, default = getattr(scaling, name), RopeScaling.model_fields[name].default
        if value != default:
            cure = f"remove it (the default is {'null' if default is None else format(default, 'g')})"
            yield Violation(f"model.rope.scaling.{name}", value, f"has no effect with kind {scaling.kind}", cure)


def _check_unused(moe: MoeConfig) -> Iterator[Violation]:
    """Keys that only act beside another."""
    if moe.d_shared is not None and not moe.num_shared:
        limit = "has no effect, for model.moe.num_shared is 0"
        yield Violation("model.moe.d_shared", moe.d_shared, limit, "set null, or give model.moe.num_shared")
    why = f" with model.moe.balance = {moe.balance}"
    if moe.balance != "bias":
        yield from check_unused(moe, "model.moe", ("bias_rate",), why, "balance to bias")
    if moe.balance == "none" and moe.balance_weight:
        yield from check_unused(moe, "model.moe", ("balance_weight",), why, "another balance")


def _check_routing(moe: MoeConfig) -> Iterator[Violation]:
    experts, groups = moe.num_experts, moe.num_groups
    if experts % groups:
        yield Violation(
            "model.moe.num_groups",
            groups,
            f"must divide model.moe.num_experts = {experts}",
            f"set {say_either(divisors_near(groups, experts))}",
        )
    if moe.top_groups > groups:
        yield Violation(
            "model.moe.top_groups",
            moe.top_groups,
            f"must be at most model.moe.num_groups = {groups}",
            f"set {groups} or less",
        )
    allowed = experts // groups * min(moe.top_groups, groups)
    if moe.top_k > allowed:
        of_groups = f" in the {moe.top_groups} of {groups} groups that a token may use" if groups > 1 else ""
        yield Violation(
            "model.moe.top_k", moe.top_k, f"must be at most {allowed}, the experts{of_groups}", f"set {allowed} or less"
        )


def _check_capacity(config: Config, moe: MoeConfig) -> Iterator[Violation]:
    factor = moe.capacity_factor
    length = min(_lengths(config))
    if factor is None:
        return
    if factor * moe.top_k >= moe.num_experts:
        most = moe.num_experts / moe.top_k
        yield Violation(
            "model.moe.capacity_factor",
            factor,
            f"has no effect: from model.moe.num_experts / top_k = {most:g} on, an expert takes every token of a row",
            f"set less than {most:g}, or null for dropless",
        )
    elif int(factor * length * moe.top_k / moe.num_experts) < 1:
        least = moe.num_experts / (length * moe.top_k)
        yield Violation(
            "model.moe.capacity_factor",
            factor,
            f"leaves an expert less than one token of a sequence of {length:,}",
            f"set at least {least:g}, or null for dropless",
        )


def _check_parametrization(model: ModelConfig) -> Iterator[Violation]:
    base = model.parametrization
    if base is None:
        return
    path = "model.parametrization.base_num_layers"
    if base.kind == "completep" and base.base_num_layers is None:
        limit = "completep needs the layers at which init_std, learning rate and epsilon were tuned"
        yield Violation(path, None, limit, "give them, or set model.parametrization.kind to mup")
    if base.kind == "mup" and base.base_num_layers is not None:
        limit = "has no effect with model.parametrization.kind = mup, which knows widths only"
        yield Violation(path, base.base_num_layers, limit, "set null, or model.parametrization.kind to completep")


def check_model(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Heads, positions, experts, and what is not available yet; independent of the mesh."""
    model, moe = config.model, config.model.moe
    yield from _check_attention(config)
    yield from _check_rope(model)
    yield from _check_parametrization(model)
    if model.num_mtp:
        yield Violation("model.num_mtp", model.num_mtp, "multi-token prediction is not available yet", "set 0")
    if model.dropout == 1:
        yield Violation("model.dropout", 1, "must be under 1, or nothing is left", "set 0.1, or 0 for none")
    if config.precision.emulate and not config.precision.is_eight_bit:
        limit = f"has no effect with precision.compute = {config.precision.compute}"
        yield Violation("precision.emulate", True, limit, "set false, or precision.compute to float8 or mxfp8")
    if moe is None:
        return
    yield from _check_routing(moe)
    yield from _check_unused(moe)
    yield from _check_capacity(config, moe)
    if moe.first_dense > model.num_layers:
        yield Violation(
            "model.moe.first_dense",
            moe.first_dense,
            f"must be at most model.num_layers = {model.num_layers}",
            f"set {model.num_layers} or less",
        )
