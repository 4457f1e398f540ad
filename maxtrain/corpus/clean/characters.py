"""One form for what Unicode writes in several, and nothing that cannot be seen."""

import re
import unicodedata
from functools import cache
from typing import ClassVar

import numpy as np

from maxtrain.corpus.clean.features import (
    COMPOSABLE,
    LIGATURE,
    LINE_END,
    REMOVABLE,
    SOFT_HYPHEN,
    WIDE,
    features,
    is_verbatim,
)
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Rule
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import TABLE_SIZE
from maxtrain.corpus.text.kernels import compiled

_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x85\u2028\u2029]")
_SOFT_BREAK = re.compile("\xad[ \t]*\n[ \t]*(?=\\w)")


@compiled
def _widened(codes: np.ndarray) -> tuple[int, int, int, int, int]:
    """Full-width letters, digits, signs that are not East Asian punctuation; ASCII letters and digits; Han and kana."""
    letters = digits = signs = narrow = han = 0
    for code in codes:
        if 0xFF01 <= code <= 0xFF5E:
            if 0xFF10 <= code <= 0xFF19:
                digits += 1
            elif 0xFF21 <= code <= 0xFF3A or 0xFF41 <= code <= 0xFF5A:
                letters += 1
            elif code not in (0xFF01, 0xFF0C, 0xFF1A, 0xFF1B, 0xFF1F, 0xFF08, 0xFF09, 0xFF5E):
                signs += 1
        elif 48 <= code <= 57 or 65 <= code <= 90 or 97 <= code <= 122:
            narrow += 1
        elif 0x3040 <= code < 0x3100 or 0x3400 <= code < 0xA000:
            han += 1
    return letters, digits, signs, narrow, han


@compiled
def _is_wide_word(code: int) -> bool:
    return 0xFF10 <= code <= 0xFF19 or 0xFF21 <= code <= 0xFF3A or 0xFF41 <= code <= 0xFF5A


@compiled
def _is_ascii_side(codes: np.ndarray, place: int) -> bool:
    """Whether the place is outside the text, or of ASCII, or a full-width letter or digit."""
    return place < 0 or place >= len(codes) or codes[place] < 128 or _is_wide_word(codes[place])


@compiled
def _narrow(codes: np.ndarray, every: bool) -> np.ndarray:
    """Full-width letters and digits as ASCII, and the signs between them.

    Args:
        codes: code points, uint32.
        every: whether the whole text was widened, so that its signs are ASCII's, and its parentheses where they stand
            beside a space or hold nothing else.
    """
    out = codes.copy()
    opened = -1
    only = False
    for place in range(len(codes)):
        code = codes[place]
        told = code - 0xFEE0
        if code == 0xFF08:
            opened = place
            only = True
            continue
        if code == 0xFF09:
            beside = opened >= 0 and (
                (opened > 0 and codes[opened - 1] == 32) or (place + 1 < len(codes) and codes[place + 1] == 32)
            )
            if every and opened >= 0 and ((only and place > opened + 1) or beside):
                out[opened] = 40
                out[place] = 41
            opened = -1
            continue
        if code == 10:
            opened = -1
        if not 0xFF01 <= code <= 0xFF5E:
            only = only and code < 128
            continue
        if _is_wide_word(code):
            out[place] = told
            continue
        stop = code == 0xFF0E
        if code in (0xFF01, 0xFF0C, 0xFF1A, 0xFF1B, 0xFF1F, 0xFF5E):
            # Chinese has these of its own, but not between two letters without a space.
            inner = place > 0 and place + 1 < len(codes) and _is_wide_word(codes[place - 1])
            if inner and code in (0xFF1A, 0xFF0C) and _is_wide_word(codes[place + 1]):
                out[place] = told
            else:
                only = False
            continue
        repeated = (place > 0 and codes[place - 1] == code) or (place + 1 < len(codes) and codes[place + 1] == code)
        before = place > 0 and _is_wide_word(codes[place - 1])
        after = place + 1 < len(codes) and _is_wide_word(codes[place + 1])
        if every:
            # A full-width stop ends Chinese sentences in scientific prose.
            if (
                not stop
                or repeated
                or (after and _is_ascii_side(codes, place - 1))
                or (place > 0 and 0xFF01 <= codes[place - 1] <= 0xFF5E and out[place - 1] != codes[place - 1])
            ):
                out[place] = told
        elif before and after:
            out[place] = told
    return out


def narrow_forms(text: str) -> str:
    """The text with full-width letters and digits as ASCII, and full-width signs where the whole text was widened.

    Full-width punctuation of Chinese and Japanese prose stays.
    """
    codes = analyse(text).codes
    letters, digits, signs, narrow, han = _widened(codes)
    every = letters >= 3 and narrow <= 0.02 * (letters + digits + signs)
    # An English text that shows a full-width letter means it.
    if not letters + digits or not (every or 4 * han >= narrow):
        return text
    told = _narrow(codes, every)
    return told.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


