"""Lines that a page says about itself: menus, cookie notices, advertisements, what to share, subscribe to, read next.

A line is judged by phrases (`data/boilerplate.txt`), by its shape (short, no sentence, items between separators) and by
where it stands: menus and copyrights at the edges, comments and related articles behind the text.
"""

import re
from collections import Counter
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import Fraction, PositiveInt
from maxtrain.corpus.clean.features import is_verbatim
from maxtrain.corpus.clean.host_lines import drop_lines
from maxtrain.corpus.clean.phrases import (
    coverage,
    first_words,
    may_have_menu,
    may_hold,
    menu_items,
    pattern,
    phrases,
    strip_bullet,
)
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Drop, Rule
from maxtrain.corpus.text import analyse

_ROUNDS = 8
"""What stood behind a menu may be one itself; the last round finds nothing."""
_LONGEST = 220
"""Characters of a line that is looked at."""
_ITEMS = re.compile(r"\s*[|·•»›／]\s*|\t+|\s{2,}|\s+[-–—/]\s+|,\s+")
_BREAKS = re.compile(" [>»›] ")
_BARS = re.compile(r"[|·•»›／\t]")
_PIPES = re.compile(r"\s+[|·•]\s+")
_CRUMBS = re.compile(r"\s+[>»›]\s+")
_SECTIONS = re.compile(r"^(?:\d+(?:\.\d+)*\.? .{2,80})\t(?:\d+(?:\.\d+)*\.? .{2,80})$")
_SOURCE = frozenset("<>[]{}=$`\\")
_END = re.compile(r"[.!?。！？…;；]['\"”’」』）)\]]*$")
_LISTED = re.compile(r"^[-*•·▪►]\s|^\d{1,2}[.、)]\s")
_CODES = re.compile(r"[a-z]{2}(?:-[a-z]{2,4})?", re.IGNORECASE)
_COPYRIGHT = re.compile(r"^(?:copyright\b|\(c\)\s|©|ⓒ|版权所有|版權所有|著作権)|©\s*(?:19|20)\d\d", re.IGNORECASE)
_DATE = re.compile(
    r"\b(?:19|20)\d\d[-/.年]\s?\d{1,2}[-/.月]\s?\d{1,2}\b|\b\d{1,2}[./]\d{1,2}[./](?:19|20)?\d\d\b"
    r"|\d+\s*(?:minutes?|hours?|days?|weeks?|months?|years?|mins?|hrs?)\s+ago|\d+\s*(?:分钟|小时|天|个月|年|分鐘|小時)前"
    r"|\d+\s*(?:分|時間|日|か月|年)前|\d+\s*(?:분|시간|일|개월|년)\s*전|(?:vor|il y a|hace|há|fa)\s+\d+\s+\w+",
    re.IGNORECASE,
)


