"""A document on its way from a raw file to the dataset."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Document:
    """A text with its tags; rules read it, and the pipeline gives it the text that a rule returns."""

    doc_id: str
    text: str
    source: str
    lang: str
    """BCP 47 tag such as en or zh-Hant, `und` where it is not known; a programming language's name for code."""
    category: str
    licence: str
    input: str
    """Input file, as the recipe names it."""
    line: int
    """Line of the record in it, or its number, from 1."""
    original_id: str | None = None
    url: str | None = None
    origin: str = ""
    quality_score: float | None = None
    """Quality in [0, 1]; null where nothing scored it."""
    scores: dict[str, float] = field(default_factory=dict)
    """What rules measured, by name; the ledger keeps it."""

    @property
    def is_code(self) -> bool:
        """Whether the text is source code, which rules about prose leave alone."""
        return self.category == "code"
