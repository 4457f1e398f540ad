"""Finds any number of terms in one pass: a trie that is entered only where a word can begin."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from maxtrain.corpus.safety.terms import Term, fold, normal
from maxtrain.corpus.text.analysis import Analysis
from maxtrain.corpus.text.classes import DIGIT, HANGUL, LETTER, MARK, PUNCTUATION, SPACE, SYMBOL, UNSPACED
from maxtrain.corpus.text.kernels import compiled, mix

_WORD = LETTER | MARK | DIGIT
_ROOTS = 0x10000
_FILTER = 0x10000
_PARTICLES = re.findall(
    r"\S+",
    "은 는 이 가 을 를 의 에 에서 에게 한테 께 으로 로 와 과 랑 이랑 도 만 까지 부터 마저 조차 밖에 "
    "처럼 같은 같이 보다 들 들이 들을 들은 들의 들도 들아 아 야 이야 이여 이다 다 입니다 이고 고 이며 며 "
    "인 이나 나 이라 라 라고 이라고 란 이란 라는 이라는 네 이네 냐 이냐 님 하 하는 하고 하다 하며 하면 "
    "하지 한 할 함 해 해서 했 했다 했던 합니다 하기 하자 했어 하네 당한 당했 당하는 당했다 적인 적 이었다 "
    "였다 이에요 예요 이지 지 요",
)
"""Korean particles and endings after which a noun is still the noun."""


class Hit(NamedTuple):
    """A term in a text.

    Attributes:
        term: which one.
        start: its first character.
        end: the first character after it.
        disguised: whether it was written with other signs for letters.
    """

    term: Term
    start: int
    end: int
    disguised: bool


@compiled
def _key(node: int, code: int) -> np.uint64:
    return mix((np.uint64(node) << np.uint64(21)) | np.uint64(code))


@compiled
def _fill(parents: np.ndarray, codes: np.ndarray, table: np.ndarray) -> None:
    """Enter the edges into a table of open addresses, [size, 3] int64: parent, code, child."""
    mask = np.uint64(len(table) - 1)
    for child in range(1, len(parents)):
        place = _key(parents[child], codes[child]) & mask
        while table[place, 2]:
            place = (place + np.uint64(1)) & mask
        table[place] = parents[child], codes[child], child


@compiled
def _edge(table: np.ndarray, node: int, code: Any) -> int:
    """Child of a node by a code point, or -1."""
    mask = np.uint64(len(table) - 1)
    place = _key(node, code) & mask
    while table[place, 2]:
        if table[place, 0] == node and table[place, 1] == code:
            return table[place, 2]
        place = (place + np.uint64(1)) & mask
    return -1


@compiled
def _is_katakana(code: int) -> bool:
    return 0x30A1 <= code <= 0x30FA or code == 0x30FC or 0xFF66 <= code <= 0xFF9F


@compiled
def _is_hidden(code: int) -> bool:
    """Marks that are not seen or that Arabic leaves out: they may stand inside a word."""
    return 0x200B <= code <= 0x200D or code in (0x00AD, 0x2060, 0xFEFF, 0x0640) or 0x064B <= code <= 0x0652


@compiled
def _is_gap(code: int) -> bool:
    return code in (32, 45, 95, 10, 9, 0xA0, 0x2011, 0x2010)


@compiled
def _joins(codes: np.ndarray, classes: np.ndarray, inner: int, outer: int) -> bool:
    """Whether the characters at two places, one in a term and its neighbour outside, are of one word."""
    a, b = classes[inner], classes[outer]
    if _is_katakana(codes[inner]):
        return _is_katakana(codes[outer])
    if a & UNSPACED or b & UNSPACED:
        return False
    if not a & _WORD:
        return codes[inner] == 46 and b & DIGIT != 0
    return bool(b & _WORD != 0 and (a & HANGUL) == (b & HANGUL))


@compiled
def _is_particle(codes: np.ndarray, classes: np.ndarray, start: int, particles: np.ndarray) -> bool:
    """Whether the rest of a Korean word is a particle."""
    value = np.uint64(0)
    place = start
    while place < len(codes) and classes[place] & _WORD:
        if not classes[place] & HANGUL or place - start > 3:
            return False
        value = mix(value ^ np.uint64(codes[place]))
        place += 1
    at = np.searchsorted(particles, value)
    return bool(at < len(particles) and particles[at] == value)


@compiled
def _plain_letter(code: int) -> int:
    """The letter that a digit or sign is written for, or 0."""
    if code == 48:
        return 111
    if code == 49 or code == 33:
        return 105
    if code == 51:
        return 101
    if code == 52 or code == 64:
        return 97
    if code == 53 or code == 36:
        return 115
    if code == 55:
        return 116
    return 0


@compiled
def _disguise(codes: np.ndarray, place: int, table: np.ndarray, fold: np.ndarray, node: int) -> tuple[int, int]:
    """Child by a sign that stands for a letter, and how many characters it takes; (-1, 0) where none is."""
    code = fold[codes[place]]
    letter = _plain_letter(code)
    if letter:
        child = _edge(table, node, letter)
        if child < 0 and code == 49:
            child = _edge(table, node, 108)
        return child, 1
    after = fold[codes[place + 1]] if place + 1 < len(codes) else np.uint32(0)
    if code == 42 and 97 <= after <= 122:
        third = fold[codes[place + 2]] if place + 2 < len(codes) else np.uint32(32)
        for guess in range(97, 123):
            child = _edge(table, node, guess)
            then = _edge(table, child, after) if child >= 0 else -1
            if then >= 0 and (third < 97 or third > 122 or _edge(table, then, third) >= 0):
                return child, 1
    # A letter drawn out, as in fuuuck: three of it and more.
    is_again = 97 <= code <= 122 and code == fold[codes[place - 1]]
    if is_again and (after == code or (place > 1 and fold[codes[place - 2]] == code)):
        return node, 1
    return -1, 0


@compiled
def _walk(
    codes: np.ndarray,
    classes: np.ndarray,
    start: int,
    node: int,
    fold: np.ndarray,
    table: np.ndarray,
    ends: np.ndarray,
    particles: np.ndarray,
) -> tuple[int, int, int]:
    """Longest term from a place whose first character led to `node`: term or -1, end, whether it is disguised."""
    best, best_end, best_disguised = -1, start, 0
    disguised = 0
    inner = start
    place = start + 1
    while True:
        term = ends[node, 0]
        if term >= 0:
            outer = place
            while outer < len(codes) and _is_hidden(codes[outer]):
                outer += 1
            if (
                outer >= len(codes)
                or not _joins(codes, classes, inner, outer)
                or (classes[inner] & HANGUL and _is_particle(codes, classes, outer, particles))
            ):
                best, best_end, best_disguised = term, place, disguised
        if ends[node, 1] >= 0:
            end = place
            while end < len(codes) and classes[end] & _WORD and not classes[end] & UNSPACED:
                end += 1
            best, best_end, best_disguised = ends[node, 1], end, disguised
        if place >= len(codes):
            break
        code = fold[codes[place]]
        child = _edge(table, node, code)
        step = 1
        if child < 0 and _is_gap(code):
            child = _edge(table, node, 32)
            while child >= 0 and step < 3 and place + step < len(codes) and _is_gap(codes[place + step]):
                step += 1
        if child < 0 and _is_hidden(code):
            child = node
        else:
            if child < 0:
                child, step = _disguise(codes, place, table, fold, node)
                disguised = 1
            if child < 0:
                break
            inner = place + step - 1
        node = child
        place += step
    return best, best_end, best_disguised


@compiled
def _spelt(
    codes: np.ndarray, classes: np.ndarray, start: int, fold: np.ndarray, table: np.ndarray, ends: np.ndarray
) -> tuple[int, int]:
    """The term that is written letter by letter from a place, all of the letters; (-1, end) where it is none."""
    gap = codes[start + 1]
    node = 0
    place = start
    while True:
        if node >= 0:
            node = _edge(table, node, fold[codes[place]])
        end = place + 1
        if end + 1 >= len(codes) or codes[end] != gap or not classes[end + 1] & LETTER:
            break
        if end + 2 < len(codes) and classes[end + 2] & _WORD:
            break
        place += 2
    if node < 0 or end - start < 7:
        return -1, end
    return ends[node, 0], end


@compiled
def _bit(first: int, second: int, third: int) -> np.uint64:
    value = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return ((value ^ np.uint64(third)) * np.uint64(0x165667B19E3779F9)) >> np.uint64(48)


@compiled
def _is_sign(code: int) -> bool:
    """Whether a sign may stand for a letter, or be unseen."""
    return (33 <= code <= 64 and (_plain_letter(code) != 0 or code == 42)) or _is_hidden(code)


@compiled
def _may_begin(codes: np.ndarray, place: int, fold: np.ndarray, lengths: np.ndarray, begins: np.ndarray) -> bool:
    """Whether some term begins with the three characters here; signs for letters pass.

    Args:
        codes: code points.
        place: where the word begins; its first character begins some term.
        fold: code points as they are compared.
        lengths: by first character, the flag 1 where it is a term, 2 where a term of two characters begins so.
        begins: by `_bit`, whether a term begins so.
    """
    first = fold[codes[place]]
    if first >= _ROOTS or lengths[first] & 1 or place + 2 >= len(codes):
        return True
    second, third = fold[codes[place + 1]], fold[codes[place + 2]]
    if lengths[first] & 2 and begins[_bit(first, second, 0)]:
        return True
    if _is_gap(second):
        second = np.uint32(32)
    if _is_gap(third):
        third = np.uint32(32)
    return begins[_bit(first, second, third)] or second == third or _is_sign(second) or _is_sign(third)


@compiled
def _find(
    codes: np.ndarray,
    classes: np.ndarray,
    fold: np.ndarray,
    lengths: np.ndarray,
    begins: np.ndarray,
    roots: np.ndarray,
    table: np.ndarray,
    ends: np.ndarray,
    particles: np.ndarray,
) -> tuple[np.ndarray, int]:
    found = np.empty((16, 4), np.int64)
    units = 0
    count = 0
    skip_to = 0
    inside = False
    spelt_end = 0
    for place in range(len(codes)):
        kind = classes[place]
        was_inside = inside
        inside = kind & _WORD != 0 and kind & UNSPACED == 0
        if kind & SPACE:
            continue
        units += (inside and not was_inside) or kind & UNSPACED != 0
        if place < skip_to:
            continue
        if was_inside and inside:
            if not (codes[place - 1] == 0x0644 and place >= 2 and codes[place - 2] == 0x0627):
                if (kind & HANGUL) == (classes[place - 1] & HANGUL):
                    continue
            elif place >= 3 and classes[place - 3] & _WORD and (place >= 4 and classes[place - 4] & _WORD):
                continue
        code = fold[codes[place]]
        node = roots[code] if code < _ROOTS else _edge(table, 0, code)
        if node <= 0:
            continue
        is_spelt = (
            inside
            and place >= spelt_end
            and place + 6 < len(codes)
            and codes[place + 3] == codes[place + 1]
            and classes[place + 2] & LETTER != 0
            and classes[place + 1] & (SPACE | PUNCTUATION | SYMBOL) != 0
        )
        if not is_spelt and not _may_begin(codes, place, fold, lengths, begins):
            continue
        if place and _is_katakana(codes[place]) and _is_katakana(codes[place - 1]):
            continue
        term, end, disguised = _walk(codes, classes, place, node, fold, table, ends, particles)
        if term < 0 and is_spelt:
            term, end = _spelt(codes, classes, place, fold, table, ends)
            spelt_end = end
            disguised = 2
        if term < 0:
            continue
        if count == len(found):
            grown = np.empty((2 * len(found), 4), np.int64)
            grown[:count] = found
            found = grown
        found[count] = term, place, end, disguised
        count += 1
        skip_to = end
    return found[:count].copy(), units


class Matcher:
    """Terms ready to be looked for.

    Attributes:
        terms: the terms, by the numbers that the trie holds.
    """

    def __init__(self, terms: Iterable[Term]) -> None:
        self.terms = list(terms)
        edges: dict[tuple[int, int], int] = {}
        self._lengths = np.zeros(_ROOTS, np.uint8)
        self._begins = np.zeros(_FILTER, np.bool_)
        parents, codes, ends = [0], [0], [[-1, -1]]
        for number, term in enumerate(self.terms):
            node = 0
            text, wild = normal(term.text)
            if not text:
                continue
            head = [ord(character) for character in text[:3]]
            if len(head) < 3 and head[0] < _ROOTS:
                self._lengths[head[0]] |= len(head)
            if len(head) > 1:
                self._begins[_bit(head[0], head[1], head[2] if len(head) > 2 else 0)] = True
            for character in text:
                key = node, ord(character)
                if key not in edges:
                    edges[key] = len(parents)
                    parents.append(node)
                    codes.append(ord(character))
                    ends.append([-1, -1])
                node = edges[key]
            if ends[node][wild] < 0:
                ends[node][wild] = number
        size = 16
        while size < 3 * len(parents):
            size *= 2
        self._table = np.zeros((size, 3), np.int64)
        _fill(np.array(parents, np.int64), np.array(codes, np.int64), self._table)
        self._roots = np.zeros(_ROOTS, np.int32)
        for (node, code), child in edges.items():
            if node == 0 and code < _ROOTS:
                self._roots[code] = child
        self._ends = np.array(ends, np.int32)
        self._particles = np.sort(np.array([_hash(particle) for particle in _PARTICLES], np.uint64))

    def find(self, analysis: Analysis) -> tuple[list[Hit], int]:
        """Terms in a text, and how many units it has.

        They come from left to right, the longest where several begin at one place, none over another; a term under
        `innocent` hides those inside it. Disguised ones count from four letters and severity 2 on.
        """
        if not len(analysis.codes):
            return [], 0
        rows, units = _find(
            analysis.codes,
            analysis.classes,
            fold(),
            self._lengths,
            self._begins,
            self._roots,
            self._table,
            self._ends,
            self._particles,
        )
        hits = []
        for number, start, end, disguised in rows.tolist():
            term = self.terms[number]
            if disguised and (end - start < 4 or term.severity < 2 or not _is_readable(analysis.text[start:end])):
                continue
            if end - start < 3 and start >= 2 and analysis.text[start - 2 : start] == "ال":
                continue
            hits.append(Hit(term, start, end, disguised > 0))
        return hits, int(units)


def _is_readable(written: str) -> bool:
    """Whether more than half of the signs are letters, as in sh1t and unlike T175; letters with gaps are."""
    signs = [character for character in written if not character.isspace()]
    letters = sum(character.isalpha() for character in signs)
    return 2 * letters > len(signs) or (letters >= 4 and 2 * letters + 1 >= len(signs))


def _hash(text: str) -> int:
    value = np.uint64(0)
    for character in text:
        value = mix(value ^ np.uint64(ord(character)))
    return int(value)