class _Page:
    """The lines of a text and which of them are boilerplate.

    Args:
        text: the text.
        edge: lines at each end that menus may take.
        every: whether the other lines matter too.
    """

    def __init__(self, text: str, edge: int, every: bool) -> None:
        self.bounds = analyse(text).lines
        size = len(self.bounds)
        short = self.bounds[:, 1] - self.bounds[:, 0] <= _LONGEST
        if not every and size > 2 * edge:
            short[edge : size - edge] = False
        self.edge = edge
        self.marked = [False] * size
        self.lines = [""] * size
        self.keys = [""] * size
        chosen = np.flatnonzero(short)
        for number, (start, end) in zip(chosen.tolist(), self.bounds[chosen].tolist(), strict=True):
            self.lines[number] = line = text[start:end]
            self.keys[number] = strip_bullet(line)

    def is_edge(self, number: int, size: int | None = None) -> bool:
        """Whether a line is among the first or last that are not marked."""
        size = self.edge if size is None else size
        return number < size or number >= len(self.lines) - size

    def judge(self, spoken: bool, sections: bool, rights: bool) -> list[int]:
        """The numbers of the lines that are boilerplate.

        Args:
            spoken: whether any phrase of notices and advertisements stands in the text.
            sections: whether a heading of comments or related articles may.
            rights: whether a phrase of copyrights does.
        """
        if spoken:
            self._mark_notices()
        if sections:
            self._mark_sections()
        self._mark_menus()
        self._mark_copyright(rights)
        if any(self.marked):
            self._fill_gaps()
        return [number for number, marked in enumerate(self.marked) if marked]

    def _mark_notices(self) -> None:
        labels = phrases()["ad"]
        times = Counter(self.keys)
        seen = pattern("site", "call", "wiki")
        for number, key in enumerate(self.keys):
            if not key:
                continue
            label = key in labels
            before = self.keys[number - 1] if number else ""
            if label:
                after = self.keys[number + 1] if number + 1 < len(self.keys) else ""
                self.marked[number] = times[key] > 1 or (len(after) < 100 and pattern("call").search(after) is not None)
                continue
            if not seen.search(key):
                continue
            often = times[key] > 1 or self.is_edge(number)
            site, call = coverage("site", key), coverage("call", key)
            if self.is_edge(number) and "](" not in key and pattern("wiki").search(key):
                site = 1.0
            labelled = before in labels or _starts_with_label(key)
            short = len(key) <= 100
            if site >= (0.15 if often and short else 0.25) or (
                call
                and short
                and (
                    labelled
                    or (times[key] > 1 and call >= (0.08 if "!" in key or "！" in key else 0.3))
                    or (self._cries(number) and call >= 0.25)
                )
            ):
                self.marked[number] = True

    def _cries(self, number: int) -> bool:
        line = self.lines[number]
        return ("!" in line or "！" in line or "%" in line) and self.is_edge(number)

    def _mark_sections(self) -> None:
        headings, related = phrases()["comments"], phrases()["related"]
        first = int(0.3 * len(self.lines))
        for number in range(first, len(self.keys)):
            key = self.keys[number]
            if self.marked[number] or len(key) > 60:
                continue
            if key in headings:
                self._mark_comments(number)
            elif key in related:
                self._mark_related(number)

    def _mark_comments(self, heading: int) -> None:
        """Mark a heading of comments and what follows: a line with a date, then what was said."""
        number = heading + 1
        last = heading
        while number < len(self.lines):
            line = self.lines[number]
            if line and len(line) <= 80 and _DATE.search(line) and not _END.search(line):
                last = number + 1
                number += 2
            elif number - last <= 1 and last > heading and len(line) <= 160 and number + 1 < len(self.lines):
                number += 1
            else:
                break
        if last == heading and not any(self.marked[heading + 1 : heading + 3]):
            return
        for place in range(heading, min(last, len(self.lines) - 1) + 1):
            self.marked[place] = True

    def _mark_related(self, heading: int) -> None:
        number = heading + 1
        while number < len(self.lines) and self.lines[number] and len(self.lines[number]) <= 90:
            if (
                self.marked[number]
                or self.keys[number] in phrases()["comments"]
                or _COPYRIGHT.search(self.lines[number])
            ):
                break
            if not _LISTED.match(self.lines[number]):
                break
            number += 1
        listed = number - heading - 1
        if listed >= 2 or (number >= len(self.lines) - 1 and listed + 1 >= len(self.lines) - heading):
            for place in range(heading, number):
                self.marked[place] = True

    def _mark_menus(self) -> None:
        nav = phrases()["nav"]
        singles: list[int] = []
        size = len(self.lines)
        edge = [number for number in range(size) if self.is_edge(number)]
        # A menu that fills the edge goes on behind it.
        for number in range(self.edge, max(size - self.edge, self.edge)):
            if self.keys[number] not in nav and not self.marked[number]:
                break
            edge.append(number)
        for number in edge:
            key = self.keys[number]
            if self.marked[number] or not key or len(key) > 160:
                continue
            if key in nav or ("\t" not in key and "|" not in key and len(key) <= 60 and _is_item(key, nav)):
                singles.append(number)
            elif self._is_menu(number) or self._is_crumbs(number):
                self.marked[number] = True
        runs: list[list[int]] = []
        for number in sorted(singles):
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            beside = (run[0] > 0 and self.marked[run[0] - 1]) or (run[-1] + 1 < size and self.marked[run[-1] + 1])
            if (len(run) >= 3 and (run[0] < 4 or run[-1] >= size - 4)) or beside:
                for number in run:
                    self.marked[number] = True

    def _is_menu(self, number: int) -> bool:
        """Whether a line is items of menus and nothing else, or a list of languages."""
        key, line = self.keys[number], self.lines[number]
        bars = _BARS.search(line) is not None
        if not bars and (len(key) > 60 or key.partition(" ")[0].rstrip(",") not in first_words()):
            return False
        items = [item for item in _ITEMS.split(key) if item]
        nav = menu_items()
        known = sum(_is_item(item, nav) for item in items)
        if len(items) >= 2 and known == len(items):
            return True
        if not bars:
            return False
        if self.is_edge(number, 3) and "\t" in line and (_SECTIONS.match(line) or self._leads_on(items)):
            return True
        pipes = [item.strip() for item in _PIPES.split(key)]
        if len(pipes) < 3 or self._is_table(number) or set(line) & _SOURCE:
            return False
        if all(_CODES.fullmatch(item.rpartition(":")[2].strip()) for item in pipes):
            return True
        short = all(0 < len(item) <= 32 and not any(sign.isdigit() for sign in item) for item in pipes)
        return short and (3 * known >= len(pipes) or (len(pipes) >= 4 and self.is_edge(number, 3)))

    def _leads_on(self, items: list[str]) -> bool:
        """Whether titles of pages stand around the word that leads to the first, beside such a line."""
        return 2 <= len(items) <= 3 and any(item in phrases()["page"] for item in items) and any(self.marked)

    def _is_table(self, number: int) -> bool:
        """Whether the lines beside have bars too."""
        around = self.lines[max(number - 1, 0) : number] + self.lines[number + 1 : number + 2]
        return self.lines[number].startswith("|") or any(line.count("|") >= 2 for line in around)

    def _is_crumbs(self, number: int) -> bool:
        """Whether a line is a path through a site: A > B > C near the top."""
        if number >= 5 or not _BREAKS.search(self.lines[number]) or self.lines[number][:1] in "0123456789-+*•“\"'":
            return False
        parts = _CRUMBS.split(self.lines[number])
        plain = all(0 < len(part) <= 40 and not set(part) & set("<=(){};&") for part in parts)
        return len(parts) >= 3 and plain and not self.lines[number].startswith(("$", "#", ">"))

    def _mark_copyright(self, spoken: bool) -> None:
        others = any(self.marked)
        for number in range(max(len(self.lines) - 6, 0), len(self.lines)):
            key = self.keys[number]
            if not key or self.marked[number] or len(key) > 200:
                continue
            rights = spoken and pattern("rights").search(key) is not None
            named = _COPYRIGHT.search(key) is not None
            if (rights and (named or others)) or (named and others) or (named and " | " in key):
                self.marked[number] = True

    def _fill_gaps(self) -> None:
        """Mark a short line between two marked ones where the text has not begun or is over."""
        size = len(self.lines)
        for number in (*range(1, min(2, size - 1)), *range(max(size - 4, 1), size - 1)):
            between = self.marked[number - 1] and self.marked[number + 1]
            if between and not self.marked[number] and 0 < len(self.lines[number]) <= 100:
                self.marked[number] = True


