"""The simplest rule: how long a text may be."""

from typing import ClassVar

from maxtrain.config.schema.types import PositiveCount
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule


class Length(Rule):
    """Documents that are too short or too long are left out."""

    name: ClassVar[str] = "length"

    min_bytes: PositiveCount | None = None
    """Least UTF-8 bytes of text; null for no limit."""
    max_bytes: PositiveCount | None = None
    """Most UTF-8 bytes of text; null for no limit."""

    def apply(self, document: Document) -> Drop | None:
        """Drop what is out of bounds."""
        size = len(document.text.encode())
        if self.min_bytes is not None and size < self.min_bytes:
            return Drop("min_bytes", size)
        if self.max_bytes is not None and size > self.max_bytes:
            return Drop("max_bytes", size)
        return None
