"""The rule that turns a document of markup into its main text."""

import re
from typing import ClassVar, Literal

from maxtrain.corpus.document import Document
from maxtrain.corpus.html.pages import Page, all_text, main_text
from maxtrain.corpus.html.quality import quality_text
from maxtrain.corpus.rules import Change, Drop, Rule

_EXTRACT = {"main": main_text, "quality": quality_text, "all": all_text}
_MARKUP = re.compile(r"\s*(?:<\?xml|<!doctype html|<html|<head|<body|<!--)", re.IGNORECASE)


def extract(html: str, mode: str) -> Page:
    """Text of a page.

    Args:
        html: markup.
        mode: `main`, `quality` (trafilatura) or `all`.
    """
    return _EXTRACT[mode](html)


class MainTextRule(Rule):
    """Main text of documents that are still markup, which a reader keeps with `read.html: markup`."""

    name: ClassVar[str] = "main_text"

    mode: Literal["main", "quality", "all"] = "main"
    """Main text, the same by trafilatura, or all text."""

    def apply(self, document: Document) -> Drop | Change | None:
        """Take the text out of markup; a document that does not begin like a page is left alone."""
        if document.is_code or not _MARKUP.match(document.text):
            return None
        page = extract(document.text, self.mode)
        if not page.text:
            return Drop("no_main_text")
        return Change(page.text)
