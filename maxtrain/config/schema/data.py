"""What a run reads: dataset, mixture, stages, batches."""

from typing import Annotated, Literal

from pydantic import Field

from maxtrain.config.schema.types import (
    AsTuple,
    BatchTokens,
    PositiveCount,
    PositiveInt,
    PositiveReal,
    Real,
    Section,
)

WEIGHT_UNITS = 65_536
"""Shares of a mixture are rounded to whole multiples of 1 / WEIGHT_UNITS."""

Packing = Literal["concat", "best_fit"]


class Range(Section):
    """Bounds of a numeric tag, both included; null for none."""

    min: Real | None = None
    """Least value."""
    max: Real | None = None
    """Greatest value."""


TagValues = str | Annotated[tuple[str, ...], AsTuple, Field(min_length=1)]


class TagFilter(Section):
    """Documents whose every named tag matches; an absent key matches all."""

    source: TagValues | None = None
    """One source or a list of them."""
    lang: TagValues | None = None
    """One language or a list of them."""
    category: TagValues | None = None
    """One category or a list of them."""
    split: TagValues = "train"
    """`train`, or the name of a held-out split."""
    quality_score: Range | None = None
    """Bounds on the quality score; a document without a score does not match."""
    num_tokens: Range | None = None
    """Bounds on the length in tokens."""


class DomainConfig(Section):
    """One domain of the mixture."""

    weight: PositiveReal
    """Relative share of the rows; weights are normalised over the mixture. At least 1/65,536 of their sum."""
    filter: TagFilter = TagFilter()
    """Which documents belong to it."""
    packing: Packing = "concat"
    """`concat`: documents run on in the next sequence; `best_fit`: short documents are kept whole."""
    max_epochs: PositiveReal | None = None
    """Refuse a run that would read the domain more often; null for no cap."""


DomainName = Annotated[str, Field(pattern=r"^[\w-]+$")]
"""Letters of any script, digits, `_` and `-`: names are parts of dotted keys and of metric names."""
Mixture = Annotated[dict[DomainName, DomainConfig], Field(min_length=1)]


class StageConfig(Section):
    """A part of the run with its own data; null takes the value of `data` or `batch`."""

    name: str
    """Name in logs and errors."""
    tokens: PositiveCount
    """Length of the stage, in tokens."""
    dataset: str | None = None
    """Dataset directory or URL."""
    mixture: Mixture | None = None
    """Domains and weights."""
    sequence_length: PositiveCount | None = None
    """Tokens in a row."""
    global_batch_tokens: BatchTokens | None = None
    """Tokens in a batch."""


class DataConfig(Section):
    """The dataset and how rows are drawn from it."""

    dataset: str | None = None
    """Dataset directory or URL; required unless the source is synthetic, which reads none."""
    source: Literal["dataset", "synthetic"] = "dataset"
    """`synthetic` draws random tokens, for throughput runs."""
    mixture: Mixture = Field(default_factory=lambda: {"all": DomainConfig(weight=1.0)})
    """Domains by name."""
    sequence_length: PositiveCount
    """Tokens in a row."""
    block_tokens: PositiveCount | None = None
    """Unit of shuffling, fixed for the run; every stage's sequence length divides it. Null: the longest of them."""
    cross_document_attention: bool = False
    """Let attention, positions and targets run across documents."""
    stages: Annotated[tuple[StageConfig, ...], AsTuple] = ()
    """Stages in order; their tokens add up to train.total_tokens. Empty for a single stage."""
    verify: Literal["full", "size"] = "full"
    """At start, check every shard's hash, or only its size."""
    prefetch: Annotated[int, Field(gt=0, le=1024)] = 2
    """Batches prepared ahead of the step."""


class BatchWarmup(Section):
    """A phase at the start of the run with a smaller batch."""

    tokens: PositiveCount
    """Length of the phase, in tokens."""
    global_batch_tokens: BatchTokens
    """Tokens in a batch of the phase."""


class BatchConfig(Section):
    """global_batch_tokens = micro_batch × sequence length × data-parallel ranks × accumulation."""

    global_batch_tokens: BatchTokens
    """Tokens in a batch, padding included."""
    micro_batch: PositiveInt
    """Sequences that one data-parallel rank takes at once."""
    accumulation: PositiveInt | None = None
    """Microbatches a step; null derives it."""
    warmup: Annotated[tuple[BatchWarmup, ...], AsTuple] = ()
    """Smaller batches at the start, in order; only where the run has a single stage."""
