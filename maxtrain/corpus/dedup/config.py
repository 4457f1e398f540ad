"""The recipe's section on duplicates."""

from typing import Annotated, Literal

from pydantic import Field

from maxtrain.config.schema.types import AsTuple, Fraction, Section
from maxtrain.corpus.dedup.exact import ExactConfig
from maxtrain.corpus.dedup.paragraphs import ParagraphConfig
from maxtrain.corpus.dedup.sketch import SketchConfig
from maxtrain.corpus.dedup.substrings import SubstringConfig


class NearConfig(Section):
    """Near-duplicates: documents that share most of their n-grams."""

    threshold: Fraction = 0.8
    """Least Jaccard similarity of the n-gram sets of two documents that count as one."""
    representatives: Annotated[int, Field(ge=1, le=1024)] = 32
    """Documents of an overfull bucket that each other one is compared with, from its start and before each one."""
    sketch: SketchConfig = SketchConfig()


class DuplicatesConfig(Section):
    """Duplicates and which of them stays; the steps run in the order of the fields."""

    scope: Literal["all", "source"] = "all"
    """Whether documents of different sources are compared, too."""
    prefer: Annotated[tuple[str, ...], AsTuple] = ()
    """Sources whose documents stay before others', best first; then the higher quality_score stays, then the lower
    doc_id."""
    url: bool = True
    """Whether documents of one normalised address count as one."""
    exact: ExactConfig | None = ExactConfig()
    """Texts equal once normalised; null to pass over."""
    near: NearConfig | None = NearConfig()
    """Texts nearly equal; null to pass over."""


class DedupConfig(DuplicatesConfig):
    """Duplicates and what documents repeat of each other; the steps run in the order of the fields."""

    paragraphs: ParagraphConfig | None = None
    """Repeated paragraphs, whose later copies are cut; null to pass over."""
    substrings: SubstringConfig | None = None
    """Repeated passages of any bounds, whose later copies are cut; null to pass over."""
