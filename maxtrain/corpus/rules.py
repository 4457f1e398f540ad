"""What a rule is: a section of the recipe that looks at one document and says what becomes of it.

A rule is a pure function of the document and its own parameters. It returns None (nothing to say), a `Change` with the
new text, or a `Drop` with the reason; the pipeline counts all three under the rule's name and writes them to the
ledger. A rule may also set tags and `document.scores`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from maxtrain.config.schema import Section
from maxtrain.corpus.document import Document


@dataclass(frozen=True, slots=True)
class Drop:
    """The document is left out."""

    reason: str
    """Name under which it is counted, such as `too_short`; a rule has few of them."""
    score: float | None = None
    """What was measured, where the reason is a limit that was passed."""
    span: tuple[int, int] | None = None
    """Characters [start, end) that made it so."""


@dataclass(frozen=True, slots=True)
class Change:
    """The document goes on with another text."""

    text: str
    count: int = 1
    """Places that were changed."""


class Rule(Section, ABC):
    """Base of all rules; a subclass declares its parameters as fields and its recipe key as `name`."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, document: Document) -> Drop | Change | None:
        """Look at a document.

        Args:
            document: what the rules before have made of it.
        """
