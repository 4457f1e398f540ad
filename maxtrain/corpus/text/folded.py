"""Texts as streams of comparable pieces, for finding equal passages: letters folded, white space passed over.

Folding is by code point, so that a place in the stream is a place in the text: lower case, and for letters, marks and
digits the compatibility form (full-width Latin, half-width kana, CJK compatibility ideographs) where it is one code
point. Punctuation stays what it is.
"""

import unicodedata
from functools import cache

import numpy as np

from maxtrain.corpus.text.classes import (
    CONTROL,
    DIGIT,
    LETTER,
    MARK,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    TABLE_SIZE,
    UNSPACED,
    class_table,
    fold_table,
)
from maxtrain.corpus.text.kernels import compiled, mix

_WORD = LETTER | MARK | DIGIT
_SKIPPED = SPACE | CONTROL
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_COMPATIBILITY = ((0x00A0, 0x3400), (0xA640, 0xAC00), (0xF900, 0xFB00), (0xFE30, 0x10000), (0x1D400, 0x1D800))
"""Where code points with compatibility forms of one code point are."""
_CASED = 0x20000
"""Code points beyond have no case."""
_CHUNK = 2**20


def codes_of(text: str) -> np.ndarray:
    """Code points, [characters] uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@cache
def comparison_table() -> np.ndarray:
    """Each code point as it is compared, [1,114,112] uint32."""
    table = fold_table().copy()
    word = (class_table() & _WORD) != 0
    for code in range(_CASED):
        form = chr(code).casefold()
        if len(form) == 1:
            table[code] = ord(form)
    for first, last in _COMPATIBILITY:
        for code in range(first, last):
            if word[code]:
                form = unicodedata.normalize("NFKC", chr(code)).casefold()
                if len(form) == 1:
                    table[code] = ord(form)
    return table


@cache
def word_table() -> np.ndarray:
    """Flags of every code point, [1,114,112] uint16: as `class_table`, with `_` a digit, as in identifiers."""
    table = class_table().copy()
    table[ord("_")] = DIGIT
    assert len(table) == TABLE_SIZE
    return table


@compiled
def _is_unspaced(codes: np.ndarray, classes: np.ndarray, share: float) -> bool:
    letters = 0
    unspaced = 0
    for code in codes:
        flags = classes[code]
        letters += (flags & LETTER) != 0
        unspaced += (flags & (UNSPACED | LETTER)) == (UNSPACED | LETTER)
    return letters > 0 and unspaced >= share * letters


def is_unspaced(text: str, share: float) -> bool:
    """Whether at least this share of a text's letters is of scripts without spaces between words."""
    return not text.isascii() and bool(_is_unspaced(codes_of(text[:_CHUNK]), class_table(), share))


@compiled
def fold_words(
    codes: np.ndarray, classes: np.ndarray, fold: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Words, and characters of scripts without spaces: starts, ends [units] int32, hashes uint64, whether unspaced.

    Args:
        codes: code points, [characters] uint32.
        classes: `word_table()`.
        fold: `comparison_table()`.
    """
    size = len(codes)
    starts = np.empty(size, np.int32)
    ends = np.empty(size, np.int32)
    hashes = np.empty(size, np.uint64)
    unspaced = np.empty(size, np.bool_)
    count = 0
    position = 0
    while position < size:
        flags = classes[codes[position]]
        if not flags & (_WORD | UNSPACED):
            position += 1
            continue
        value = (_FNV_OFFSET ^ np.uint64(fold[codes[position]])) * _FNV_PRIME
        stop = position + 1
        if not flags & UNSPACED:
            while stop < size:
                following = classes[codes[stop]]
                if not following & _WORD or following & UNSPACED:
                    break
                value = (value ^ np.uint64(fold[codes[stop]])) * _FNV_PRIME
                stop += 1
        starts[count] = position
        ends[count] = stop
        hashes[count] = mix(value)
        unspaced[count] = (flags & UNSPACED) != 0
        count += 1
        position = stop
    return starts[:count].copy(), ends[:count].copy(), hashes[:count].copy(), unspaced[:count].copy()


@compiled
def fold_characters(
    codes: np.ndarray, classes: np.ndarray, fold: np.ndarray, with_punctuation: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Characters that are not white space: positions [kept] int32, folded codes uint32, weights uint8.

    The weight is 2 for a character of a script without spaces, which says about as much as two letters, else 1.

    Args:
        codes: code points, [characters] uint32.
        classes: `class_table()`.
        fold: `comparison_table()`.
        with_punctuation: whether punctuation and symbols are kept.
    """
    skipped = _SKIPPED if with_punctuation else _SKIPPED | PUNCTUATION | SYMBOL
    positions = np.empty(len(codes), np.int32)
    values = np.empty(len(codes), np.uint32)
    weights = np.empty(len(codes), np.uint8)
    count = 0
    for position in range(len(codes)):
        flags = classes[codes[position]]
        if flags & skipped:
            continue
        positions[count] = position
        values[count] = fold[codes[position]]
        weights[count] = 2 if flags & UNSPACED else 1
        count += 1
    return positions[:count].copy(), values[:count].copy(), weights[:count].copy()
