"""Items prepared ahead of their use by Grain's threads. A module of its own, because Grain imports JAX."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import grain

Item = TypeVar("Item")

_MAX_THREADS = 4


class _Items(Generic[Item]):
    """A pure function of [first, end) as Grain's random-access source."""

    def __init__(self, fetch: Callable[[int], Item], first: int, end: int) -> None:
        self._fetch = fetch
        self._first = first
        self._end = end

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, index: int) -> tuple[int, Item]:
        return self._first + index, self._fetch(self._first + index)


def prefetch_items(fetch: Callable[[int], Item], *, first: int, end: int, num_ahead: int) -> Iterator[tuple[int, Item]]:
    """Pairs (n, fetch(n)) for n in [first, end), in order, up to num_ahead of them prepared before they are asked for.

    Args:
        fetch: a pure function that may be called from several threads.
        first: first n.
        end: n after the last.
        num_ahead: items in the buffer, at least 1.
    """
    if first < end:
        source = grain.MapDataset.source(_Items(fetch, first, end))
        options = grain.ReadOptions(num_threads=min(num_ahead, _MAX_THREADS), prefetch_buffer_size=num_ahead)
        yield from source.to_iter_dataset(options)
