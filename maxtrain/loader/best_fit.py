"""Packing `best_fit`: short documents are kept whole in a precomputed index of rows, rows are visited in a keyed order.

A document longer than a row is split into full rows and a rest; rests and short documents are packed by best-fit
decreasing (Johnson 1974; for language models Ding 2024, "Fewer truncations improve language modeling").
"""

from functools import lru_cache

import numpy as np

from maxtrain.loader.cache import cached_arrays
from maxtrain.loader.permutation import KeyedBijection
from maxtrain.loader.stream import DomainStream, Pieces, hash_json

BEST_FIT_VERSION = "best-fit-decreasing-v1"
"""Name of the splitting and packing; part of the index's key and of the loader's fingerprint."""


class BestFitOrder:
    """Packed rows of a stream, epoch after epoch, at one sequence length.

    A cursor is a number of rows since the start of epoch 0. Another sequence length is another index with a cursor of
    its own.
    """

    def __init__(self, stream: DomainStream, *, seed: int, sequence_length: int) -> None:
        self.stream = stream
        self.key = f"{BEST_FIT_VERSION}/{sequence_length}/{stream.key}"
        index = cached_arrays("packing", hash_json(self.key), lambda: build_index(stream, sequence_length))
        self.index_sha256: str | None = index.sha256
        self._first_piece = index.arrays["first_piece"]
        self._document, self._start, self._stop = (index.arrays[name] for name in ("document", "start", "stop"))
        self.rows_per_epoch = len(self._first_piece) - 1
        self.padding_per_epoch = self.rows_per_epoch * sequence_length - stream.num_tokens
        self.splits_per_epoch = len(self._document) - len(stream.documents)
        self._seed = seed
        self._bijection = lru_cache(maxsize=4)(self._make_bijection)

    def pieces(self, rows: np.ndarray) -> Pieces:
        """Documents of rows; int64 [R] rows count from the start of epoch 0."""
        epochs, places = np.divmod(rows, self.rows_per_epoch)
        packed = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            packed[chosen] = self._bijection(int(epoch))(places[chosen])
        first = self._first_piece[packed]
        counts = self._first_piece[packed + 1] - first
        row = np.repeat(np.arange(len(rows)), counts)
        index = np.arange(len(row)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        return Pieces(row, self._document[index], self._start[index], self._stop[index])

    def first_row(self, cursor: int) -> int:
        """Row at which a cursor stands."""
        return cursor

    def cursor_after(self, row: int) -> tuple[int, int]:
        """Cursor at a row, and the rows left out before it: none."""
        return row, 0

    def _make_bijection(self, epoch: int) -> KeyedBijection:
        return KeyedBijection(self.rows_per_epoch, f"{self._seed}/{self.key}/{epoch}")


def build_index(stream: DomainStream, sequence_length: int) -> dict[str, np.ndarray]:
    """Split and pack a stream.

    Returns:
        first_piece int64 [rows + 1], and int64 [P] document (in the dataset's table), start and stop (tokens of the
        document); the pieces of row r are [first_piece[r], first_piece[r + 1]), in the stream's order.
    """
    counts = -(-stream.lengths // sequence_length)
    local = np.repeat(np.arange(len(counts)), counts)
    start = (np.arange(len(local)) - np.repeat(np.cumsum(counts) - counts, counts)) * sequence_length
    stop = np.minimum(start + sequence_length, stream.lengths[local])
    row = best_fit_decreasing(stop - start, sequence_length)
    order = np.argsort(row, kind="stable")
    num_rows = int(row.max()) + 1
    return {
        "first_piece": np.searchsorted(row[order], np.arange(num_rows + 1)),
        "document": stream.documents[local[order]],
        "start": start[order],
        "stop": stop[order],
    }


def best_fit_decreasing(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Row of each piece: longest first, each into the fullest row that still has room.

    Pieces of one length are placed together: a row with `free` left is the best fit for the next free // length of
    them, because placing one makes it fuller still.

    Args:
        lengths: int64 [P], each in [1, capacity].
        capacity: room of a row.

    Returns:
        int64 [P] rows, counted from 0 without gaps.
    """
    order = np.argsort(-lengths, kind="stable")
    distinct, first, counts = np.unique(-lengths[order], return_index=True, return_counts=True)
    row_of = np.empty(len(lengths), np.int64)
    open_rows: dict[int, list[np.ndarray]] = {}
    is_open = np.zeros(capacity + 1, bool)
    num_rows = 0

    def put_back(free: int, rows: np.ndarray) -> None:
        if free and rows.size:
            open_rows.setdefault(free, []).append(rows)
            is_open[free] = True

    for length, begin, count in zip((-distinct).tolist(), first.tolist(), counts.tolist(), strict=True):
        pieces = order[begin : begin + count]
        while pieces.size:
            offset = int(is_open[length:].argmax())
            if is_open[length + offset]:
                free = length + offset
                rows = np.concatenate(open_rows.pop(free))
                is_open[free] = False
            else:
                free = capacity
                rows = np.arange(num_rows, num_rows - (-pieces.size // (free // length)))
                num_rows += rows.size
            per_row = free // length
            used = min(rows.size, -(-pieces.size // per_row))
            placed = min(pieces.size, used * per_row)
            row_of[pieces[:placed]] = np.repeat(rows[:used], per_row)[:placed]
            filled, extra = divmod(placed, per_row)
            put_back(free - per_row * length, rows[:filled])
            put_back(free - extra * length, rows[filled:used])
            put_back(free, rows[used:])
            pieces = pieces[placed:]
    return row_of
