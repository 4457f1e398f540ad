"""Classes of code points, as bit flags in a table that compiled loops can index.

General categories are Unicode's (https://www.unicode.org/reports/tr44/#General_Category_Values), as this Python's
`unicodedata` has them; scripts are told by block, which suffices for the ones without spaces between words.
"""

import sys
import unicodedata
from functools import cache

import numpy as np

LETTER = 1
MARK = 2
DIGIT = 4
SPACE = 8
"""White space, line ends included."""
NEWLINE = 16
PUNCTUATION = 32
SYMBOL = 64
CONTROL = 128
"""Controls, formats, surrogates, private use and unassigned; tab and line ends are white space instead."""
UPPER = 256
UNSPACED = 512
"""A letter of a script that puts no spaces between words: each is a unit of its own."""
HAN = 1024
KANA = 2048
HANGUL = 4096

_CATEGORY = {"L": LETTER, "M": MARK, "N": DIGIT, "P": PUNCTUATION, "S": SYMBOL, "Z": SPACE, "C": CONTROL}
_HAN = ((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFD))
_KANA = ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F))
_HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF))
_UNSPACED = (*_HAN, *_KANA, (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))
"""Han, kana, Thai and Lao, Tibetan, Myanmar, Khmer."""
TABLE_SIZE = sys.maxunicode + 1
_TABULATED = 0x20000
"""Code points beyond are Han or have no class worth telling; reading them from `unicodedata` would cost 0.4 s."""


def _mark_ranges(table: np.ndarray, ranges: tuple[tuple[int, int], ...], flag: int, within: int) -> None:
    for first, last in ranges:
        part = table[first : last + 1]
        part[(part & within) != 0] |= flag


@cache
def class_table() -> np.ndarray:
    """Flags of every code point, [1,114,112] uint16."""
    table = np.full(TABLE_SIZE, CONTROL, np.uint16)
    for code in range(_TABULATED):
        character = chr(code)
        category = unicodedata.category(character)
        flags = _CATEGORY[category[0]]
        if category == "Lu" or category == "Lt":
            flags |= UPPER
        table[code] = flags
    table[0x20000:0x3FFFE] = LETTER
    table[0xE0100:0xE01F0] = MARK
    for character in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85":
        table[ord(character)] = SPACE
    for character in "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029":
        table[ord(character)] = SPACE | NEWLINE
    _mark_ranges(table, _HAN, HAN, LETTER | DIGIT | SYMBOL)
    _mark_ranges(table, _KANA, KANA, LETTER | MARK)
    _mark_ranges(table, _HANGUL, HANGUL, LETTER)
    _mark_ranges(table, _UNSPACED, UNSPACED, LETTER | MARK)
    return table


@cache
def fold_table() -> np.ndarray:
    """Each code point in lower case where that is one code point, [1,114,112] uint32."""
    table = np.arange(TABLE_SIZE, dtype=np.uint32)
    for code in range(_TABULATED):
        lower = chr(code).lower()
        if len(lower) == 1:
            table[code] = ord(lower)
    return table
