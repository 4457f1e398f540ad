"""Rules that see from a text's shape that it is no text to learn from; each drops one kind, told by its name.

The ideas are those of C4 (Raffel et al. 2020), Gopher (Rae et al. 2021, appendix A.1) and FineWeb (Penedo et al. 2024);
limits are set anew on counts that mean the same in scripts without spaces, where a unit is one character, and so that
poetry, dialogue, mathematics, tables in prose and code pass.
"""

import re
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import Fraction, NonNegativeInt, NonNegativeReal, PositiveInt
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.segments import common_unit_share
from maxtrain.corpus.score.statistics import Statistics, statistics
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.kernels import count_in

_SENTENCE_END = re.compile(r"[.!?。！？…।۔؟‽⁈⁉]['\"”’」』）)\]]*\s*\Z")
_SOLID = re.compile(r"[A-Za-z0-9+/=_-]{60,}")
_URL = re.compile(r"(?:https?|ftp)://\S+|\bwww\.\S+", re.IGNORECASE)
_LOREM = (
    "lorem ipsum dolor dolore sit amet consectetur adipiscing adipisicing elit sed eiusmod tempor incididunt labore et "
    "magna aliqua ut enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo "
    "consequat duis aute irure in reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur excepteur sint "
    "occaecat cupidatat non proident sunt culpa qui officia deserunt mollit anim id est laborum do vestibulum "
    "pellentesque vivamus curabitur maecenas phasellus praesent aenean donec mauris nunc suspendisse"
)
_LOREM_MARKS = "lorem ipsum adipiscing adipisicing consectetur eiusmod incididunt pellentesque"
_LOG_LINE = re.compile(
    r"""^\W{0,2}(?:
      \d{4}[-/]\d{2}[-/]\d{2}[T ,]\s?\d{2}:\d{2}(?::\d{2})?          # 2026-11-12 09:49:52
    | \d{2}[-/]\w{2,3}[-/]\d{2,4}[: ]\d{2}:\d{2}:\d{2}               # 12/Nov/2026:09:49:52
    | (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\ [\ \d]\d\ \d{2}:\d{2}:\d{2}\ \S+   # syslog
    | \d{1,3}(?:\.\d{1,3}){3}\ \S+\ \S+\ \[\d{2}/\w{3}/\d{4}         # access log
    | \[?\s*\d+\.\d{3,6}\]?\s                                        # kernel ring buffer
    | \[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\]?[\s:]
    | [IWEF]\d{4}\ \d{2}:\d{2}:\d{2}\.\d+                            # glog
    | \d{10,13}[\s,]                                                 # epoch
    )""",
    re.VERBOSE,
)
_NUMBERS_LINE = re.compile(r"^[\s\d.,;:|+\-−–/%$€£¥()\[\]]*\d[\s\d.,;:|+\-−–/%$€£¥()\[\]]*$")
_JAVASCRIPT = re.compile(
    r"""(?:(?:enable|turn\ on|activate|switch\ on)\s+java\s?script
    | java\s?script\s+(?:is|must\ be|has\ to\ be|needs\ to\ be|seems\ to\ be|and\ cookies\ are)\s+
      (?:enabled|disabled|required|turned|switched|not)
    | (?:requires?|need|needs|without|works?\ (?:best\ )?with)\s+java\s?script
    | (?:does\s+not|doesn't|not|no)\s+(?:currently\s+)?support\s+(?:java\s?script|html5|iframes?|cookies)
    | (?:browser|navigateur|navegador|navigatore)[^.\n。]{0,60}java\s?script
    | java\s?script[^.\n。]{0,60}(?:browser|navigateur|navegador|désactivé|deaktiviert|desactivado|desabilitado|
      disabilitato|uitgeschakeld|отключ|wyłączon|devre\ dışı)
    | (?:aktivieren|activez|activer|habilite|active|ative|attiva|abilita|включите|włącz|schakel|aktivera|bật|
      etkinleştir)\S*[^.\n。]{0,20}java\s?script
    | (?:启用|啟用|开启|開啟|打开|打開|不支持|不支援|禁用|停用|禁止)了?[^。\n]{0,12}java\s?script
    | java\s?script[^。\n]{0,16}(?:启用|啟用|开启|開啟|禁用|停用|无效|無效|有効|無効|オン|オフ|사용|활성화|비활성)
    )""",
    re.IGNORECASE | re.VERBOSE,
)


