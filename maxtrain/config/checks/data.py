"""What is read: datasets, domains, filters, held-out documents."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping

from maxtrain.config.schema import WEIGHT_UNITS, Config, DomainConfig
from maxtrain.config.violations import Violation


def _check_domain(path: str, domain: DomainConfig, total: float) -> Iterator[Violation]:
    share = domain.weight / total
    if share < 1 / WEIGHT_UNITS:
        yield Violation(
            f"{path}.weight",
            domain.weight,
            f"is {share:.2g} of the mixture, under the least share of 1/{WEIGHT_UNITS:,}",
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


def _check_mixture(path: str, mixture: Mapping[str, DomainConfig]) -> Iterator[Violation]:
    total = sum(domain.weight for domain in mixture.values())
    for name, domain in mixture.items():
        yield from _check_domain(f"{path}.{name}", domain, total)


def _check_held_out(
    config: Config, dataset: str | None, path: str, mixture: Mapping[str, DomainConfig]
) -> Iterator[Violation]:
    """No domain trains on what evaluation holds out of the dataset that both read."""
    evaluation = config.evaluation
    held_out_of = evaluation.dataset or config.data.dataset
    if not evaluation.every or dataset is None or held_out_of is None or _place(dataset) != _place(held_out_of):
        return
    for name, domain in mixture.items():
        splits = [domain.filter.split] if isinstance(domain.filter.split, str) else domain.filter.split
        if evaluation.split in splits:
            yield Violation(
                f"{path}.{name}.filter.split",
                ", ".join(splits),
                f"would train on the documents that evaluation.split = {evaluation.split} holds out",
                "take it out of the filter, or set evaluation.every to 0",
            )


def _place(location: str) -> str:
    """A dataset's place, however it is written."""
    return location.rstrip("/") if "://" in location else os.path.normpath(location)


def _check_datasets(config: Config) -> Iterator[Violation]:
    data, evaluation = config.data, config.evaluation
    cure = "give a dataset directory or URL, or set data.source to synthetic"
    for name in ("data", "evaluation", *(f"data.stages.{index}" for index in range(len(data.stages)))):
        section = data.stages[int(name.rpartition(".")[2])] if "." in name else getattr(config, name)
        if section.dataset is not None and not section.dataset.strip():
            yield Violation(f"{name}.dataset", section.dataset, "is an empty text", cure)
    if data.source == "synthetic":
        if evaluation.dataset is not None:
            limit = "has no effect, for data.source is synthetic"
            yield Violation("evaluation.dataset", evaluation.dataset, limit, "set null")
        if evaluation.every:
            yield Violation(
                "evaluation.every",
                evaluation.every,
                "synthetic data has no held-out documents",
                "set evaluation.every to 0",
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
    """Datasets that are named, filters that can match, stages that can be told apart, nothing held out that is read."""
    data = config.data
    yield from _check_datasets(config)
    yield from _check_mixture("data.mixture", data.mixture)
    for index, stage in enumerate(data.stages):
        if stage.mixture is not None:
            yield from _check_mixture(f"data.stages.{index}.mixture", stage.mixture)
    found: list[Violation] = []
    if not data.stages:
        found += _check_held_out(config, data.dataset, "data.mixture", data.mixture)
    for index, stage in enumerate(data.stages):
        path = "data.mixture" if stage.mixture is None else f"data.stages.{index}.mixture"
        found += _check_held_out(config, stage.dataset or data.dataset, path, stage.mixture or data.mixture)
    yield from dict.fromkeys(found)
    for name, count in Counter(stage.name for stage in data.stages).items():
        if count > 1:
            yield Violation("data.stages", name, f"names {count} stages", "give every stage its own name")
