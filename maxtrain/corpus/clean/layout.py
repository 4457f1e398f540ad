"""White space and line breaks: runs of spaces, blank lines, spaced-out East Asian text, words broken at line ends."""

import re
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import PositiveInt
from maxtrain.corpus.clean.features import (
    HYPHEN,
    ODD_SPACE,
    SPACED,
    SPACES,
    features,
    is_verbatim,
    wide_table,
)
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Rule
from maxtrain.corpus.score.letters import letter_bits
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.kernels import compiled

_ODD_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f]")
_LINE = 10
_SENTENCE_ENDS = "。！？；…"


@compiled
def _squeeze(codes: np.ndarray, most_blank: int, least: int) -> np.ndarray:
    """Code points without spaces at line ends, long runs of spaces between words, and many blank lines.

    Runs of spaces stay in indented lines, and where they align a line: where the one right above or below has a run
    that begins or ends at the same column, or the line has three runs, a tab or a vertical bar. Fenced blocks stay.
    """
    size = len(codes)
    out = np.empty(size, np.uint32)
    count = 0
    start = 0
    blank = 0
    fenced = False
    previous_start = previous_end = 0
    while start <= size:
        end = start
        while end < size and codes[end] != 10:
            end += 1
        last = end
        while last > start and (codes[last - 1] == 32 or codes[last - 1] == 9):
            last -= 1
        first = start
        while first < last and (codes[first] == 32 or codes[first] == 9):
            first += 1
        fence = last - first >= 3 and (
            (codes[first] == 96 and codes[first + 1] == 96 and codes[first + 2] == 96)
            or (codes[first] == 126 and codes[first + 1] == 126 and codes[first + 2] == 126)
        )
        if last == start and not fenced:
            blank += 1
            if blank <= most_blank and end < size:
                out[count] = 10
                count += 1
        else:
            blank = 0
            next_start = min(end + 1, size)
            next_end = next_start
            while next_end < size and codes[next_end] != 10:
                next_end += 1
            keep = (
                fenced
                or fence
                or first - start >= 2
                or _is_aligned(codes, first, last, start, previous_start, previous_end, next_start, next_end)
            )
            place = start
            while place < last:
                code = codes[place]
                if code == 32 and not keep and place > first:
                    stop = place
                    while codes[stop] == 32:
                        stop += 1
                    if stop - place >= least:
                        place = stop - 1
                out[count] = code
                count += 1
                place += 1
            if end < size:
                out[count] = 10
                count += 1
            if fence:
                fenced = not fenced
        previous_start, previous_end = start, end
        start = end + 1
    return out[:count].copy()


@compiled
def _is_aligned(codes: np.ndarray, first: int, last: int, start: int, previous_start: int, previous_end: int,
                next_start: int, next_end: int) -> bool:  # fmt: skip
    """Whether the runs of spaces of a line from `first` to `last` mean something."""
    runs = 0
    place = first
    while place < last:
        code = codes[place]
        if code == 9 or code == 124 or 0x2500 <= code < 0x2580:
            return True
        if code == 32 and codes[place + 1] == 32:
            runs += 1
            stop = place
            while codes[stop] == 32:
                stop += 1
            if _run_at(codes, place - start, stop - start, previous_start, previous_end) or _run_at(
                codes, place - start, stop - start, next_start, next_end
            ):
                return True
            place = stop
        else:
            place += 1
    return runs > 2


@compiled
def _run_at(codes: np.ndarray, begin: int, stop: int, start: int, end: int) -> bool:
    """Whether a line has a run of two spaces or more that begins or stops at a column."""
    at = start + stop
    if at < end and codes[at] != 32 and codes[at - 1] == 32 and codes[at - 2] == 32:
        return True
    return (
        start + begin + 1 < end
        and begin > 0
        and codes[start + begin] == 32
        and codes[start + begin + 1] == 32
        and codes[start + begin - 1] != 32
    )


def squeeze(text: str, most_blank: int = 1, least: int = 3) -> str:
    """The text without superfluous spaces and blank lines.

    Args:
        text: with line feeds as line ends.
        most_blank: blank lines that may follow each other.
        least: spaces inside a line that make a run.
    """
    codes = analyse(text).codes
    told = _squeeze(codes, most_blank, least).astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return told.strip("\n")


def close_up(text: str) -> str:
    """The text with spaces between East Asian characters gone in the lines that are spaced out.

    Where a space follows every character, a longer run stands for a space or line end that was there before.
    """
    return "\n".join(_close_line(line) for line in text.split("\n"))


def _close_line(line: str) -> str:
    if line.count(" ") < 6:
        return line
    codes = analyse(line).codes
    wide = wide_table()[codes]
    runs = line.split()
    letters = len(codes) - line.count(" ")
    if (
        sum(len(run) == 1 for run in runs) >= 0.9 * len(runs)
        and len(runs) >= 8
        and wide.sum() >= max(5, 0.05 * letters)
    ):
        return re.sub(r"(\S)( +)(?=\S)", _close_gap, line)
    if int(wide.sum()) < 0.3 * letters:
        return line
    apart = (wide[:-2] & (codes[1:-1] == 32) & wide[2:]).sum()
    close = (wide[:-1] & wide[1:]).sum()
    # Words set apart, as by a segmenter: then punctuation is, too. Lists and verse have none beside their spaces.
    marks = len(re.findall("(?<=[\u3040-\u9fff]) [，。、！？；：]", line))
    if apart >= 8 and apart > 0.25 * (apart + close) and marks >= 2:
        return re.sub("(?<=[\u3001-\u9fff\uff01-\uff60]) (?=[\u3001-\u9fff\uff01-\uff60])", "", line)
    return line