class TooShort(Rule):
    """Fragments too short to learn from are left out; a whole sentence may be half as long."""

    name: ClassVar[str] = "too_short"

    min_words: PositiveInt = 12
    """Least words, in scripts with spaces."""
    min_characters: PositiveInt = 40
    """Least letters, in scripts without spaces."""

    def apply(self, document: Document) -> Drop | None:
        """Drop what is short."""
        stats = statistics(document.text)
        least = self.min_characters if stats.unspaced > 0.3 else self.min_words
        if stats.units >= least:
            return None
        whole = _SENTENCE_END.search(document.text) is not None
        return None if whole and stats.units >= least / 2 else Drop("too_short", stats.units)


class Repetition(Rule):
    """Texts that say the same again and again are left out."""

    name: ClassVar[str] = "repetition"

    max_loops: Fraction = 0.4
    """Most of the units in passages said three times or more without a break."""
    max_duplicates: Fraction = 0.6
    """Most of the characters in long n-grams that were seen before."""
    max_repeated_lines: Fraction = 0.7
    """Most of the characters in lines that were seen before."""
    max_code_loops: Fraction = 0.5
    """Most of the units in such passages of source code, which has tables."""

    def apply(self, document: Document) -> Drop | None:
        """Drop what repeats itself."""
        stats = statistics(document.text)
        if stats.units < 30:
            return None
        limit = self.max_code_loops if document.is_code else self.max_loops
        if stats.loop_units >= 40 and stats.loops > limit:
            return Drop("loops", stats.loops)
        if document.is_code:
            return None
        if stats.units >= 60 and stats.duplicates > self.max_duplicates:
            return Drop("duplicates", stats.duplicates)
        if stats.num_lines >= 6 and stats.repeated_lines[1] > self.max_repeated_lines:
            return Drop("lines", stats.repeated_lines[1])
        return None


class KeywordStuffing(Rule):
    """Lists of search words are left out."""

    name: ClassVar[str] = "keyword_stuffing"

    min_distinct: Fraction = 0.16
    """Least share of distinct units in a window of 200."""
    max_common: Fraction = 0.7
    """Most of the short segments between commas and line ends that may share one unit, itself in no such share of
    sentences."""

    def apply(self, document: Document) -> Drop | None:
        """Drop lists of search words."""
        stats = statistics(document.text)
        if document.is_code or stats.units < 60:
            return None
        if stats.units >= 100 and stats.distinct < self.min_distinct:
            return Drop("distinct", stats.distinct)
        share = common_unit_share(stats.analysis)
        return Drop("common", share) if share > self.max_common else None


class SymbolNoise(Rule):
    """Texts in which symbols have eaten the letters are left out."""

    name: ClassVar[str] = "symbol_noise"

    max_odd: Fraction = 0.25
    """Most ASCII symbols that prose has few of, among the characters that are not white space."""
    max_controls: Fraction = 0.1
    """Most controls, private use and unassigned code points."""

    def apply(self, document: Document) -> Drop | None:
        """Drop noise."""
        stats = statistics(document.text)
        if stats.characters == 0:
            return Drop("empty")
        limit = max(self.max_odd, 0.5) if document.is_code or document.category == "math" else self.max_odd
        if stats.odd_symbols > limit:
            return Drop("symbols", stats.odd_symbols)
        if stats.controls > self.max_controls:
            return Drop("controls", stats.controls)
        broken = stats.mean_word < 1.9 and stats.unspaced < 0.1 and 0.25 < stats.letters < 0.7 and stats.symbols > 0.35
        return Drop("broken_words", stats.mean_word) if broken and not document.is_code else None


