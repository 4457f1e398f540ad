"""What readers yield: records of text or of token ids, and what is no usable record with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Form = Literal["text", "html", "markdown", "code"]
"""What a record's text is written in; `html` is markup whose main text is still to be taken out."""


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it was read, with its tags filled in."""

    input: str
    line: int
    """Line in the input, or number of the record, from 1."""
    text: str
    source: str
    lang: str
    category: str
    licence: str
    original_id: str | None
    url: str | None
    origin: str
    quality_score: float | None
    title: str | None = None
    form: Form = "text"
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else the input says of it, such as tags, a score, a licence file."""


@dataclass(frozen=True, slots=True)
class RawTokens:
    """A document that was tokenised before, without the ids that open and end it."""

    input: str
    line: int
    tokens: np.ndarray
    """Token ids, [tokens] int64."""
    tokenizer_sha256: str
    """Hash of the tokenizer that the recipe declares for it."""
    source: str
    lang: str
    category: str
    licence: str
    original_id: str
    origin: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """What is no usable record, or is left out on purpose."""

    input: str
    line: int
    """Line in the input, or number of the record, from 1."""
    reason: str
    """Name of the reason, under which it is counted."""
    detail: str
    left_out: bool = False
    """True: sound, but not wanted, such as a redirect or a generated file. False: damaged."""


Item = RawRecord | RawTokens | BadRecord