def _starts_with_label(key: str) -> bool:
    return any(key.startswith(label) for label in phrases()["ad"] if len(label) > 2 or not label.isascii())


def _is_item(item: str, nav: frozenset[str]) -> bool:
    """Whether words are one item of a menu, or several with spaces between."""
    if item in nav:
        return True
    words = item.split()
    if not words or words[0] not in first_words():
        return False
    if not 2 <= len(words) <= 12:
        return False
    place = 0
    while place < len(words):
        for size in (4, 3, 2, 1):
            if " ".join(words[place : place + size]) in nav and place + size <= len(words):
                place += size
                break
        else:
            return False
    return True


def remove_boilerplate(text: str, edge: int = 15) -> tuple[str, int]:
    """The text without lines of boilerplate, and how many they were; the text itself where little else is left.

    Args:
        text: the text.
        edge: lines at each end that menus may take.
    """
    spoken = may_hold(text, "site", "call", "wiki")
    sections = may_hold(text, "comments", "related")
    rights = may_hold(text, "rights")
    count = 0
    before = text
    if not (spoken or sections or rights or may_have_menu(text, edge)):
        return text, 0
    for _ in range(_ROUNDS):
        page = _Page(text, edge, spoken or sections)
        found = page.judge(spoken, sections, rights)
        if not found:
            break
        count += len(found)
        text = drop_lines(text, [tuple(page.bounds[number].tolist()) for number in found])
    return (text, count) if len(text) >= 0.1 * len(before) else (before, 0)