class Unicode(Rule):
    """Characters take one form: NFC, line feeds, narrow letters in Chinese, no ligatures or soft hyphens."""

    name: ClassVar[str] = "unicode"

    narrow: bool = True
    """Make full-width letters, digits and widened signs ASCII."""
    ligatures: bool = True
    """Spell ﬁ and its like out."""

    def apply(self, document: Document) -> Change | None:
        """Normalise; of code and mathematics the line ends."""
        text = document.text
        found = features(text)
        if not found.has(LINE_END | COMPOSABLE | WIDE | LIGATURE | SOFT_HYPHEN):
            return None
        told = _LINE_ENDS.sub("\n", text) if found.has(LINE_END) else text
        if not is_verbatim(document):
            told = self._normalise(told, found.flags)
        return None if told == text else Change(told)

    def _normalise(self, text: str, flags: int) -> str:
        if flags & SOFT_HYPHEN:
            text = _SOFT_BREAK.sub("", text).replace("\xad", "")
        if flags & LIGATURE and self.ligatures:
            text = text.translate(_LIGATURES)
        if flags & COMPOSABLE or flags & SOFT_HYPHEN:
            text = unicodedata.normalize("NFC", text)
        if flags & WIDE and self.narrow:
            text = narrow_forms(text)
        return text


_REMOVE, _JOINER, _BREAK, _TAG = 1, 2, 3, 4


@cache
def _invisible_table() -> np.ndarray:
    """What becomes of each code point, [1,114,112] uint8: 0 stays, 1 goes, the others by their neighbours."""
    table = np.zeros(TABLE_SIZE, np.uint8)
    gone = [*range(9), 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F)]
    gone += [*range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFD)]
    table[gone] = _REMOVE
    for first, last in ((0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF), (0xF0000, 0x10FFFF)):
        table[first : last + 1] = _REMOVE
    for plane in range(1, 17):
        table[plane << 16 | 0xFFFE : (plane << 16 | 0xFFFF) + 1] = _REMOVE
    table[[0x200C, 0x200D]] = _JOINER
    table[0x200B] = _BREAK
    table[0xE0000:0xE0100] = _TAG
    return table


@compiled
def _joins(code: int) -> bool:
    """Whether a letter or mark is of a script that shapes with joiners, such as Arabic, Indic, Khmer or Mongolian."""
    return (
        0x600 <= code < 0x8A0
        or 0x8A0 <= code < 0xE00
        or 0xF00 <= code < 0x10A0
        or 0x1780 <= code < 0x18B0
        or 0xA840 <= code < 0xABFF
        or 0xFB50 <= code < 0xFE00
        or 0xFE70 <= code < 0xFEFF
        or 0x11000 <= code < 0x12000
    )


@compiled
def _is_emoji(code: int) -> bool:
    """Whether a joiner may stand beside a code point in an emoji sequence."""
    return code == 0xFE0F or 0x2190 <= code < 0x2C00 or 0x1F000 <= code < 0x1FC00 or code in (0x2640, 0x2642, 0x2695)


@compiled
def _visible(codes: np.ndarray, table: np.ndarray, lost: bool) -> np.ndarray:
    """The code points without those that nobody sees.

    Args:
        codes: code points, uint32.
        table: of `_invisible_table`.
        lost: whether replacement characters go too.
    """
    out = np.empty(len(codes), np.uint32)
    count = 0
    for place in range(len(codes)):
        code = int(np.int64(codes[place]))
        what = table[code]
        before = int(np.int64(out[count - 1])) if count else 0
        after = int(np.int64(codes[place + 1])) if place + 1 < len(codes) else 0
        if what == _REMOVE or (lost and code == 0xFFFD):
            continue
        if what == _JOINER and not (
            (_joins(before) and (_joins(after) or after < 128))
            or (code == 0x200D and _is_emoji(before) and _is_emoji(after))
        ):
            continue
        if what == _BREAK and not (0xE00 <= before < 0x1800 and 0xE00 <= after < 0x1800):
            continue
        if what == _TAG and before != 0x1F3F4 and not 0xE0000 <= before < 0xE0080:
            continue
        out[count] = code
        count += 1
    return out[:count].copy()


class ControlCharacters(Rule):
    """Controls, zero-width characters, marks of direction and private use go; joiners stay where scripts need them."""

    name: ClassVar[str] = "control_characters"

    lost: bool = True
    """Remove replacement characters as well."""

    def apply(self, document: Document) -> Change | None:
        """Remove them; from code and mathematics the controls and marks of direction only."""
        text = document.text
        found = features(text)
        if not found.has(REMOVABLE | LINE_END) and not (self.lost and "\ufffd" in text):
            return None
        if is_verbatim(document):
            told = _CODE_CONTROLS.sub("", text)
        else:
            codes = analyse(_ESCAPES.sub("", text) if "\x1b" in text else text).codes
            # A joiner beside a removed one may have lost its reason; a few rounds settle it.
            kept = _visible(codes, _invisible_table(), self.lost)
            while len(kept) != len(codes):
                codes = kept
                kept = _visible(codes, _invisible_table(), self.lost)
            told = kept.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return None if told == text else Change(told, len(text) - len(told))


_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][AB0])")
"""Commands to terminals (ECMA-48), such as colours."""
_CODE_CONTROLS = re.compile("^\ufeff|[\\x00-\\x08\\x0e-\\x1a\\x1c-\\x1f\\x7f\\u202a-\\u202e\\u2066-\\u2069]")
