"""Sketches of texts: n-gram sets and MinHash band keys, from which near-duplicates are found.

A shingle is n consecutive words or, where a text is mostly in a script without spaces between words, n consecutive
characters (white space passed over). Signatures are MinHash (Broder 1997) with one affine hash function a value, and
bands of rows are hashed to keys (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch. 3): two texts with
Jaccard similarity s share a key with probability 1 - (1 - s^rows)^bands, .998 at s = .8 with 20 bands of 6 rows.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import Fraction, Section
from maxtrain.corpus.text.classes import CONTROL, DIGIT, LETTER, MARK, PUNCTUATION, SPACE, SYMBOL, UNSPACED, class_table
from maxtrain.corpus.text.folded import codes_of, comparison_table, is_unspaced, word_table
from maxtrain.corpus.text.kernels import compiled, mix

_WORD = LETTER | MARK | DIGIT
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_BASE = np.uint64(0x9E3779B97F4A7C15)
PIECE = 2**20
"""Characters looked at at once; n-grams across such bounds are passed over. A longer text's set is a sample of about
as many shingles as this, so that no text takes more than a few megabytes."""


class SketchConfig(Section):
    """What is compared; a change makes sketches and indices incomparable."""

    ngram: Annotated[int, Field(ge=1, le=64)] = 5
    """Words of a shingle; characters in scripts without spaces."""
    bands: Annotated[int, Field(ge=1, le=256)] = 20
    """Keys of a document; one in common makes a candidate."""
    rows: Annotated[int, Field(ge=1, le=64)] = 6
    """MinHash values of a key."""
    min_shingles: Annotated[int, Field(ge=1, le=4096)] = 5
    """A text with fewer is left to the exact stage: it has no near-duplicate that is not a wholly other text."""
    unspaced_share: Fraction = 0.1
    """From this share of letters of scripts without spaces, a text is compared by characters."""
    punctuation: bool = True
    """Whether punctuation counts among such characters; between words it never does."""


@dataclass(frozen=True)
class ShingleSets:
    """Shingles of documents.

    Attributes:
        values: sorted and distinct within a document, [shingles] uint32.
        offsets: where each document's begin, [documents + 1] int64.
        levels: a document's set holds the shingles under 2^(32 - level), [documents] uint8: 0 is the whole set.
    """

    values: np.ndarray
    offsets: np.ndarray
    levels: np.ndarray

    def __len__(self) -> int:
        return len(self.levels)

    def select(self, documents: np.ndarray) -> "ShingleSets":
        """The sets of some documents, in the order of their numbers given, [selected] int64."""
        sizes = np.diff(self.offsets)[documents]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        values = self.values[np.repeat(self.offsets[documents], sizes) + inside]
        return ShingleSets(values, offsets, self.levels[documents])

    def reduced(self, most: int) -> "ShingleSets":
        """Sets of no more than about `most` shingles: larger ones are sampled by hash (never under half of `most`)."""
        values, levels, parts = self.values, self.levels.copy(), []
        for number in range(len(self)):
            part = values[self.offsets[number] : self.offsets[number + 1]]
            while len(part) > most:
                levels[number] += 1
                part = part[: np.searchsorted(part, np.uint32(2 ** (32 - int(levels[number]))))]
            parts.append(part)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return ShingleSets(np.concatenate([*parts, values[:0]]), offsets, levels)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> "ShingleSets":
        """The sets of all parts, one part after the other."""
        sizes = np.concatenate([np.diff(part.offsets) for part in parts] or [np.zeros(0, np.int64)])
        return ShingleSets(
            np.concatenate([part.values for part in parts] or [np.zeros(0, np.uint32)]),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate([part.levels for part in parts] or [np.zeros(0, np.uint8)]),
        )


@dataclass(frozen=True)
class Sketches:
    """Sketches of documents.

    Attributes:
        keys: band keys, [documents, bands] uint64; those of different bands never meet.
        usable: False where a text is too short to be compared, [documents] bool; its keys are 0.
        sets: for the verification of candidates.
    """

    keys: np.ndarray
    usable: np.ndarray
    sets: ShingleSets


@compiled
def _word_shingles(codes: np.ndarray, classes: np.ndarray, fold: np.ndarray, ngram: int) -> np.ndarray:
    """Hashes of the n-grams of words, in order, [shingles] uint32."""
    out = np.empty(len(codes) // 2 + 1, np.uint32)
    ring = np.zeros(ngram, np.uint64)
    power = np.uint64(1)
    for _ in range(ngram):
        power *= _BASE
    rolling = np.uint64(0)
    words = 0
    count = 0
    position = 0
    size = len(codes)
    while position < size:
        if not classes[codes[position]] & _WORD:
            position += 1
            continue
        value = _FNV_OFFSET
        unspaced = (classes[codes[position]] & UNSPACED) != 0
        while position < size and classes[codes[position]] & _WORD:
            value = (value ^ np.uint64(fold[codes[position]])) * _FNV_PRIME
            position += 1
            if unspaced or (position < size and classes[codes[position]] & UNSPACED):
                break
        value = mix(value)
        slot = words % ngram
        rolling = rolling * _BASE + value - ring[slot] * power
        ring[slot] = value
        words += 1
        if words >= ngram:
            if count == len(out):
                out = np.concatenate((out, np.empty(len(out) + 16, np.uint32)))
            out[count] = mix(rolling) >> np.uint64(32)
            count += 1
    return out[:count]


@compiled
def _character_shingles(
    codes: np.ndarray, classes: np.ndarray, fold: np.ndarray, ngram: int, skipped: int
) -> np.ndarray:
    """Hashes of the n-grams of characters, in order, [shingles] uint32."""
    out = np.empty(len(codes), np.uint32)
    ring = np.zeros(ngram, np.uint64)
    power = np.uint64(1)
    for _ in range(ngram):
        power *= _BASE
    rolling = np.uint64(0)
    kept = 0
    slot = 0
    for code in codes:
        if classes[code] & skipped:
            continue
        value = mix(np.uint64(fold[code]) + _BASE)
        rolling = rolling * _BASE + value - ring[slot] * power
        ring[slot] = value
        slot += 1
        if slot == ngram:
            slot = 0
        kept += 1
        if kept >= ngram:
            out[kept - ngram] = mix(rolling) >> np.uint64(32)
    return out[: max(kept - ngram + 1, 0)]


@compiled
def _minhash(shingles: np.ndarray, factors: np.ndarray, addends: np.ndarray, rows: int, keys: np.ndarray) -> None:
    """Fill the band keys, [bands] uint64, of a document's shingles, [shingles] uint32."""
    signature = np.full(len(factors), np.uint32(0xFFFFFFFF))
    for shingle in shingles:
        for number in range(len(factors)):
            signature[number] = min(signature[number], np.uint32(shingle * factors[number] + addends[number]))
    for band in range(len(keys)):
        key = np.uint64(band + 1) * _BASE
        for row in range(rows):
            key = mix(key ^ np.uint64(signature[band * rows + row])) * _BASE
        keys[band] = mix(key)


