"""Stages resolved: which stream each domain reads in each stage, in which order, from which row on."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from maxtrain.config.batch_plan import BatchPlan, Stage
from maxtrain.config.schema import DataConfig, DomainConfig
from maxtrain.core.errors import DataError, UserError
from maxtrain.dataset import Dataset
from maxtrain.loader.best_fit import BestFitOrder
from maxtrain.loader.concat import ConcatOrder
from maxtrain.loader.schedule import Schedule, round_weights
from maxtrain.loader.stream import DomainStream, Pieces, canonical_filter, hash_json


class OpenDataset(Protocol):
    """How datasets are opened."""

    def __call__(self, location: str, *, verify: Literal["full", "size"]) -> Dataset:
        """Open and verify."""


class RowOrder(Protocol):
    """Rows of a domain's stream in the order of a run, epoch after epoch."""

    stream: DomainStream
    key: str
    """Names stream, packing and versions: orders with one key share a cursor."""
    index_sha256: str | None
    """Hash of the packed index; None where packing needs none."""
    rows_per_epoch: int
    padding_per_epoch: int
    """Padding tokens in an epoch."""
    splits_per_epoch: int
    """Places where a document goes on in another row, in an epoch."""

    def pieces(self, rows: np.ndarray) -> Pieces:
        """Documents of rows since the start of epoch 0."""

    def first_row(self, cursor: int) -> int:
        """Row at which a cursor stands."""

    def cursor_after(self, row: int) -> tuple[int, int]:
        """Cursor at or after a row, and the rows left out between."""


