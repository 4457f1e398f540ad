"""One number for how good a text is to learn from, and the rule that may ask for a least one."""

from functools import cache
from typing import ClassVar

import numpy as np

from maxtrain.config.schema.types import Fraction
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.letters import letter_bits
from maxtrain.corpus.score.statistics import Statistics, statistics
from maxtrain.corpus.text.linear import LinearModel


def _ramp(value: float, low: float, high: float) -> float:
    """0 at `low`, 1 at `high`, straight between; `low` may be the greater."""
    return float(np.clip((value - low) / (high - low), 0.0, 1.0))


def shape_score(stats: Statistics, *, is_code: bool) -> float:
    """Quality by shape, in [0, 1]: the geometric mean of what each count says, none of them under 0.05.

    Counts and where they say 0 and 1: units (5, 120), distinct units in a window (0.1, 0.4; code 0.05, 0.25),
    characters said before in long n-grams (0.8, 0.1) and in whole lines (0.8, 0.2), letters (0.3, 0.75; code 0.2, 0.5),
    odd symbols (0.35, 0.1; not code), bits a letter (9, 6.2; not code).
    """
    if stats.units == 0:
        return 0.0
    parts = [
        _ramp(stats.units, 5, 120) ** 0.5,
        _ramp(stats.distinct, 0.05, 0.25) if is_code else _ramp(stats.distinct, 0.1, 0.4),
        _ramp(stats.repeated_lines[1], 0.8, 0.2),
        _ramp(stats.letters, 0.2, 0.5) if is_code else _ramp(stats.letters, 0.3, 0.75),
    ]
    if not is_code:
        parts += [_ramp(stats.duplicates, 0.8, 0.1), _ramp(stats.odd_symbols, 0.35, 0.1)]
        found = letter_bits(stats.analysis.codes)
        letters = stats.letters * stats.characters
        for count, bits in ((found.num_latin, found.latin), (found.num_cyrillic, found.cyrillic)):
            if count > 0.6 * letters:
                parts.append(_ramp(bits, 9.0, 6.2))
    return float(np.exp(np.mean(np.log(np.maximum(parts, 0.05)))))


@cache
def _model(path: str) -> LinearModel:
    return LinearModel.load(path)


class Quality(Rule):
    """Every document gets a quality score in [0, 1]; those under a limit may be left out."""

    name: ClassVar[str] = "quality"

    min_score: Fraction = 0.0
    """Least score; 0 for none."""
    model: str | None = None
    """Classifier that `train-quality` made, an absolute path; its probability and the shape then weigh the same."""
    keep_given: bool = True
    """A score that the record brings stays."""

    def apply(self, document: Document) -> Drop | None:
        """Score a document; drop what is under the limit."""
        if document.quality_score is None or not self.keep_given:
            score = shape_score(statistics(document.text), is_code=document.is_code)
            if self.model is not None and not document.is_code:
                probability = _model(self.model).probability(document.text)
                document.scores["quality_model"] = round(probability, 4)
                score = (score * probability) ** 0.5
            document.quality_score = round(score, 4)
        if document.quality_score < self.min_score:
            return Drop("quality", document.quality_score)
        return None
