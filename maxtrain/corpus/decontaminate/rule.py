"""The rule of the recipe that keeps the evaluation list out of a dataset."""

from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import AsTuple, Fraction
from maxtrain.core.errors import DataError
from maxtrain.corpus.decontaminate.index import load_eval_index
from maxtrain.corpus.decontaminate.scan import ScanConfig, Scanner
from maxtrain.corpus.dedup.paragraphs import cut_spans, merge_spans
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Drop, Rule


@cache
def load_scanner(index: str, tasks: tuple[str, ...] | None, config: ScanConfig, counts: str | None) -> Scanner:
    """A scanner, once per process.

    Raises:
        DataError: the index or the counts are missing, damaged or don't belong together.
    """
    loaded = load_eval_index(Path(index), tasks)
    if counts is None:
        return Scanner(loaded, config)
    try:
        array = np.load(counts, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{counts}: no counts of n-grams ({error})") from error
    if array.shape != loaded.grams.shape:
        raise DataError(f"{counts}: counts of {array.size} n-grams, {index} has {loaded.grams.size}; count anew")
    return Scanner(loaded, config, array)


class Decontaminate(Rule):
    """Documents that share passages with evaluation items are dropped, or lose the passages."""

    name: ClassVar[str] = "decontaminate"

    index: str = "data/eval"
    """Folder of the evaluation list's n-grams."""
    tasks: Annotated[tuple[str, ...], AsTuple] | None = None
    """Names of the tasks that are looked for; null for all."""
    action: Literal["drop", "cut"] = "drop"
    """Whether the document goes, or only the passages in common."""
    max_cut: Annotated[Fraction, Field(gt=0)] = 0.5
    """A document of which more than this share of characters would be cut is dropped."""
    counts: str | None = None
    """File (.npy) of the number of documents that have each n-gram, from a first pass; null where there was none."""
    scan: ScanConfig = ScanConfig()

    def apply(self, document: Document) -> Drop | Change | None:
        """Drop or cut what touches an item."""
        hits = load_scanner(self.index, self.tasks, self.scan, self.counts).scan(document.text)
        if not hits:
            return None
        spans = merge_spans(span for hit in hits for span in hit.spans)
        share = max(hit.share for hit in hits)
        document.scores["contamination"] = share
        cut = sum(stop - start for start, stop in spans)
        if self.action == "drop" or cut > self.max_cut * len(document.text):
            return Drop("contaminated", share, spans[0])
        text = cut_spans(document.text, spans)
        return Change(text, len(spans)) if text.strip() else Drop("contaminated", share, spans[0])
