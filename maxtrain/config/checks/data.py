"""What is read: datasets, domains, filters, held-out documents."""

from collections import Counter
from collections.abc import Iterator, Mapping

from maxtrain.config.checks.numbers import multiples_near, say_either
from maxtrain.config.schema import Config, DomainConfig
from maxtrain.config.violations import Violation

WEIGHT_UNIT = 1 / 65_536
"""Weights are rounded to whole multiples of this share."""


def _check_domain(path: str, domain: DomainConfig, total: float) -> Iterator[Violation]:
    share = domain.weight / total
    if share < WEIGHT_UNIT:
        yield Violation(
            f"{path}.weight",
            domain.weight,
            f"is {share:.2g} of the mixture, under the least share of 1/65,536",
            "raise it, or remove the domain",
        )
    for name in ("quality_score", "num_tokens"):
        bounds = getattr(domain.filter, name)
        if bounds is not None and None not in (bounds.min, bounds.max) and bounds.min > bounds.max:
            yield Violation(
                f"{path}.filter.{name}.min",
                bounds.min,
                f"is over {name}.max = {bounds.max:g}, so that no document matches",
                "swap the two",
            )


def _check_mixture(config: Config, path: str, mixture: Mapping[str, DomainConfig]) -> Iterator[Violation]:
    evaluation = config.evaluation
    total = sum(domain.weight for domain in mixture.values())
    for name, domain in mixture.items():
        yield from _check_domain(f"{path}.{name}", domain, total)
        splits = [domain.filter.split] if isinstance(domain.filter.split, str) else domain.filter.split
        if evaluation.every and evaluation.dataset is None and evaluation.split in splits:
            yield Violation(
                f"{path}.{name}.filter.split",
                ", ".join(splits),
                f"would train on the documents that evaluation.split = {evaluation.split} holds out",
                "take it out of the filter, or set evaluation.every to 0",
            )


def _check_datasets(config: Config) -> Iterator[Violation]:
    data, evaluation = config.data, config.evaluation
    cure = "give a dataset directory or URL, or set data.source to synthetic"
    for name in ("data", "evaluation", *(f"data.stages.{index}" for index in range(len(data.stages)))):
        section = data.stages[int(name.rpartition(".")[2])] if "." in name else getattr(config, name)
        if section.dataset is not None and not section.dataset.strip():
            yield Violation(f"{name}.dataset", section.dataset, "is an empty text", cure)
    if data.source == "synthetic":
        if evaluation.every and evaluation.dataset is None:
            yield Violation(
                "evaluation.every",
                evaluation.every,
                "synthetic data has no held-out documents",
                "set evaluation.every to 0, or give evaluation.dataset",
            )
        return
    if data.dataset is None:
        if not data.stages:
            yield Violation("data.dataset", None, "is required", cure)
        for index, stage in enumerate(data.stages):
            if stage.dataset is None:
                yield Violation(f"data.stages.{index}.dataset", None, "is required, for data.dataset is null", cure)
        if data.stages and evaluation.every and evaluation.dataset is None:
            yield Violation(
                "evaluation.dataset", None, "is required, for data.dataset is null", "give a dataset directory or URL"
            )


def check_data(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Datasets that are named, filters that can match, stages that can be told apart, whole rows of evaluation."""
    data, evaluation = config.data, config.evaluation
    yield from _check_datasets(config)
    yield from _check_mixture(config, "data.mixture", data.mixture)
    for index, stage in enumerate(data.stages):
        if stage.mixture is not None:
            yield from _check_mixture(config, f"data.stages.{index}.mixture", stage.mixture)
    for name, count in Counter(stage.name for stage in data.stages).items():
        if count > 1:
            yield Violation("data.stages", name, f"names {count} stages", "give every stage its own name")
    lengths = {stage.sequence_length or data.sequence_length for stage in data.stages} or {data.sequence_length}
    for length in sorted(lengths):
        if evaluation.every and evaluation.max_tokens % length:
            yield Violation(
                "evaluation.max_tokens",
                evaluation.max_tokens,
                f"must be a whole number of rows of {length:,} tokens",
                f"set {say_either(multiples_near(evaluation.max_tokens, length))}",
            )