@dataclass(frozen=True)
class StageDomain:
    """One domain in one stage."""

    name: str
    index: int
    """Place among the loader's domains."""
    config: DomainConfig
    order: RowOrder
    units: int
    """Share of the rows, in 1/65,536."""
    first_row: int
    """Row of the order with which the stage begins."""
    num_rows: int
    remainder_rows: int
    """Rows that the next stage leaves out after this one, so that it starts with a whole block."""
    is_fresh: bool
    """Whether no earlier stage read this order."""

    def epochs_after(self, num_rows: int) -> float:
        """Epochs of the stream consumed after this many of the stage's rows of the domain."""
        return (self.first_row + num_rows) / self.order.rows_per_epoch


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with its dataset, schedule and domains, in the order of the mixture."""

    stage: Stage
    dataset: Dataset
    schedule: Schedule
    domains: tuple[StageDomain, ...]


def resolve_stages(
    plan: BatchPlan, data: DataConfig, *, seed: int, vocab_size: int, open_dataset: OpenDataset
) -> tuple[ResolvedStage, ...]:
    """Open every stage's dataset and lay each domain's cursor through the stages.

    A stage that reads the same documents in the same packing goes on where the last one stopped, at the next whole
    block. Another dataset, filter or packing (best_fit: also another sequence length) starts an order of its own.

    Raises:
        DataError: a dataset's vocabulary exceeds vocab_size, or two datasets have different tokenizers.
        UserError: a domain is empty, appears twice under two names, or would exceed its max_epochs.
    """
    names = domain_names(plan)
    block_tokens = block_tokens_of(plan, data)
    datasets = _open_datasets(plan, data, vocab_size, open_dataset)
    orders: dict[str, RowOrder] = {}
    cursors: dict[str, int] = {}
    resolved = []
    for stage in plan.stages:
        dataset = datasets[str(stage.dataset)]
        units = round_weights({name: domain.weight for name, domain in stage.mixture.items()})
        schedule = Schedule(np.array(list(units.values())))
        counts = schedule.counts(stage.num_rows)
        domains: list[StageDomain] = []
        for place, (name, config) in enumerate(stage.mixture.items()):
            _refuse_twin(domains, config, name, stage.name)
            identity = hash_json(
                [dataset.manifest_hash, canonical_filter(config.filter), config.packing, stage.sequence_length]
            )
            if identity not in orders:
                stream = DomainStream.select(dataset, config.filter, name)
                orders[identity] = _make_order(stream, config, seed, block_tokens, stage.sequence_length)
            order = orders[identity]
            is_fresh = order.key not in cursors
            first_row = order.first_row(cursors.get(order.key, 0))
            num_rows = int(counts[place])
            cursors[order.key], remainder = order.cursor_after(first_row + num_rows)
            domain = StageDomain(
                name, names.index(name), config, order, units[name], first_row, num_rows, remainder, is_fresh
            )
            _refuse_excess(domain, stage)
            domains.append(domain)
        resolved.append(ResolvedStage(stage, dataset, schedule, tuple(domains)))
    return tuple(resolved)


def domain_names(plan: BatchPlan) -> tuple[str, ...]:
    """Domains of all stages in order of first appearance."""
    return tuple(dict.fromkeys(name for stage in plan.stages for name in stage.mixture))


def block_tokens_of(plan: BatchPlan, data: DataConfig) -> int:
    """Tokens of a block, the default resolved.

    Raises:
        UserError: a stage's sequence length does not divide it.
    """
    lengths = [stage.sequence_length for stage in plan.stages]
    block_tokens = data.block_tokens or max(lengths)
    for stage, length in zip(plan.stages, lengths, strict=True):
        if block_tokens % length:
            raise UserError(
                f"data.block_tokens: {block_tokens} is not a multiple of the sequence length {length} of stage "
                f"{stage.name!r}; {-(-block_tokens // length) * length} would be"
            )
    return block_tokens


def _open_datasets(plan: BatchPlan, data: DataConfig, vocab_size: int, open_dataset: OpenDataset) -> dict[str, Dataset]:
    datasets: dict[str, Dataset] = {}
    for stage in plan.stages:
        if stage.dataset is None:
            raise UserError(f"data.dataset: stage {stage.name!r} names no dataset; set it, or data.source: synthetic")
        if stage.dataset in datasets:
            continue
        dataset = open_dataset(stage.dataset, verify=data.verify)
        if dataset.vocab_size > vocab_size:
            raise DataError(
                f"model.vocab_size: {vocab_size} is below the {dataset.vocab_size} ids of the tokenizer of "
                f"{stage.dataset}; raise it to at least {dataset.vocab_size}"
            )
        first = next(iter(datasets.values()), dataset)
        if dataset.tokenizer_hash != first.tokenizer_hash:
            raise DataError(
                f"{stage.dataset}: its tokenizer ({dataset.tokenizer_hash[:12]}) is not that of {first.location} "
                f"({first.tokenizer_hash[:12]}); build both datasets with one tokenizer"
            )
        datasets[stage.dataset] = dataset
    return datasets


def _make_order(
    stream: DomainStream, config: DomainConfig, seed: int, block_tokens: int, sequence_length: int
) -> RowOrder:
    if config.packing == "best_fit":
        return BestFitOrder(stream, seed=seed, sequence_length=sequence_length)
    return ConcatOrder(stream, seed=seed, block_tokens=block_tokens, sequence_length=sequence_length)


def _refuse_twin(domains: list[StageDomain], config: DomainConfig, name: str, stage: str) -> None:
    for other in domains:
        if other.order.stream.filter == canonical_filter(config.filter):
            raise UserError(
                f"mixture.{name}.filter: the same filter as {other.name!r} in stage {stage!r}, so both would read the "
                f"same documents; merge them into one domain with the sum of the weights"
            )


def _refuse_excess(domain: StageDomain, stage: Stage) -> None:
    limit = domain.config.max_epochs
    epochs = domain.epochs_after(domain.num_rows)
    if limit is None or epochs <= limit:
        return
    wanted = (domain.first_row + domain.num_rows) * stage.sequence_length
    raise UserError(
        f"mixture.{domain.name}.max_epochs: {limit:g} epochs of its {domain.order.stream.num_tokens} tokens are "
        f"allowed, but by the end of stage {stage.name!r} the run would read {wanted} tokens of it, {epochs:.2f} "
        f"epochs; lower its weight or the run's tokens, or raise the limit"
    )
