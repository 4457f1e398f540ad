"""Packing `concat`: the stream is cut into blocks, blocks are visited in a keyed order, rows are slices of a block."""

from functools import lru_cache

import numpy as np

from maxtrain.loader.permutation import KeyedBijection
from maxtrain.loader.stream import DomainStream, Pieces


class ConcatOrder:
    """Rows of a stream, epoch after epoch, at one sequence length.

    The last block may be partial: its last row is padded, and rows that would hold nothing but padding are left out.
    A cursor is a number of blocks since the start of epoch 0, so it means the same at every sequence length.
    """

    def __init__(self, stream: DomainStream, *, seed: int, block_tokens: int, sequence_length: int) -> None:
        self.stream = stream
        self.index_sha256: str | None = None
        self.key = f"concat/{block_tokens}/{stream.key}"
        self._seed = seed
        self._block_tokens = block_tokens
        self._length = sequence_length
        self._num_blocks = -(-stream.num_tokens // block_tokens)
        self._block_rows = block_tokens // sequence_length
        last_tokens = stream.num_tokens - (self._num_blocks - 1) * block_tokens
        self._absent = self._block_rows - -(-last_tokens // sequence_length)
        self.rows_per_epoch = self._num_blocks * self._block_rows - self._absent
        self.padding_per_epoch = self.rows_per_epoch * sequence_length - stream.num_tokens
        inner_starts = stream.starts[1:-1]
        self.splits_per_epoch = self.rows_per_epoch - 1 - int(np.count_nonzero(inner_starts % sequence_length == 0))
        self._bijection = lru_cache(maxsize=4)(self._make_bijection)

    def pieces(self, rows: np.ndarray) -> Pieces:
        """Documents of rows; int64 [R] rows count from the start of epoch 0."""
        epochs, places = np.divmod(rows, self.rows_per_epoch)
        block = np.empty_like(places)
        slices = np.empty_like(places)
        for epoch in np.unique(epochs):
            bijection, partial = self._bijection(int(epoch))
            chosen = np.flatnonzero(epochs == epoch)
            place = places[chosen]
            place += np.where(place >= (partial + 1) * self._block_rows - self._absent, self._absent, 0)
            position, slices[chosen] = np.divmod(place, self._block_rows)
            block[chosen] = bijection(position)
        first = block * self._block_tokens + slices * self._length
        return self.stream.pieces(first, np.minimum(first + self._length, self.stream.num_tokens))

    def first_row(self, cursor: int) -> int:
        """Row at which a cursor stands."""
        epoch, position = divmod(cursor, self._num_blocks)
        _, partial = self._bijection(epoch)
        absent = self._absent if partial < position else 0
        return epoch * self.rows_per_epoch + position * self._block_rows - absent

    def cursor_after(self, row: int) -> tuple[int, int]:
        """Cursor at the first whole block that starts at or after a row, and the rows between them."""
        epoch, place = divmod(row, self.rows_per_epoch)
        _, partial = self._bijection(epoch)
        if place >= (partial + 1) * self._block_rows - self._absent:
            place += self._absent
        cursor = epoch * self._num_blocks + -(-place // self._block_rows)
        return cursor, self.first_row(cursor) - row

    def _make_bijection(self, epoch: int) -> tuple[KeyedBijection, int]:
        """The order of an epoch's blocks, and the position at which the last block of the stream comes."""
        bijection = KeyedBijection(self._num_blocks, f"{self._seed}/{self.key}/{epoch}")
        return bijection, int(bijection.invert(np.array([self._num_blocks - 1]))[0])
