"""Documents against the evaluation list: which items they touch, and where."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import Fraction, PositiveInt, Section
from maxtrain.corpus.decontaminate.index import EvalIndex
from maxtrain.corpus.decontaminate.items import LONG, SHORT, gram_hashes, units_of
from maxtrain.corpus.dedup.paragraphs import merge_spans
from maxtrain.corpus.text.kernels import compiled

_SPACED = (SHORT[0], LONG[0])
_UNSPACED = (SHORT[1], LONG[1])


class ScanConfig(Section):
    """When a document touches an item."""

    min_grams: PositiveInt = 1
    """Long n-grams (13 words, 20 characters in scripts without spaces) in common that make a hit, without frequent
    ones."""
    near_share: Annotated[Fraction, Field(gt=0)] = 0.5
    """Share of an item's short n-grams (8 words, 10 characters) in one document that makes a near-match, so that small
    edits hide nothing; items too short for a long n-gram are found by this alone."""
    max_items: PositiveInt = 10
    """An n-gram in more items than this is a turn of phrase of the task, and no evidence."""
    max_documents: PositiveInt = 50
    """An n-gram in more documents of the corpus than this is no evidence alone. A near-match still counts it: an item
    that was copied many times has many frequent n-grams, boilerplate has few of an item's."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An item that a document touches.

    Attributes:
        task, item: which one.
        grams: n-grams in common, long and short.
        share: of the item's n-grams: of the long ones, or of the short ones where that is more.
        spans: characters [start, end) of the document, merged.
    """

    task: str
    item: str
    grams: int
    share: float
    spans: tuple[tuple[int, int], ...]


@compiled
def _directory(grams: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A bit for each prefix of `bits + 4` bits that a gram has, and where grams of each prefix of `bits` begin."""
    table = np.zeros(1 << (bits - 2), np.uint64)
    starts = np.zeros((1 << bits) + 1, np.uint32)
    for gram in grams:
        place = gram >> np.uint64(60 - bits)
        table[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))
        starts[(gram >> np.uint64(64 - bits)) + np.uint64(1)] += np.uint32(1)
    for prefix in range(1 << bits):
        starts[prefix + 1] += starts[prefix]
    return table, starts


