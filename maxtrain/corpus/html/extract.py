"""The text of a page, by one of three ways."""

from typing import Literal

from maxtrain.corpus.html.pages import Page, all_text, main_text
from maxtrain.corpus.html.quality import quality_text

Mode = Literal["main", "quality", "all"]
"""Main text; the same by trafilatura, slower; all text."""
_EXTRACT = {"main": main_text, "quality": quality_text, "all": all_text}


def extract(html: str, mode: Mode) -> Page:
    """Text of a page."""
    return _EXTRACT[mode](html)