@compiled
def _distinct(values: np.ndarray) -> np.ndarray:
    """The distinct ones of sorted values."""
    out = np.empty(len(values), values.dtype)
    count = 0
    for number in range(len(values)):
        if number == 0 or values[number] != values[number - 1]:
            out[count] = values[number]
            count += 1
    return out[:count]


@cache
def _functions(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Odd factors and addends of hash functions, [count] uint32 each: SplitMix64 from a fixed seed."""
    state = (np.arange(1, 2 * count + 1, dtype=np.uint64)) * _BASE
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers = (state >> np.uint64(32)).astype(np.uint32)
    return numbers[:count] | np.uint32(1), numbers[count:]


def _shingles(text: str, config: SketchConfig) -> tuple[np.ndarray, int]:
    """Sorted distinct shingles [shingles] uint32 of a text and the level that they are sampled at."""
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    fold = comparison_table()
    characters = is_unspaced(text, config.unspaced_share)
    skipped = SPACE | CONTROL | (0 if config.punctuation else PUNCTUATION | SYMBOL)
    level = max(0, (max(len(text), 1) - 1) // PIECE).bit_length()
    kept = np.zeros(0, np.uint32)
    for start in range(0, len(text), PIECE):
        codes = codes_of(text[start : start + PIECE] if len(text) > PIECE else text)
        if characters:
            found = _character_shingles(codes, class_table(), fold, config.ngram, skipped)
        else:
            found = _word_shingles(codes, word_table(), fold, config.ngram)
        if level:
            found = found[found < 2 ** (32 - level)]
        found.sort()
        kept = _distinct(found if not len(kept) else np.sort(np.concatenate((kept, found)), kind="stable"))
    return kept, level


def sketch(texts: Sequence[str], config: SketchConfig) -> Sketches:
    """Sketches of texts, in order; a text's sketch follows from it and the config alone."""
    factors, addends = _functions(config.bands * config.rows)
    keys = np.zeros((len(texts), config.bands), np.uint64)
    usable = np.zeros(len(texts), np.bool_)
    levels = np.zeros(len(texts), np.uint8)
    parts = []
    for number, text in enumerate(texts):
        values, levels[number] = _shingles(text, config)
        parts.append(values)
        if len(values) >= config.min_shingles:
            usable[number] = True
            _minhash(values, factors, addends, config.rows, keys[number])
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Sketches(keys, usable, ShingleSets(np.concatenate([*parts, np.zeros(0, np.uint32)]), offsets, levels))
