"""A keyed bijection of [0, size): a shuffled order that needs no stored permutation."""

import hashlib
from collections.abc import Callable
from functools import cached_property

import numpy as np

BIJECTION_VERSION = "feistel8-splitmix64-sha256-v1"
"""Name of the function; it is part of the loader's fingerprint, so a change of it must change the name."""

_ROUNDS = 8
_TABULATED = 2**16
"""Up to this size all values are computed at once and kept: half a megabyte saves most of a small batch's time."""


def mix64(values: np.ndarray) -> np.ndarray:
    """Finaliser of SplitMix64 (Steele 2014) over uint64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class KeyedBijection:
    """A balanced Feistel network over the next even number of bits, walked along its cycles back into [0, size).

    The round keys are SHA-256 digests of the key, so orders of different keys are unrelated
    (cycle walking: Black and Rogaway 2002).
    """

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, is {size}")
        self.size = size
        half_bits = max(2, -(-(size - 1).bit_length() // 2))
        self._half = np.uint64(half_bits)
        self._mask = np.uint64((1 << half_bits) - 1)
        self._shift = np.uint64(64 - half_bits)
        digests = (hashlib.sha256(f"{BIJECTION_VERSION}/{key}/{index}".encode()).digest() for index in range(_ROUNDS))
        self._keys = [np.frombuffer(digest[:8], dtype="<u8").astype(np.uint64)[0] for digest in digests]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Values at positions of the order.

        Args:
            positions: int64 [N], each in [0, size).

        Returns:
            int64 [N], each in [0, size).
        """
        return self._table[positions] if self.size <= _TABULATED else self._walk(positions, self._forward)

    def invert(self, values: np.ndarray) -> np.ndarray:
        """Positions at which values stand: the inverse of a call, same shapes."""
        return self._walk(values, self._backward)

    @cached_property
    def _table(self) -> np.ndarray:
        return self._walk(np.arange(self.size), self._forward)

    def _walk(self, numbers: np.ndarray, permute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        size = np.uint64(self.size)
        result = permute(np.asarray(numbers).astype(np.uint64))
        outside = np.flatnonzero(result >= size)
        while outside.size:
            result[outside] = permute(result[outside])
            outside = outside[result[outside] >= size]
        return result.astype(np.int64)

    def _forward(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix64(right ^ key) >> self._shift)
        return (left << self._half) | right

    def _backward(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in reversed(self._keys):
            left, right = right ^ (mix64(left ^ key) >> self._shift), left
        return (left << self._half) | right
