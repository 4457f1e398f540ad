"""A domain is a filter over document tags: which documents match."""

from typing import Protocol

import numpy as np

from maxtrain.dataset.format import TAGS
from maxtrain.dataset.table import DocumentTable

Values = str | tuple[str, ...]


class Bounds(Protocol):
    """Bounds of a numeric tag, both included; None for none."""

    @property
    def min(self) -> float | None:
        """Least value."""

    @property
    def max(self) -> float | None:
        """Greatest value."""


class Filter(Protocol):
    """What the config's tag filter looks like: every named tag must match, None matches all."""

    @property
    def source(self) -> Values | None:
        """Sources."""

    @property
    def lang(self) -> Values | None:
        """Languages."""

    @property
    def category(self) -> Values | None:
        """Categories."""

    @property
    def split(self) -> Values:
        """Splits."""

    @property
    def quality_score(self) -> Bounds | None:
        """Bounds on the score; a document without one does not match."""

    @property
    def num_tokens(self) -> Bounds | None:
        """Bounds on the length, bos and eod included."""


def matches(table: DocumentTable, filter: Filter) -> np.ndarray:  # noqa: A002
    """Mask [documents] bool of the rows that match a tag filter."""
    keep = np.ones(len(table), bool)
    for name in TAGS:
        wanted = getattr(filter, name)
        if wanted is not None:
            keep &= getattr(table, name).isin((wanted,) if isinstance(wanted, str) else wanted)
    for bounds, values in ((filter.quality_score, table.quality_score), (filter.num_tokens, table.num_tokens)):
        if bounds is not None:
            keep &= ~np.isnan(values)
            if bounds.min is not None:
                keep &= values >= bounds.min
            if bounds.max is not None:
                keep &= values <= bounds.max
    return keep
