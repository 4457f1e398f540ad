"""Rules that identify and score: language, shape, noise, spam, quality."""

from maxtrain.corpus.rules import Rule
from maxtrain.corpus.score.gibberish import Gibberish
from maxtrain.corpus.score.heuristics import (
    Base64Blob,
    CodeShape,
    JavascriptNotice,
    KeywordStuffing,
    LogLines,
    LoremIpsum,
    NumberTable,
    Repetition,
    Shape,
    SymbolNoise,
    TooShort,
    UrlList,
)
from maxtrain.corpus.score.language import Language
from maxtrain.corpus.score.quality import Quality
from maxtrain.corpus.score.spam import Spam

SCORE_RULES: tuple[type[Rule], ...] = (
    TooShort,
    Base64Blob,
    UrlList,
    NumberTable,
    LogLines,
    SymbolNoise,
    LoremIpsum,
    JavascriptNotice,
    Gibberish,
    KeywordStuffing,
    Repetition,
    Spam,
    CodeShape,
    Shape,
    Language,
    Quality,
)
"""In running order: what is cheap and certain first."""
