"""Random tokens instead of a dataset, for throughput runs."""

import hashlib

import numpy as np

from maxtrain.loader.assemble import Batch
from maxtrain.loader.permutation import mix64

SYNTHETIC_VERSION = "synthetic-splitmix64-v1"


def synthetic_rows(rows: np.ndarray, *, seed: int, sequence_length: int, vocab_size: int) -> Batch:
    """Rows of uniformly drawn tokens: one document a row, every target counted.

    A token is a pure function of (seed, row, position), the same whatever else is drawn.

    Args:
        rows: int64 [R] rows of the run.
        seed: the run's seed.
        sequence_length: T.
        vocab_size: ids are drawn from [0, vocab_size).

    Returns:
        The batch without its domain.
    """
    digest = hashlib.sha256(f"{SYNTHETIC_VERSION}/{seed}".encode()).digest()
    key = np.frombuffer(digest[:8], dtype="<u8").astype(np.uint64)
    row_keys = mix64(rows.astype(np.uint64) ^ key)
    numbers = mix64(row_keys[:, None] + np.arange(sequence_length + 1, dtype=np.uint64)) >> np.uint64(32)
    drawn = ((numbers * np.uint64(vocab_size)) >> np.uint64(32)).astype(np.int32)
    shape = (len(rows), sequence_length)
    return {
        "tokens": np.ascontiguousarray(drawn[:, :-1]),
        "targets": np.ascontiguousarray(drawn[:, 1:]),
        "segment_ids": np.ones(shape, np.int32),
        "positions": np.tile(np.arange(sequence_length, dtype=np.int32), (len(rows), 1)),
        "weights": np.ones(shape, np.float32),
    }
