"""Held-out documents of every domain, in order and once, for evaluation."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Self

import numpy as np

from maxtrain.config.schema import Config, DomainConfig
from maxtrain.core.errors import DataError, UserError
from maxtrain.dataset import Dataset
from maxtrain.loader.assemble import Batch, assemble
from maxtrain.loader.loader import Loader
from maxtrain.loader.stream import DomainStream, Pieces
from maxtrain.tokenizer import Tokenizer


class HeldOut:
    """Whole documents of one split, domain after domain.

    A domain's documents are taken in doc_id order, each if all of it still fits under max_tokens. They run on from row
    to row; a domain starts with a new row. Attention does not cross documents. Every token of a document but its first
    is a target once: with a bos token that is all of the text and the eod, without one the text's first token is never
    predicted.

    Attributes:
        domains: names that the batches' `domain` indexes.
        num_rows: rows in all.
    """

    def __init__(
        self,
        dataset: Dataset,
        mixture: Mapping[str, DomainConfig],
        split: str,
        sequence_length: int,
        max_tokens: int,
    ) -> None:
        """Choose the documents.

        Args:
            dataset: where from.
            mixture: domains; each filter's split is replaced.
            split: the held-out split.
            sequence_length: tokens of a row.
            max_tokens: most tokens of a domain.

        Raises:
            UserError: a domain has no document in the split, or none that fits.
        """
        self.domains = tuple(mixture)
        self._dataset = dataset
        self._length = sequence_length
        self._documents: dict[str, np.ndarray] = {}
        parts: list[tuple[np.ndarray, Pieces]] = []
        domain_of_row: list[np.ndarray] = []
        num_rows = 0
        for index, (name, domain) in enumerate(mixture.items()):
            tag_filter = domain.filter.model_copy(update={"split": split})
            stream = DomainStream.select(dataset, tag_filter, name)
            chosen = _first_that_fit(stream.lengths, max_tokens)
            if not chosen.size:
                raise UserError(
                    f"evaluation.max_tokens: {max_tokens} is less than every held-out document of domain {name!r} "
                    f"(the shortest has {int(stream.lengths.min())} tokens); raise it"
                )
            stream = DomainStream(dataset, tag_filter, stream.documents[chosen])
            self._documents[name] = stream.documents
            first = np.arange(0, stream.num_tokens, sequence_length)
            pieces = stream.pieces(first, np.minimum(first + sequence_length, stream.num_tokens))
            parts.append((num_rows + np.arange(len(first)), pieces))
            domain_of_row.append(np.full(len(first), index, np.int32))
            num_rows += len(first)
        self.num_rows = num_rows
        self._pieces = Pieces.join(parts)
        self._domain = np.concatenate(domain_of_row)

    @classmethod
    def from_config(cls, config: Config, loader: Loader) -> Self:
        """Held-out rows as a config asks for; domains are the loader's, with the filters of their first stages.

        Args:
            config: the run's config.
            loader: the run's loader; a dataset that it has open is not opened again.

        Raises:
            DataError: evaluation.dataset is missing or damaged, or has another tokenizer than the training data.
            UserError: as for the constructor, or the run reads no dataset, or the config names none to evaluate on.
        """
        if not loader.stages:
            raise UserError("evaluation.every: a run on synthetic data has no held-out documents; set it to 0")
        location = config.evaluation.dataset or config.data.dataset
        if location is None:
            raise UserError("evaluation.dataset: is required, for data.dataset is null; give a dataset")
        dataset = {resolved.stage.dataset: resolved.dataset for resolved in loader.stages}.get(location)
        if dataset is None:
            tokenizer_hash = loader.stages[0].dataset.tokenizer_hash
            dataset = Dataset.open(location, verify=config.data.verify)
            if dataset.tokenizer_hash != tokenizer_hash:
                raise DataError(
                    f"evaluation.dataset: {location} has another tokenizer ({dataset.tokenizer_hash[:12]}) than the "
                    f"training data ({tokenizer_hash[:12]}); build both with one tokenizer"
                )
        mixture: dict[str, DomainConfig] = {}
        for resolved in loader.stages:
            for domain in resolved.domains:
                mixture.setdefault(domain.name, domain.config)
        evaluation = config.evaluation
        return cls(dataset, mixture, evaluation.split, config.data.sequence_length, evaluation.max_tokens)

    def rows(self, first: int, end: int) -> Batch:
        """Rows [first, end): fields as in a batch of the loader."""
        low, high = np.searchsorted(self._pieces.row, [first, end])
        part = slice(low, high)
        pieces = Pieces(
            self._pieces.row[part] - first,
            self._pieces.document[part],
            self._pieces.start[part],
            self._pieces.stop[part],
        )
        batch = assemble(
            self._dataset,
            pieces,
            num_rows=end - first,
            sequence_length=self._length,
            vocab_size=self._dataset.vocab_size,
            cross_document_attention=False,
        )
        return {**batch, "domain": self._domain[first:end]}

    def batches(self, batch_rows: int) -> Iterator[Batch]:
        """All rows in batches; the last is filled with rows of padding, whose weights and segment ids are 0."""
        for first in range(0, self.num_rows, batch_rows):
            batch = self.rows(first, min(first + batch_rows, self.num_rows))
            missing = batch_rows - len(batch["domain"])
            if missing:
                for name, field in batch.items():
                    filling = np.full(
                        (missing, *field.shape[1:]), _FILLING.get(name, self._dataset.pad_id), field.dtype
                    )
                    batch[name] = np.concatenate([field, filling])
            yield batch

    def documents_of(self, domain: str) -> np.ndarray:
        """Documents of a domain that are read: int64 [N] indices in the dataset's table."""
        return self._documents[domain]

    def targets_of(self, domain: str) -> int:
        """Target tokens of a domain: all tokens but the first of each document."""
        documents = self._documents[domain]
        return int(self._dataset.documents.num_tokens[documents].sum()) - len(documents)

    def bytes_of(self, domain: str) -> int:
        """UTF-8 bytes of the text that a domain's targets cover, the denominator of bits per byte.

        With a bos token the whole text of every document read, else without the bytes of its first token.
        """
        return self._num_bytes[domain]

    @cached_property
    def _num_bytes(self) -> dict[str, int]:
        """Bytes that targets cover, by domain."""
        dataset = self._dataset
        num_bytes = {name: int(dataset.documents.num_bytes[chosen].sum()) for name, chosen in self._documents.items()}
        if dataset.bos_id is None:
            tokenizer = Tokenizer.load(dataset.tokenizer_model())
            for name, chosen in self._documents.items():
                count = len(chosen)
                firsts = dataset.tokens_many(chosen.tolist(), [0] * count, [1] * count)
                num_bytes[name] -= sum(tokenizer.num_bytes(int(first[0])) for first in firsts)
        return num_bytes


_FILLING = {"segment_ids": 0, "positions": 0, "weights": 0, "domain": 0}


def _first_that_fit(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Indices of pieces taken in order, each if it still fits under the limit: int64 [N]."""
    chosen, used = [], 0
    shortest_after = np.minimum.accumulate(lengths[::-1])[::-1]
    for index, length in enumerate(lengths.tolist()):
        if used + shortest_after[index] > limit:
            break
        if used + length <= limit:
            chosen.append(index)
            used += length
    return np.array(chosen, np.int64)
