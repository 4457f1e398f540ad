"""A domain's stream: the documents that match its filter, in doc_id order, as one line of tokens."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from maxtrain.config.schema import TagFilter
from maxtrain.core.errors import UserError
from maxtrain.dataset import Dataset
from maxtrain.dataset.format import TAGS

_MOST_NAMED = 12


@dataclass(frozen=True)
class Pieces:
    """Parts of documents as they lie in rows: row by row, left to right.

    row: int64 [P] position of the row in the request; document: int64 [P] index in the dataset's table;
    start, stop: int64 [P] tokens of the document that the piece covers, start < stop.
    """

    row: np.ndarray
    document: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @staticmethod
    def join(parts: "list[tuple[np.ndarray, Pieces]]") -> "Pieces":
        """Merge pieces of several requests, each given with the int64 [R] rows that its own rows stand for."""
        row = np.concatenate([rows[pieces.row] for rows, pieces in parts])
        order = np.argsort(row, kind="stable")
        document, start, stop = (
            np.concatenate([getattr(pieces, name) for _, pieces in parts])[order]
            for name in ("document", "start", "stop")
        )
        return Pieces(row[order], document, start, stop)


class DomainStream:
    """Documents of one filter over one dataset.

    Attributes:
        dataset: where the documents are.
        filter: the filter in its canonical form.
        documents: int64 [N] indices in the dataset's table, ascending.
        lengths: int64 [N] tokens of each.
        starts: int64 [N + 1] tokens of the stream before each, and its length.
    """

    def __init__(self, dataset: Dataset, tag_filter: TagFilter, documents: np.ndarray) -> None:
        self.dataset = dataset
        self.filter = canonical_filter(tag_filter)
        self.documents = documents
        self.lengths = dataset.documents.num_tokens[documents].astype(np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    @classmethod
    def select(cls, dataset: Dataset, tag_filter: TagFilter, name: str) -> Self:
        """All documents that match a filter.

        Args:
            dataset: where from.
            tag_filter: which documents.
            name: the domain's name, for errors.

        Raises:
            UserError: no document matches.
        """
        documents = dataset.select(tag_filter)
        if not documents.size:
            raise UserError(_nothing_matches(dataset, tag_filter, name))
        return cls(dataset, tag_filter, documents)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole stream."""
        return int(self.starts[-1])

    @cached_property
    def key(self) -> str:
        """Hash of what the stream holds: the dataset's manifest and the filter, not the domain's name."""
        return hash_json({"manifest": self.dataset.manifest_hash, "filter": self.filter})

    def pieces(self, first: np.ndarray, end: np.ndarray) -> Pieces:
        """Documents that cover ranges of the stream, one range a row.

        Args:
            first: int64 [R] first token of each range.
            end: int64 [R] token after each range, end > first.
        """
        low = np.searchsorted(self.starts, first, side="right") - 1
        counts = np.searchsorted(self.starts, end, side="left") - low
        row = np.repeat(np.arange(len(counts)), counts)
        local = np.arange(len(row)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        origin = self.starts[local]
        start = np.maximum(first[row] - origin, 0)
        stop = np.minimum(end[row] - origin, self.lengths[local])
        return Pieces(row, self.documents[local], start, stop)


def canonical_filter(tag_filter: TagFilter) -> dict[str, Any]:
    """A filter as JSON, equal for filters that mean the same: no empty keys, values as sorted lists."""
    dumped = tag_filter.model_dump(exclude_none=True)
    return {
        name: {bound: float(limit) for bound, limit in value.items()}
        if isinstance(value, dict)
        else sorted({value} if isinstance(value, str) else set(value))
        for name, value in sorted(dumped.items())
        if value != {}
    }


def hash_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _nothing_matches(dataset: Dataset, tag_filter: TagFilter, name: str) -> str:
    wanted = canonical_filter(tag_filter)
    present = []
    for tag in TAGS:
        if tag in wanted:
            names = sorted(getattr(dataset.documents, tag).names)
            rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            present.append(f"{tag} {', '.join(names[:_MOST_NAMED]) or '(none)'}{rest}")
    return (
        f"mixture.{name}.filter: no document of {dataset.location} matches {json.dumps(wanted, ensure_ascii=False)}; "
        f"the dataset's {len(dataset.documents.num_tokens)} documents have {'; '.join(present)}: change the filter"
    )