class LogLines(Rule):
    """Logs are left out."""

    name: ClassVar[str] = "log_lines"

    max_share: Fraction = 0.5
    """Most lines that may begin as a line of a log does."""

    def apply(self, document: Document) -> Drop | None:
        """Drop logs."""
        stats = statistics(document.text)
        if document.is_code or stats.num_lines < 5 or stats.digits < 0.08:
            return None
        share = _matching_lines(stats, _LOG_LINE)
        return Drop("log_lines", share) if share > self.max_share else None


def _matching_lines(stats: Statistics, pattern: re.Pattern[str]) -> float:
    """Share of the first 500 lines that begin like the pattern."""
    lines = stats.line_texts(500)
    return sum(pattern.match(line) is not None for line in lines) / len(lines)


class NumberTable(Rule):
    """Tables of bare numbers are left out."""

    name: ClassVar[str] = "number_table"

    max_digits: Fraction = 0.5
    """Most digits among the characters that are not white space."""
    max_lines: Fraction = 0.8
    """Most lines that may hold numbers alone."""

    def apply(self, document: Document) -> Drop | None:
        """Drop tables of numbers."""
        stats = statistics(document.text)
        if document.is_code or stats.characters < 40:
            return None
        if stats.digits > self.max_digits and stats.letters < 0.35:
            return Drop("digits", stats.digits)
        if stats.num_lines < 6 or stats.digits < 0.25:
            return None
        share = _matching_lines(stats, _NUMBERS_LINE)
        return Drop("lines", share) if share > self.max_lines else None


class Base64Blob(Rule):
    """Encoded data is left out."""

    name: ClassVar[str] = "base64_blob"

    max_share: Fraction = 0.3
    """Most characters in runs of 60 and more of the Base64 or hexadecimal alphabet that look random."""

    def apply(self, document: Document) -> Drop | None:
        """Drop encoded data."""
        stats = statistics(document.text)
        if stats.longest_solid < 60:
            return None
        encoded = sum(len(run) for run in _SOLID.findall(document.text) if _looks_encoded(run))
        share = encoded / stats.characters
        return Drop("encoded", share) if share > self.max_share else None


def _looks_encoded(run: str) -> bool:
    """Whether a run of letters and digits is no word, path or rule: cases or digits change all the time."""
    digits = sum(map(str.isdigit, run)) / len(run)
    upper = sum(map(str.isupper, run)) / len(run)
    if "/" in run and len(max(run.split("/"), key=len)) < 24:
        return False
    mixed = 0.15 < upper < 0.85 and digits > 0.02
    hexadecimal = digits > 0.3 and all(character in "0123456789abcdefABCDEF" for character in run)
    return mixed or hexadecimal


class UrlList(Rule):
    """Lists of links are left out."""

    name: ClassVar[str] = "url_list"

    max_share: Fraction = 0.5
    """Most characters that may lie in URLs."""

    def apply(self, document: Document) -> Drop | None:
        """Drop lists of links."""
        if document.is_code or ("://" not in document.text and "www." not in document.text):
            return None
        stats = statistics(document.text)
        found = _URL.findall(document.text)
        share = sum(map(len, found)) / stats.characters
        return Drop("urls", share) if len(found) >= 3 and share > self.max_share else None


class LoremIpsum(Rule):
    """Filler text is left out."""

    name: ClassVar[str] = "lorem_ipsum"

    max_share: Fraction = 0.4
    """Most units that may be words of lorem ipsum, where the text has its marks."""

    def apply(self, document: Document) -> Drop | None:
        """Drop filler text."""
        if document.is_code:
            return None
        hashes = statistics(document.text).analysis.unit_hashes
        marks = count_in(hashes, _hashes(_LOREM_MARKS))
        if marks < max(0.02 * len(hashes), 1):
            return None
        share = count_in(hashes, _hashes(_LOREM)) / len(hashes)
        return Drop("lorem", share) if share > self.max_share else None


