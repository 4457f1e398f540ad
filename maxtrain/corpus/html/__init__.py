"""Pages: their charset and their main text."""

from maxtrain.corpus.html.charset import Decoded, decode_page, python_codec
from maxtrain.corpus.html.extract import Mode, extract
from maxtrain.corpus.html.pages import Page, all_text, main_text
from maxtrain.corpus.html.quality import quality_text

__all__ = [
    "Decoded",
    "Mode",
    "Page",
    "all_text",
    "decode_page",
    "extract",
    "main_text",
    "python_codec",
    "quality_text",
]
