"""The rows of a run: any row, batch or stretch of steps as a pure function of the config, the data and the seed."""

from dataclasses import dataclass

import numpy as np

from maxtrain.config.batch_plan import BatchPlan, Stage
from maxtrain.config.schema import DataConfig
from maxtrain.dataset import Dataset
from maxtrain.loader.assemble import Batch, assemble
from maxtrain.loader.fingerprint import Fingerprint, dataset_fingerprint, synthetic_fingerprint
from maxtrain.loader.stages import OpenDataset, ResolvedStage, domain_names, resolve_stages
from maxtrain.loader.stream import Pieces
from maxtrain.loader.synthetic import synthetic_rows


@dataclass(frozen=True)
class Piece:
    """A part of a document in a row. Positions and offsets count tokens."""

    domain: str
    dataset: Dataset
    document: int
    """Index in the dataset's document table."""
    doc_id: str
    source: str
    start_in_row: int
    stop_in_row: int
    start_in_document: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the piece."""
        return self.stop_in_row - self.start_in_row


@dataclass(frozen=True)
class DomainUse:
    """What a stage reads of a domain, for reports. Tokens of an epoch; rows of the stage."""

    stage: str
    domain: str
    documents: int
    tokens: int
    share: float
    """Share of the stage's rows."""
    rows: int
    rows_per_epoch: int
    padding_tokens: int
    """Padding in an epoch."""
    splits: int
    """Places in an epoch where a document goes on in another row."""
    epochs: float
    """Epochs of the stream consumed by the end of the stage, earlier stages included."""
    remainder_tokens: int
    """Left out after the stage, so that a later one starts with a whole block."""
    is_fresh: bool
    """Whether the stage begins an order that no earlier stage read."""


