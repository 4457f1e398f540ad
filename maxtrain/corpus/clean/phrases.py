"""The phrases of boilerplate, and a scan that finds in one pass which kinds of them a text may hold."""

from collections import defaultdict, deque
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import re2

from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import TABLE_SIZE, fold_table
from maxtrain.corpus.text.kernels import compiled

KINDS = ("site", "call", "wiki", "rights", "more", "comments", "related")
"""Kinds that the scan tells, as bits from the lowest."""


@cache
def phrases() -> dict[str, frozenset[str]]:
    """The phrases of all languages by kind, in lower case."""
    found: dict[str, set[str]] = defaultdict(set)
    text = files("maxtrain.corpus.clean").joinpath("data/boilerplate.txt").read_text("utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            kind, _, words = line.split("\t")
            found[kind] |= {word.strip() for word in words.split(";") if word.strip()}
    return {kind: frozenset(words) for kind, words in found.items()}


@cache
def menu_items() -> frozenset[str]:
    """Items of menus and of lines that lead through a manual."""
    return phrases()["nav"] | phrases()["page"]


@cache
def first_words() -> frozenset[str]:
    """The first words of the items of menus."""
    return frozenset(item.split()[0] for item in menu_items())


@cache
def pattern(*kinds: str) -> Any:
    """A pattern of all phrases of some kinds, the longest first; it sees whole words where they have an ASCII edge."""
    options = re2.Options()
    options.max_mem = 64 << 20
    words = sorted({word for kind in kinds for word in phrases()[kind]}, key=lambda word: (-len(word), word))
    parts = []
    for word in words:
        before = r"\b" if word[0].isascii() and word[0].isalnum() else ""
        after = r"\b" if word[-1].isascii() and word[-1].isalnum() else ""
        parts.append(before + re2.escape(word) + after)
    return re2.compile("|".join(parts), options)


def coverage(kind: str, line: str) -> float:
    """Share of a line, in lower case, that phrases of a kind make up."""
    return sum(len(match.group()) for match in pattern(kind).finditer(line)) / max(len(line), 1)


class _Automaton(NamedTuple):
    """Aho and Corasick (1975) over the characters that phrases have.

    Attributes:
        symbols: of each code point, in any case, [1,114,112] int16; 0 for those that no phrase has.
        steps: next state of each state and symbol, [states, symbols] int16.
        kinds: bits of the kinds of phrases that end in a state, [states] int64.
    """

    symbols: np.ndarray
    steps: np.ndarray
    kinds: np.ndarray


@cache
def _automaton() -> _Automaton:
    words = sorted({(word, bit) for bit, kind in enumerate(KINDS) for word in phrases()[kind]})
    known = {sign: number + 1 for number, sign in enumerate(sorted({sign for word, _ in words for sign in word}))}
    nodes: list[dict[int, int]] = [{}]
    ends = [0]
    for word, bit in words:
        state = 0
        for sign in word:
            state = nodes[state].setdefault(known[sign], len(nodes))
            if state == len(nodes):
                nodes.append({})
                ends.append(0)
        ends[state] |= 1 << bit
    steps = np.zeros((len(nodes), len(known) + 1), np.int16)
    fails = [0] * len(nodes)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        steps[state] = steps[fails[state]] if state else 0
        for symbol, child in nodes[state].items():
            fails[child] = int(steps[state, symbol]) if state else 0
            ends[child] |= ends[fails[child]]
            steps[state, symbol] = child
            queue.append(child)
    symbols = np.zeros(TABLE_SIZE, np.int16)
    for sign, symbol in known.items():
        symbols[ord(sign)] = symbol
    return _Automaton(symbols[fold_table()], steps, np.array(ends, np.int64))


@compiled
def _scan(codes: np.ndarray, symbols: np.ndarray, steps: np.ndarray, kinds: np.ndarray) -> int:
    found = 0
    state = 0
    for code in codes:
        state = steps[state, symbols[code]]
        if state:
            found |= kinds[state]
    return found


@lru_cache(maxsize=8)
def _kinds_in(text: str) -> int:
    return _scan(analyse(text).codes, *_automaton())


def may_hold(text: str, *kinds: str) -> bool:
    """Whether phrases of some of the kinds stand in a text, in any case, as words or inside them."""
    bits = sum(1 << KINDS.index(kind) for kind in kinds)
    return _kinds_in(text) & bits != 0


_SIGNS = " \t\r-*•·▪►»›>|#:：\xa0"


@compiled
def _hash(codes: np.ndarray, start: int, end: int, fold: np.ndarray) -> np.uint64:
    value = np.uint64(0xCBF29CE484222325)
    for place in range(start, end):
        value = (value ^ np.uint64(fold[codes[place]])) * np.uint64(0x100000001B3)
    return value


@cache
def _item_hashes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted hashes of menus' items and of their first words, [n] uint64; the signs that part items, uint32."""

    def hashes(words: frozenset[str]) -> np.ndarray:
        arrays = [np.frombuffer(word.encode("utf-32-le"), np.uint32) for word in sorted(words)]
        return np.sort(np.array([_hash(codes, 0, len(codes), fold_table()) for codes in arrays], np.uint64))

    signs = np.frombuffer((_SIGNS + "，,").encode("utf-32-le"), np.uint32)
    return hashes(menu_items()), hashes(first_words()), signs


@compiled
def _is_in(value: np.uint64, known: np.ndarray) -> bool:
    place = np.searchsorted(known, value)
    return bool(place < len(known) and known[place] == value)


@compiled
def _may_be_menu(codes: np.ndarray, start: int, end: int, fold: np.ndarray, items: np.ndarray, firsts: np.ndarray,
                 signs: np.ndarray) -> bool:  # fmt: skip
    """Whether a line begins with an item of a menu or has signs between items; it may hold white space at its ends."""
    if end - start > 220:
        return False
    while start < end and _has(signs, codes[start]):
        start += 1
    while end > start and _has(signs, codes[end - 1]):
        end -= 1
    if start == end:
        return False
    bars = 0
    tab = False
    for place in range(start + 1, end):
        code = codes[place]
        if code == 9:
            tab = True
        elif codes[place - 1] == 32 and code in (62, 124, 0xB7, 0x2022, 0xBB, 0x203A, 0xFF0F):
            bars += 1
    if bars > 1 or (tab and 48 <= codes[start] <= 57):
        return True
    stop = start
    while stop < end and codes[stop] != 32 and codes[stop] != 9 and codes[stop] != 124:
        stop += 1
    while stop > start and _has(signs, codes[stop - 1]):
        stop -= 1
    if end - start > 60 and not bars and not tab:
        return False
    return _is_in(_hash(codes, start, stop, fold), firsts) or _is_in(_hash(codes, start, end, fold), items)


@compiled
def _has(signs: np.ndarray, code: int) -> bool:
    found = False
    for sign in signs:
        found = found or sign == code
    return found


@compiled
def _any_menu(codes: np.ndarray, edge: int, fold: np.ndarray, items: np.ndarray, firsts: np.ndarray,
              signs: np.ndarray) -> bool:  # fmt: skip
    size = len(codes)
    seen = start = 0
    while start < size and seen < edge:
        end = start
        while end < size and codes[end] != 10:
            end += 1
        if end > start:
            seen += 1
            if _may_be_menu(codes, start, end, fold, items, firsts, signs):
                return True
        start = end + 1
    seen = 0
    end = size
    while end > 0 and seen < edge:
        start = end
        while start > 0 and codes[start - 1] != 10:
            start -= 1
        if end > start:
            seen += 1
            if _may_be_menu(codes, start, end, fold, items, firsts, signs):
                return True
        end = start - 1
    return False


def may_have_menu(text: str, edge: int) -> bool:
    """Whether one of the first or last lines of a text may be a menu's."""
    return bool(_any_menu(analyse(text).codes, edge, fold_table(), *_item_hashes()))


def strip_bullet(line: str) -> str:
    """A line in lower case without bullets, bars and a colon at its ends."""
    return line.strip(_SIGNS).lower()
