"""Batches prepared ahead of the step by Grain's threads. Apart from the loader, because Grain imports JAX."""

from collections.abc import Callable, Iterator

import grain
import numpy as np

from maxtrain.loader.assemble import Batch
from maxtrain.loader.loader import Loader

SelectRows = Callable[[int], np.ndarray]
"""Maps the rows of a batch to the positions inside it that a process reads."""


class _Steps:
    """Steps from first_step on, as Grain's random-access source."""

    def __init__(self, loader: Loader, first_step: int, select: SelectRows | None) -> None:
        self._loader = loader
        self._first_step = first_step
        self._select = select

    def __len__(self) -> int:
        return self._loader.plan.num_steps - self._first_step

    def __getitem__(self, index: int) -> tuple[int, Batch]:
        step = self._first_step + index
        positions = self._select(len(self._loader.plan.rows_of(step))) if self._select else None
        return step, self._loader.batch(step, positions)


def prefetch_batches(
    loader: Loader, first_step: int, *, select: SelectRows | None = None, prefetch: int = 2
) -> Iterator[tuple[int, Batch]]:
    """Steps and their batches to the end of the run, each equal to `loader.batch(step)`.

    Args:
        loader: the run's loader.
        first_step: step to begin with.
        select: positions inside a batch of a given size that are wanted; None for all.
        prefetch: batches prepared ahead.
    """
    if first_step >= loader.plan.num_steps:
        return
    source = grain.MapDataset.source(_Steps(loader, first_step, select))
    options = grain.ReadOptions(num_threads=min(prefetch, 4), prefetch_buffer_size=prefetch)
    yield from source.to_iter_dataset(options)