@compiled
def _find(
    hashes: np.ndarray, grams: np.ndarray, table: np.ndarray, starts: np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the known n-grams among hashes and their places, [found] int64 each."""
    # Without a branch, many reads of the table are on their way at once.
    likely = np.empty(len(hashes) + 1, np.int64)
    count = 0
    for place in range(len(hashes)):
        bit = hashes[place] >> np.uint64(60 - bits)
        likely[count] = place
        count += np.int64((table[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1))
    numbers = np.empty(count, np.int64)
    found = 0
    for at in range(count):
        place = likely[at]
        gram = hashes[place]
        prefix = gram >> np.uint64(64 - bits)
        number = np.int64(starts[prefix])
        stop = np.int64(starts[prefix + np.uint64(1)])
        while number < stop and grams[number] < gram:
            number += 1
        if number < stop and grams[number] == gram:
            numbers[found] = number
            likely[found] = place
            found += 1
    return numbers[:found], likely[:found]


class Scanner:
    """Looks for the items of an index in documents.

    Args:
        index: the evaluation list.
        config: when a document touches an item.
        document_counts: documents of the corpus that have each n-gram (the sum of `count_documents` over shards),
            [grams] int64; None leaves out the rule on frequent n-grams of the corpus.
    """

    def __init__(self, index: EvalIndex, config: ScanConfig, document_counts: np.ndarray | None = None) -> None:
        self.index = index
        self.config = config
        self._bits = max(8, len(index.grams).bit_length())
        self._table, self._starts = _directory(index.grams, self._bits)
        self._common = np.diff(index.offsets) > config.max_items
        self._frequent = self._common.copy()
        if document_counts is not None:
            self._frequent |= document_counts > config.max_documents

    def _known_grams(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Known n-grams [found] int64, and the characters [start, end) of each, [found] int32."""
        starts, ends, units, unspaced = units_of(text)
        words = np.flatnonzero(~unspaced) if unspaced.any() else None
        streams = [(starts, ends, units) if words is None else (starts[words], ends[words], units[words])]
        streams += [] if words is None else [(starts, ends, units)]
        parts = []
        for (firsts, lasts, hashes), sizes in zip(streams, (_SPACED, _UNSPACED), strict=False):
            where = None
            for size in sizes:
                grams = gram_hashes(hashes, size)
                if where is not None:
                    where = where[where < len(grams)]
                    grams = grams[where]
                numbers, places = _find(grams, self.index.grams, self._table, self._starts, self._bits)
                places = places if where is None else where[places]
                if len(numbers):
                    parts.append((numbers, firsts[places], lasts[places + size - 1]))
                # Where an index has all n-grams, a long one begins only where a short one does.
                where = places if self.index.is_whole else None
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)
        numbers, firsts, lasts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return numbers, firsts, lasts

    def count_documents(self, texts: Iterable[str]) -> np.ndarray:
        """Documents that have each n-gram of the index, [grams] int64; counts of shards add up."""
        counts = np.zeros(len(self.index.grams), np.int64)
        for text in texts:
            counts[np.unique(self._known_grams(text)[0])] += 1
        return counts

    def scan(self, text: str) -> list[Hit]:
        """Items that a text touches, in the order of the index."""
        grams, starts, ends = self._known_grams(text)
        if not len(grams):
            return []
        offsets = self.index.offsets
        counts = offsets[grams + 1] - offsets[grams]
        rows = np.repeat(offsets[grams] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        hits = np.repeat(np.arange(len(grams)), counts)
        owners = self.index.owners[rows]
        order = np.lexsort((hits, owners))
        bounds = np.flatnonzero(np.diff(owners[order])) + 1
        touched = []
        for part in np.split(order, bounds):
            hit = self._judge(int(owners[part[0]]), grams[hits[part]])
            if hit is None:
                continue
            chosen = hits[part]
            spans = zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
            item = int(owners[part[0]])
            touched.append(Hit(self.index.task_of(item), self.index.ids[item], *hit, tuple(merge_spans(spans))))
        return touched

    def _judge(self, item: int, grams: np.ndarray) -> tuple[int, float] | None:
        """N-grams in common and their share, None where they are no evidence."""
        grams = np.unique(grams)
        is_long = self.index.is_long[grams]
        plain = ~self._frequent[grams]
        totals = self.index.totals[item]
        long, short = int(is_long.sum()), int((~is_long).sum())
        shares = [long / max(totals[0], 1), short / max(totals[1], 1)]
        by_long = (is_long & plain).sum() >= min(self.config.min_grams, max(totals[0], 1)) and totals[0] > 0
        # What many items share never makes a near-match by itself.
        own = int((~is_long & ~self._common[grams]).sum())
        by_share = own / max(totals[1], 1) >= self.config.near_share
        return (len(grams), float(max(shares))) if by_long or by_share else None


def summarise(index: EvalIndex, findings: Sequence[tuple[str, Sequence[Hit]]], documents: int) -> dict[str, object]:
    """The report on a corpus as plain data.

    Args:
        index: the evaluation list.
        findings: (doc_id, hits) of the documents that touch an item.
        documents: how many were scanned.

    Returns:
        `suite`, `documents`, `touched` and by task: items, items touched, documents, greatest and mean share of an
        item's n-grams, characters in spans.
    """
    tasks: dict[str, object] = {}
    for task, items in zip(index.tasks, index.task_items.tolist(), strict=True):
        hits = [(doc_id, hit) for doc_id, found in findings for hit in found if hit.task == task]
        best: dict[str, float] = {}
        for _, hit in hits:
            best[hit.item] = max(best.get(hit.item, 0.0), hit.share)
        tasks[task] = {
            "items": items,
            "items_touched": len(best),
            "documents": len({doc_id for doc_id, _ in hits}),
            "max_share": max(best.values(), default=0.0),
            "mean_share": sum(best.values()) / len(best) if best else 0.0,
            "spans": sum(len(hit.spans) for _, hit in hits),
            "characters": sum(stop - start for _, hit in hits for start, stop in hit.spans),
        }
    touched = sum(1 for _, found in findings if found)
    return {"suite": index.identity, "documents": documents, "touched": touched, "tasks": tasks}
