"""Letters that form no words of any language."""

from typing import ClassVar

from maxtrain.config.schema.types import Fraction, PositiveReal
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.letters import common_han_table, letter_bits
from maxtrain.corpus.score.statistics import statistics
from maxtrain.corpus.text.classes import HAN

_LEAST_LETTERS = 60
_LEAST_HAN = 40


class Gibberish(Rule):
    """Random letters, and text in a wrong charset that nothing repaired, are left out."""

    name: ClassVar[str] = "gibberish"

    max_bits: PositiveReal = 7.5
    """Most bits a letter by the trigram model of Latin and Cyrillic letters: words of all its languages have 3.7 to
    5.7, abbreviations and formulas up to 7, random letters 9."""
    max_rare_han: Fraction = 0.35
    """Most Han characters outside the first levels of GB 2312 and Big5: prose has up to 0.17, random 0.68."""

    def apply(self, document: Document) -> Drop | None:
        """Drop what has no words; a script without a model is not judged."""
        if document.is_code:
            return None
        stats = statistics(document.text)
        analysis = stats.analysis
        letters = stats.letters * stats.characters
        if stats.han * stats.characters >= _LEAST_HAN and stats.han > 0.4 * stats.letters:
            han = analysis.codes[(analysis.classes & HAN) != 0]
            rare = 1 - float(common_han_table()[han].mean())
            if rare > self.max_rare_han:
                return Drop("han", rare)
        if letters < _LEAST_LETTERS or document.category == "math":
            return None
        found = letter_bits(analysis.codes)
        for count, bits in ((found.num_latin, found.latin), (found.num_cyrillic, found.cyrillic)):
            if count >= _LEAST_LETTERS and count > 0.6 * letters and bits > self.max_bits:
                return Drop("letters", bits)
        return None
