"""The optimizer: options that cannot act, and groups of parameters that the model does not have."""

from collections.abc import Iterator, Mapping

from maxtrain.config.checks.unused import check_unused
from maxtrain.config.schema import Config, ModelConfig, ParameterGroup
from maxtrain.config.violations import Violation

_MOST_RATE = 1000


def _absent_groups(model: ModelConfig) -> dict[ParameterGroup, str]:
    """Groups without parameters, and why."""
    absent: dict[ParameterGroup, str] = {}
    if model.tie_embeddings:
        absent["output"] = "the output projection is the embedding (model.tie_embeddings)"
    if model.moe is None:
        absent["experts"] = absent["router"] = "the model has no experts (model.moe is null)"
    elif not model.moe.first_dense and not model.moe.num_shared:
        absent["feed_forward"] = "every feed-forward is of routed experts"
    return absent


def _check_groups(config: Config) -> Iterator[Violation]:
    absent = _absent_groups(config.model)
    for name, group in config.optimizer.groups.items():
        if name in absent:
            path, stated = f"optimizer.groups.{name}", group.model_dump(exclude_unset=True)
            yield Violation(path, stated, f"has no effect: {absent[name]}", "delete it")


def _check_storage(config: Config) -> Iterator[Violation]:
    optimizer, precision = config.optimizer, config.precision
    if precision.parameters == "bfloat16" and not optimizer.stochastic_rounding:
        limit = "would lose every update under 1/256 of its parameter, rounded to the nearest"
        cure = "set optimizer.stochastic_rounding to true, or precision.parameters to float32"
        yield Violation("precision.parameters", "bfloat16", limit, cure)
    stored = {precision.parameters, optimizer.mu_dtype, optimizer.nu_dtype}
    if optimizer.stochastic_rounding and "bfloat16" not in stored:
        limit = "has no effect: parameters and moments are stored in float32"
        cure = "set false, or optimizer.mu_dtype, optimizer.nu_dtype or precision.parameters to bfloat16"
        yield Violation("optimizer.stochastic_rounding", True, limit, cure)


def _check_rates(config: Config) -> Iterator[Violation]:
    """What is multiplied by the learning rate stays in bounds together with it."""
    optimizer, lr = config.optimizer, config.schedule.lr
    groups = [(f"groups.{name}.", group.lr_factor, group.weight_decay) for name, group in optimizer.groups.items()]
    for section, factor, own in [("", 1.0, None), *groups]:
        rate, decay = lr * factor, optimizer.weight_decay if own is None else own
        if rate > _MOST_RATE:
            limit = f"times schedule.lr = {lr:g} is a learning rate of {rate:g}, over {_MOST_RATE:,}"
            yield Violation(f"optimizer.{section}lr_factor", factor, limit, f"set {_MOST_RATE / lr:g} or less")
        elif rate * decay > 1:
            limit = f"times the learning rate {rate:g} is over 1: an update would turn every parameter's sign"
            path = f"optimizer.{'' if own is None else section}weight_decay"
            yield Violation(path, decay, limit, f"set {1 / rate:g} or less, or a lower schedule.lr")


def check_optimizer(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Groups that are there, number formats that keep what they are given, a clip that can act."""
    yield from _check_groups(config)
    yield from _check_storage(config)
    yield from _check_rates(config)
    if config.optimizer.name != "muon":
        why = f" with optimizer.name = {config.optimizer.name}"
        keys = ("muon_momentum", "muon_iterations")
        yield from check_unused(config.optimizer, "optimizer", keys, why, "optimizer.name to muon")
    if config.optimizer.qk_clip is not None and config.model.qk_norm:
        limit = "has no effect with model.qk_norm, which normalises away any factor on queries and keys"
        yield Violation("optimizer.qk_clip", config.optimizer.qk_clip, limit, "set null, or model.qk_norm to false")