class Boilerplate(Rule):
    """Lines go that a page says about itself: menus, notices, advertisements, comments, related articles."""

    name: ClassVar[str] = "boilerplate"

    edge_lines: PositiveInt = 15
    """Lines at each end, blank ones not counted, in which a line may be a menu."""

    def apply(self, document: Document) -> Change | None:
        """Drop them from prose."""
        if is_verbatim(document):
            return None
        text, count = remove_boilerplate(document.text, self.edge_lines)
        return Change(text, count) if count else None


_ELLIPSES = ("…", "...", "。。。", "⋯")


def _ellipsis_share(text: str) -> tuple[int, int]:
    """Lines that end with an ellipsis, and lines that are not blank."""
    ends = sum(text.count(sign + "\n") + text.endswith(sign) for sign in _ELLIPSES)
    return ends, text.count("\n") - text.count("\n\n") + 1


class EllipsisLines(Rule):
    """Teasers go: lines cut off by an ellipsis, or that only say "read more"."""

    name: ClassVar[str] = "ellipsis_lines"

    max_share: Fraction = 0.3
    """Most of the lines that may end with an ellipsis in a text that goes on (Gopher, Rae et al. 2021)."""
    min_lines: Annotated[int, Field(ge=1)] = 6
    """Least lines of a text that is left out."""

    def apply(self, document: Document) -> Change | Drop | None:
        """Drop a text of teasers; cut "read more" lines."""
        text = document.text
        if is_verbatim(document):
            return None
        ends, lines = _ellipsis_share(text)
        if lines >= self.min_lines and ends > self.max_share * lines:
            return Drop("ellipsis", ends / lines)
        if not may_hold(text, "more"):
            return None
        page = _Page(text, 0, True)
        found = [number for number in range(len(page.lines)) if _only_more(page, number)]
        if not found:
            return None
        return Change(drop_lines(text, [tuple(page.bounds[number].tolist()) for number in found]), len(found))


def _only_more(page: _Page, number: int) -> bool:
    """Whether a line is "read more": with an arrow, more than once, or behind a line that an ellipsis cuts off."""
    key = page.keys[number].strip(" .…>»›→[]【】()（）")
    if not key or len(key) > 40 or key not in phrases()["more"]:
        return False
    before = page.lines[number - 1] if number else ""
    arrow = any(sign in page.lines[number] for sign in ("»", "→", "›", ">>", "...", "…", "]", "】"))
    return arrow or before.endswith(_ELLIPSES) or page.keys.count(page.keys[number]) > 1