class Loader:
    """Row `i` of the run can be computed alone; step `t` is the rows `plan.rows_of(t)`. Without JAX and threads.

    Attributes:
        domains: names that the batches' `domain` indexes, in order of first appearance over all stages.
        fingerprint: what a batch depends on besides its step; JSON.
        stages: resolved stages; empty for the synthetic source.
    """

    def __init__(
        self,
        plan: BatchPlan,
        *,
        data: DataConfig,
        seed: int,
        vocab_size: int,
        open_dataset: OpenDataset = Dataset.open,
    ) -> None:
        """Open every dataset and resolve every stage, so that what cannot work fails before training.

        Args:
            plan: which rows each step reads.
            data: the config's section.
            seed: the run's seed.
            vocab_size: the model's vocabulary.
            open_dataset: opens a dataset by location.

        Raises:
            DataError: a dataset or its tokenizer is missing, damaged or does not fit.
            UserError: the mixture cannot be read as asked (empty domain, max_epochs, weights).
        """
        self.plan = plan
        self._data = data
        self._seed = seed
        self._vocab_size = vocab_size
        self.stages: tuple[ResolvedStage, ...] = ()
        if data.source == "synthetic":
            self.domains: tuple[str, ...] = ("synthetic",)
            self.fingerprint: Fingerprint = synthetic_fingerprint(plan, seed, vocab_size)
        else:
            self.domains = domain_names(plan)
            self.stages = resolve_stages(plan, data, seed=seed, vocab_size=vocab_size, open_dataset=open_dataset)
            self.fingerprint = dataset_fingerprint(plan, data, seed, self.stages)

    def rows(self, rows: np.ndarray) -> Batch:
        """Rows of one stage.

        Args:
            rows: int64 [R], rows of the run in any order.

        Returns:
            tokens, targets, segment_ids, positions int32 [R, T]; weights float32 [R, T]; domain int32 [R].
        """
        stage = self._stage_of(rows)
        if not self.stages:
            batch = synthetic_rows(
                rows, seed=self._seed, sequence_length=stage.sequence_length, vocab_size=self._vocab_size
            )
            return {**batch, "domain": np.zeros(len(rows), np.int32)}
        resolved = self.stages[stage.index]
        domain, pieces = self._pieces(resolved, rows)
        batch = assemble(
            resolved.dataset,
            pieces,
            num_rows=len(rows),
            sequence_length=stage.sequence_length,
            vocab_size=self._vocab_size,
            cross_document_attention=self._data.cross_document_attention,
        )
        return {**batch, "domain": domain}

    def batch(self, step: int, select: np.ndarray | None = None) -> Batch:
        """Rows of a step.

        Args:
            step: step of the run, below plan.num_steps.
            select: int64 [r] positions inside the batch that are wanted, such as a process's own; None for all.
        """
        if not 0 <= step < self.plan.num_steps:
            raise IndexError(f"step {step} is outside the run's {self.plan.num_steps} steps")
        rows = self.plan.rows_of(step)
        positions = np.arange(len(rows)) if select is None else np.asarray(select)
        return self.rows(rows.start + positions)

    def trace(self, row: int) -> list[Piece]:
        """Documents of one row of the run, left to right; empty for the synthetic source."""
        if not self.stages:
            return []
        rows = np.array([row])
        resolved = self.stages[self._stage_of(rows).index]
        domain, pieces = self._pieces(resolved, rows)
        documents = resolved.dataset.documents
        ends = np.cumsum(pieces.stop - pieces.start)
        return [
            Piece(
                domain=self.domains[int(domain[0])],
                dataset=resolved.dataset,
                document=document,
                doc_id=documents.doc_id[document].decode(),
                source=documents.source[document],
                start_in_row=end - (stop - start),
                stop_in_row=end,
                start_in_document=start,
            )
            for document, start, stop, end in zip(
                pieces.document.tolist(), pieces.start.tolist(), pieces.stop.tolist(), ends.tolist(), strict=True
            )
        ]

    def domain_of(self, row: int) -> str:
        """Domain of one row of the run."""
        if not self.stages:
            return self.domains[0]
        rows = np.array([row])
        resolved = self.stages[self._stage_of(rows).index]
        place, _ = resolved.schedule.locate(rows - resolved.stage.first_row)
        return resolved.domains[int(place[0])].name

    def epochs(self, step: int) -> dict[str, float]:
        """Epochs consumed before a step, by domain: of the stream that the domain read last."""
        row = self.plan.rows_of(step).start
        epochs = dict.fromkeys(self.domains, 0.0)
        for resolved in self.stages:
            inside = min(row - resolved.stage.first_row, resolved.stage.num_rows)
            if inside > 0:
                counts = resolved.schedule.counts(inside)
                for domain, count in zip(resolved.domains, counts.tolist(), strict=True):
                    epochs[domain.name] = domain.epochs_after(count)
        return epochs

    def usage(self) -> list[DomainUse]:
        """What every stage reads of every domain, with padding, splits and remainders counted."""
        return [
            DomainUse(
                stage=resolved.stage.name,
                domain=domain.name,
                documents=len(domain.order.stream.documents),
                tokens=domain.order.stream.num_tokens,
                share=float(resolved.schedule.units[place] / resolved.schedule.period),
                rows=domain.num_rows,
                rows_per_epoch=domain.order.rows_per_epoch,
                padding_tokens=domain.order.padding_per_epoch,
                splits=domain.order.splits_per_epoch,
                epochs=domain.epochs_after(domain.num_rows),
                remainder_tokens=domain.remainder_rows * resolved.stage.sequence_length,
                is_fresh=domain.is_fresh,
            )
            for resolved in self.stages
            for place, domain in enumerate(resolved.domains)
        ]

    def _stage_of(self, rows: np.ndarray) -> Stage:
        low, high = int(rows.min()), int(rows.max())
        for stage in self.plan.stages:
            if stage.first_row <= low and high < stage.first_row + stage.num_rows:
                return stage
        raise IndexError(f"rows {low} to {high} do not lie in one stage of the run")

    def _pieces(self, resolved: ResolvedStage, rows: np.ndarray) -> tuple[np.ndarray, Pieces]:
        """Domain of each row, int32 [R], and what lies in it."""
        place, inside = resolved.schedule.locate(rows - resolved.stage.first_row)
        parts = []
        index = np.empty(len(rows), np.int32)
        for number in np.unique(place):
            domain = resolved.domains[number]
            chosen = np.flatnonzero(place == number)
            index[chosen] = domain.index
            parts.append((chosen, domain.order.pieces(domain.first_row + inside[chosen])))
        return index, Pieces.join(parts)
