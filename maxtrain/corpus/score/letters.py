"""How likely letters follow each other: a trigram model of Latin and Cyrillic letters over many languages.

It tells random letters from words of any language, not good prose from bad: 28 languages share one table, accents are
folded away, and other scripts are not judged. `tools/data/make_letter_model.py` made the table, from the Universal
Declaration of Human Rights and this repository's sample corpus.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from maxtrain.corpus.text.classes import TABLE_SIZE
from maxtrain.corpus.text.kernels import compiled

LATIN = 27
"""Symbols of the Latin table: the end of a word, then a to z."""
CYRILLIC = 34
"""Symbols of the Cyrillic table: the end of a word, 32 letters from а to я, and all others."""
BITS_UNIT = 16
"""The table holds bits × 16."""
_CYRILLIC_BASE = 0x0430


@cache
def letter_table() -> np.ndarray:
    """Symbol of each code point, [1,114,112] int16: 1 to 26 Latin, 101 to 133 Cyrillic, 0 for all else."""
    table = np.zeros(TABLE_SIZE, np.int16)
    for code in (*range(0x41, 0x250), *range(0x1E00, 0x1F00)):
        base = unicodedata.normalize("NFD", chr(code).lower())[:1]
        special = {"ß": "s", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "t", "æ": "a", "œ": "o", "ı": "i"}
        base = special.get(base, base)
        if "a" <= base <= "z":
            table[code] = ord(base) - ord("a") + 1
    for code in range(0x400, 0x530):
        lower = unicodedata.normalize("NFC", unicodedata.normalize("NFD", chr(code).lower())[:1])
        if not lower.isalpha():
            continue
        offset = ord(lower) - _CYRILLIC_BASE
        table[code] = 101 + offset if 0 <= offset < 32 else 133
    return table


@compiled
def _trigrams(codes: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, int]:
    """Trigrams of the words of a text, their ends included, and how many of them are Latin, which come first.

    A trigram is told by its place in the joined tables, [trigrams] int32.
    """
    found = np.empty((2, 2 * len(codes) + 1), np.int32)
    counts = np.zeros(2, np.int64)
    first = second = script = np.int64(0)
    for place in range(len(codes) + 1):
        symbol = np.int64(table[codes[place]]) if place < len(codes) else np.int64(0)
        now = np.int64(0) if symbol == 0 else np.int64(1) if symbol < 100 else np.int64(2)
        size = np.int64(LATIN) if script == 1 else np.int64(CYRILLIC)
        if now != script and script:
            found[script - 1, counts[script - 1]] = (first * size + second) * size
            counts[script - 1] += 1
            first = second = np.int64(0)
        script = now
        if now:
            letter = symbol if now == 1 else symbol - 100
            size = np.int64(LATIN) if now == 1 else np.int64(CYRILLIC)
            found[now - 1, counts[now - 1]] = (first * size + second) * size + letter
            counts[now - 1] += 1
            first, second = second, letter
    joined = np.concatenate((found[0, : counts[0]], found[1, : counts[1]] + np.int32(LATIN**3)))
    return joined, counts[0]


def count_trigrams(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trigrams of the words of a text, Latin [27, 27, 27] and Cyrillic [34, 34, 34] int64."""
    counts = np.bincount(_trigrams(codes, letter_table())[0], minlength=LATIN**3 + CYRILLIC**3)
    return counts[: LATIN**3].reshape((LATIN,) * 3), counts[LATIN**3 :].reshape((CYRILLIC,) * 3)


def to_bits(counts: np.ndarray) -> np.ndarray:
    """Counts [n, n, n] to bits × 16, uint8: trigrams smoothed by bigrams, bigrams by letters (Witten and Bell 1991)."""
    size = counts.shape[-1]
    single = (counts.sum((0, 1)) + 0.5) / (counts.sum() + 0.5 * size)
    pair_counts = counts.sum(0)
    kinds = (pair_counts > 0).sum(-1, keepdims=True)
    pair = (pair_counts + kinds * single) / np.maximum(pair_counts.sum(-1, keepdims=True) + kinds, 1)
    pair = np.where(kinds > 0, pair, single)
    kinds = (counts > 0).sum(-1, keepdims=True)
    triple = (counts + kinds * pair) / np.maximum(counts.sum(-1, keepdims=True) + kinds, 1)
    triple = np.where(kinds > 0, triple, pair)
    return np.clip(np.rint(-np.log2(triple) * BITS_UNIT), 0, 255).astype(np.uint8)


@cache
def _bits_table() -> np.ndarray:
    """Bits × 16 of each trigram, Latin ones first, [27³ + 34³] uint8."""
    with files("maxtrain.corpus.score").joinpath("data/letters.npy").open("rb") as file:
        table: np.ndarray = np.load(file, allow_pickle=False)
    return table


@dataclass(frozen=True)
class LetterBits:
    """How surprising the words of a text are.

    Attributes:
        latin, cyrillic: bits a letter, word ends included; NaN where the text has no such letters.
        num_latin, num_cyrillic: letters.
    """

    latin: float
    num_latin: int
    cyrillic: float
    num_cyrillic: int


def letter_bits(codes: np.ndarray) -> LetterBits:
    """Bits a letter of the Latin and Cyrillic words among code points, [characters] uint32."""
    found, split = _trigrams(codes, letter_table())
    latin, num_latin = _mean_bits(found[:split], LATIN, 0)
    cyrillic, num_cyrillic = _mean_bits(found[split:], CYRILLIC, LATIN**3)
    return LetterBits(latin, num_latin, cyrillic, num_cyrillic)


def _mean_bits(trigrams: np.ndarray, size: int, first: int) -> tuple[float, int]:
    """Bits a letter and number of letters; a trigram whose last symbol is 0 ends a word."""
    letters = int(np.count_nonzero((trigrams - first) % size))
    bits = float(_bits_table()[trigrams].sum(dtype=np.int64)) / BITS_UNIT
    return (bits / letters if letters else float("nan")), letters


@cache
def common_han_table() -> np.ndarray:
    """Whether a Han character is common, [1,114,112] bool: of the first level of GB 2312 or of Big5.

    The first levels hold 3,755 and 5,401 characters by frequency of use; of random Han characters a third is in one.
    """
    table = np.zeros(TABLE_SIZE, np.bool_)
    gb = bytes(byte for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF) for byte in (row, cell))
    trails = (*range(0x40, 0x7F), *range(0xA1, 0xFF))
    big5 = bytes(byte for row in range(0xA4, 0xC7) for cell in trails for byte in (row, cell))
    for text in (gb.decode("gb2312", "ignore"), big5.decode("big5", "ignore")):
        table[[ord(character) for character in text]] = True
    for character in "〇々":
        table[ord(character)] = True
    return table


@cache
def han_variant_tables() -> tuple[np.ndarray, np.ndarray]:
    """Simplified-only and traditional-only Han characters, [1,114,112] bool each.

    Simplified-only are those of GB 2312 that Big5 has not, traditional-only those of Big5 that GB 2312 has not.
    """
    simplified, traditional = np.zeros(TABLE_SIZE, np.bool_), np.zeros(TABLE_SIZE, np.bool_)
    for code in range(0x4E00, 0xA000):
        character = chr(code)
        in_gb, in_big5 = _encodes(character, "gb2312"), _encodes(character, "big5")
        simplified[code] = in_gb and not in_big5
        traditional[code] = in_big5 and not in_gb
    return simplified, traditional


def _encodes(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