@cache
def _hashes(words: str) -> np.ndarray:
    """Sorted hashes of words, [words] uint64."""
    return np.sort(analyse(words).unit_hashes)


class JavascriptNotice(Rule):
    """Pages that say only that they need JavaScript are left out."""

    name: ClassVar[str] = "javascript_notice"

    max_units: PositiveInt = 200
    """Most units of a text that a notice spoils; of a longer one it is a line."""

    def apply(self, document: Document) -> Drop | None:
        """Drop notices."""
        text = document.text
        if document.is_code or "avascript" not in text.lower():
            return None
        stats = statistics(text)
        if stats.units > self.max_units:
            return None
        hit = _JAVASCRIPT.search(text)
        early = hit is not None and hit.start() < max(len(text) // 3, 60)
        return Drop("notice", span=hit.span()) if hit and early else None


class CodeShape(Rule):
    """Source code that no person wrote is left out: minified, generated, data."""

    name: ClassVar[str] = "code_shape"

    max_line: PositiveInt = 5000
    """Most characters of a line."""
    max_mean_line: Annotated[NonNegativeReal, Field(gt=0)] = 150.0
    """Most characters of a line on the average."""
    min_letters: Fraction = 0.25
    """Least letters among the characters that are not white space."""
    generated: bool = True
    """Leave out what says at its head that it is generated."""
    head_lines: NonNegativeInt = 12
    """Lines in which it would say so."""

    def apply(self, document: Document) -> Drop | None:
        """Drop code that no person wrote."""
        if not document.is_code:
            return None
        stats = statistics(document.text)
        bounds = stats.analysis.lines
        if len(bounds) == 0:
            return Drop("empty")
        sizes = bounds[:, 1] - bounds[:, 0]
        if sizes.max() > self.max_line or sizes.mean() > self.max_mean_line:
            return Drop("minified", float(sizes.mean()))
        if stats.letters < self.min_letters:
            return Drop("data", stats.letters)
        head = "\n".join(stats.line_texts(self.head_lines))
        if self.generated and _GENERATED.search(head):
            return Drop("generated")
        return None


_GENERATED = re.compile(
    r"(?:auto[- ]?(?:matically )?generated|generated (?:by|from|with|automatically)|code generated)[^\n]{0,80}"
    r"(?:do not (?:edit|modify|change)|do n.t edit|by (?:protoc|swig|bison|flex|thrift|antlr|cython|qt))|@generated\b",
    re.IGNORECASE,
)


class Shape(Rule):
    """Prose of an unlikely shape is left out: no letters, endless or tiny words, lists and stubs alone."""

    name: ClassVar[str] = "shape"

    min_letters: Fraction = 0.2
    """Least letters among the characters that are not white space."""
    min_mean_word: NonNegativeReal = 1.7
    """Least characters of a word on the average, in scripts with spaces."""
    max_mean_word: NonNegativeReal = 14.0
    """Most characters of a word on the average, in scripts with spaces."""
    max_ellipsis: Fraction = 0.9
    """Most lines that may end in an ellipsis, of six and more."""

    def apply(self, document: Document) -> Drop | None:
        """Drop what has no likely shape."""
        stats = statistics(document.text)
        if document.is_code or stats.characters < 40:
            return None
        if stats.letters < self.min_letters:
            return Drop("letters", stats.letters)
        if stats.unspaced < 0.1 and document.category != "math":
            if stats.mean_word < self.min_mean_word:
                return Drop("short_words", stats.mean_word)
            if stats.mean_word > self.max_mean_word:
                return Drop("long_words", stats.mean_word)
        if stats.num_lines >= 6 and (share := _ellipsis_share(stats)) > self.max_ellipsis:
            return Drop("ellipsis", share)
        return None


def _ellipsis_share(stats: Statistics) -> float:
    text, bounds = stats.analysis.text, stats.analysis.lines
    if "…" not in text and "..." not in text:
        return 0.0
    ends = sum(text[max(stop - 3, start) : stop].endswith(("…", "...")) for start, stop in bounds.tolist())
    return ends / len(bounds)