def _close_gap(match: re.Match[str]) -> str:
    before, gap = match[1], len(match[2])
    spaces = (gap - 1) // 2
    if spaces == 0:
        return before
    if spaces > 1:
        return before + "\n\n"
    return before + ("\n" if before in _SENTENCE_ENDS else " ")


class Whitespace(Rule):
    """Spaces and blank lines take one form; spaced-out Chinese and Japanese is closed up; indentation stays."""

    name: ClassVar[str] = "whitespace"

    max_blank_lines: PositiveInt = 1
    """Most blank lines that follow each other."""
    min_run: Annotated[int, Field(ge=2)] = 3
    """Least spaces inside a line that become one; two after a sentence are a habit of typists."""

    def apply(self, document: Document) -> Change | None:
        """Tidy prose; code and mathematics stay."""
        text = document.text
        if is_verbatim(document):
            return None
        found = features(text)
        ragged = text[:1] in ("\n", " ") or text[-1:] in ("\n", " ")
        if not ragged and not found.has(ODD_SPACE | SPACES | SPACED):
            return None
        told = _ODD_SPACES.sub(" ", text) if found.has(ODD_SPACE) else text
        if features(told).has(SPACED):
            told = close_up(told)
        told = squeeze(told, self.max_blank_lines, self.min_run)
        return None if told == text else Change(told)


_BROKEN = re.compile(r"([^\W\d_][\w:]*)-\n[ \t]*([\w:]+)")
_BREAK = re.compile(r"-\n[ \t]*[\w:]")
_WORDS = re.compile(r"[\w:]+(?:-[\w:]+)*")
_SUSPENDED = frozenset(
    [
        "und",
        "oder",
        "bis",
        "sowie",
        "bzw",
        "and",
        "or",
        "nor",
        "to",
        "en",
        "of",
        "och",
        "og",
        "eller",
        "et",
        "ou",
        "y",
        "o",
        "e",
        "ou",
        "oraz",
        "lub",
        "i",
        "a",
        "ja",
        "tai",
    ]
)
"""After these the hyphen stands for the rest of a compound: Haupt- und Nebensatz."""
_SURE = -8.5
"""Bits from the parts to the whole word under which the letters alone say that it was broken."""
_LIKELY = 6.0
"""The same in a text whose lines break words."""
_MEAN_OF_FEW, _MEAN = -3.0, -1.5
"""Mean of these bits over three breaks, and over more, at which lines break words: those that were broken have -5,
compounds that end a line 1."""
_CLIP = 15.0
"""Most that one break counts in the mean."""
_IMPOSSIBLE = 100.0


def join_words(text: str) -> tuple[str, int]:
    """Words that were broken at line ends, joined; how many.

    What the text says elsewhere decides: the whole word, or the word with its hyphen. Else the letters do: the whole is
    likely, and its parts are not likely words of their own. Compounds that end a line at their hyphen stay, unless most
    lines that end so break words.
    """
    if not _BREAK.search(text):
        return text, 0
    words: dict[str, int] = {}
    for word in _WORDS.findall(text):
        words[word.lower()] = words.get(word.lower(), 0) + 1
    found = [_evidence(match[1], match[2], words) for match in _BROKEN.finditer(text)]
    told_of = [max(evidence, -_CLIP) for evidence in found if evidence < _IMPOSSIBLE]
    limit_of = _MEAN_OF_FEW if len(told_of) < 4 else _MEAN
    broken = len(told_of) >= 3 and sum(told_of) <= limit_of * len(told_of)
    limit = _LIKELY if broken else _SURE
    count = 0

    def told(match: re.Match[str]) -> str:
        nonlocal count
        if _evidence(match[1], match[2], words) > limit:
            return match[0]
        count += 1
        return match[1] + match[2]

    # A word may be broken twice, and a joined one is read anew.
    for _ in range(4):
        before = count
        text = _BROKEN.sub(told, text)
        if count == before:
            break
    return text, count


def _evidence(head: str, tail: str, words: dict[str, int]) -> float:
    """Bits from the parts to the whole; -100 where the text has the whole elsewhere, 100 where it cannot be a word."""
    if words.get((head + tail).lower()):
        return -100.0
    if words.get(f"{head}-{tail}".lower()) or tail.lower() in _SUSPENDED:
        return _IMPOSSIBLE
    if not tail[0].islower() or len(tail) < 2 or not tail.isalpha() or head.lower() == "operator":
        return _IMPOSSIBLE
    return _word_bits((head + tail).lower()) - _word_bits(head.lower()) - _word_bits(tail)


def _word_bits(word: str) -> float:
    bits = letter_bits(np.frombuffer(word.encode("utf-32-le"), np.uint32))
    total = 0.0
    if bits.num_latin:
        total += bits.latin * bits.num_latin
    if bits.num_cyrillic:
        total += bits.cyrillic * bits.num_cyrillic
    return total


class Hyphenation(Rule):
    """Words broken at line ends are joined, if the text or its letters say that they are one."""

    name: ClassVar[str] = "hyphenation"

    def apply(self, document: Document) -> Change | None:
        """Join them in prose."""
        text = document.text
        if is_verbatim(document) or not features(text).has(HYPHEN):
            return None
        told, count = join_words(text)
        return Change(told, count) if count else None
