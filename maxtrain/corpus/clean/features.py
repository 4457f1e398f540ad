"""One look at a text that tells which cleaning rules have anything to do; most have not, and cost nothing then."""

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from maxtrain.corpus.document import Document
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import HAN, KANA, TABLE_SIZE, class_table
from maxtrain.corpus.text.kernels import compiled

REMOVABLE = 1
"""Controls, formats, private use: what `control_characters` may remove."""
LINE_END = 2
"""A line end that is no line feed."""
COMPOSABLE = 4
"""A character that NFC may change."""
WIDE = 8
"""A full-width form of an ASCII letter, digit or sign."""
LIGATURE = 16
"""A Latin ligature that is a form, not a letter."""
ODD_SPACE = 32
"""A space that is not U+0020, a tab or the ideographic space."""
SOFT_HYPHEN = 64
ENTITY = 128
"""An ampersand before a letter or #."""
TAG = 256
"""A less-than sign before a letter, / or !."""
LINK = 512
"""://, www. or ](."""
HYPHEN = 1024
"""A hyphen between a letter and a line end that a letter follows."""
SPACES = 2048
"""Three spaces inside a line, a space before a line end, or three line ends with nothing but spaces between."""
SPACED = 4096
"""A tenth of the East Asian characters or more that have one beside or one space away have it a space away."""

_COMPATIBILITY = ((0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


class Features(NamedTuple):
    """What a text holds.

    Attributes:
        flags: the sum of the constants of this module that hold.
    """

    flags: int

    def has(self, flag: int) -> bool:
        """Whether one of the flags holds."""
        return self.flags & flag != 0


@cache
def _flag_table() -> np.ndarray:
    """What each code point tells by itself, [1,114,112] uint8."""
    table = np.zeros(TABLE_SIZE, np.uint8)
    removable = [
        *range(9),
        *range(0x0E, 0x20),
        *range(0x7F, 0xA0),
        0x61C,
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
    ]
    removable += [*range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFE)]
    table[removable] = REMOVABLE
    for first, last in ((0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF), (0xE0000, 0xE00FF), (0xF0000, 0x10FFFF)):
        table[first : last + 1] = REMOVABLE
    table[0x1FFFE::0x10000] = REMOVABLE
    table[0x1FFFF::0x10000] = REMOVABLE
    table[[0x0B, 0x0C, 0x0D, 0x85, 0x2028, 0x2029]] = LINE_END
    table[0xAD] = SOFT_HYPHEN
    table[[0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x1680]] = ODD_SPACE
    table[0xFB00:0xFB07] = LIGATURE
    table[0xFF01:0xFF5F] = WIDE
    table[[ord(character) for character in "！，：；？"]] = 0
    # NFC_Quick_Check is not Yes (https://www.unicode.org/reports/tr15/): marks, singletons, jamo, compatibility Han.
    marks = (class_table() & 2) != 0
    table[marks] |= COMPOSABLE
    for first, last in ((0x0340, 0x037F), (0x0958, 0x095F), (0x09DC, 0x09DF), (0x0A33, 0x0A5E), (0x1100, 0x11FF),
                        (0x1F70, 0x1FFF), (0x2126, 0x212B), (0x2329, 0x232A), *_COMPATIBILITY):  # fmt: skip
        table[first : last + 1] |= COMPOSABLE
    table[0x387] |= COMPOSABLE
    table[0x1FEF] |= COMPOSABLE
    return table


@cache
def wide_table() -> np.ndarray:
    """Whether a character is Han, kana or East Asian punctuation, [1,114,112] bool."""
    table = (class_table() & (HAN | KANA)) != 0
    table[0x3001:0x3020] = True
    table[0xFF01:0xFF61] = True
    return table


@compiled
def _scan(codes: np.ndarray, table: np.ndarray, wide: np.ndarray) -> tuple[int, int, int]:
    """Flags; East Asian neighbours with nothing and with one space between."""
    flags = 0
    close = apart = 0
    size = len(codes)
    blanks = 0
    inside = False
    for place in range(size):
        code = codes[place]
        after = codes[place + 1] if place + 1 < size else np.uint32(10)
        if code >= 128:
            flags |= int(np.int64(table[code]))
            if wide[code]:
                if wide[after]:
                    close += 1
                elif after == 32 and place + 2 < size and wide[codes[place + 2]]:
                    apart += 1
            inside = True
            blanks = 0
            continue
        if code == 32:
            if after == 10 or (inside and after == 32 and place + 2 < size and codes[place + 2] == 32):
                flags |= SPACES
            continue
        if code == 10:
            blanks += 1
            inside = False
            if blanks > 2:
                flags |= SPACES
            continue
        blanks = 0
        if code < 32:
            flags |= int(np.int64(table[code]))
            continue
        inside = True
        if code == 127:
            flags |= REMOVABLE
        elif code == 38:
            if after == 35 or 65 <= (after & 0xFFFFFFDF) <= 90:
                flags |= ENTITY
        elif code == 60:
            if after == 47 or after == 33 or 65 <= (after & 0xFFFFFFDF) <= 90:
                flags |= TAG
        elif code == 58:
            if after == 47 and place + 2 < size and codes[place + 2] == 47:
                flags |= LINK
        elif code == 93:
            if after == 40:
                flags |= LINK
        elif code == 119:
            if after == 119 and place + 3 < size and codes[place + 2] == 119 and codes[place + 3] == 46:
                flags |= LINK
        elif (
            code == 45
            and after == 10
            and place
            and codes[place - 1] >= 65
            and place + 2 < size
            and (codes[place + 2] >= 65 or codes[place + 2] == 32 or codes[place + 2] == 58)
        ):
            flags |= HYPHEN
    return flags, close, apart


@lru_cache(maxsize=4)
def features(text: str) -> Features:
    """What a text holds; rules that look at the same text one after the other share it."""
    flags, close, apart = _scan(analyse(text).codes, _flag_table(), wide_table())
    if apart >= 5 and apart > 0.1 * (close + apart):
        flags |= SPACED
    return Features(flags)


def is_verbatim(document: Document) -> bool:
    """Whether a document is source code or mathematics, whose every character may count."""
    return document.is_code or document.category == "math"
