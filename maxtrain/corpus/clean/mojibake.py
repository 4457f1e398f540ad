"""Text that was decoded in a wrong charset, decoded anew.

A line is suspect if its characters that are not ASCII cost more bits than those of clean text (`plausible`). Every way
back that can have made its characters is tried, ftfy (https://ftfy.readthedocs.io) as one of them, and the one that
costs least is taken if it costs much less than the line as it stands. So the same measure tells that something is wrong
and that it is right again, and clean text in a rare script stays, for no way back makes it likelier.
"""

import re
from functools import cache
from typing import ClassVar

import ftfy
import numpy as np
from ftfy.badness import is_bad

from maxtrain.config.schema.types import Fraction
from maxtrain.corpus.clean.charsets import DOUBLE, LOST, SINGLE, UTF_8, encoder, reread
from maxtrain.corpus.clean.features import REMOVABLE, features
from maxtrain.corpus.clean.plausible import (
    BITS_UNIT,
    LATIN_LOWER,
    LATIN_SYMBOL,
    LATIN_UPPER,
    ORDINARY,
    sum_bits,
    tables,
    told_bits,
)
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Drop, Rule
from maxtrain.corpus.score.letters import letter_bits
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import LETTER, TABLE_SIZE, class_table
from maxtrain.corpus.text.kernels import compiled

_CYRILLIC = ("cp1251", "koi8-r", "cp866", "iso8859-5")
_WAYS = (
    *(("cp1252", written) for written in (UTF_8, *DOUBLE, "cp1251", "koi8-r", "cp1250", "cp1253", "cp1255", "cp1256",
                                          "cp874", "cp866")),
    *((read, UTF_8) for read in (*DOUBLE, *_CYRILLIC, "cp1250", "iso8859-2", "cp1253", "cp1255",
                              "cp1256", "cp874")),
    *((read, written) for read in DOUBLE for written in DOUBLE if read != written),
    *((read, written) for read in _CYRILLIC for written in _CYRILLIC if read != written),
    *((read, "cp1251") for read in ("gb18030", "big5hkscs", "cp932", "cp949", "cp1250")),
    *((read, "cp1252") for read in ("gb18030", "big5hkscs", "cp932", "cp949", "cp1251", "cp1250", "cp1253")),
    *((read, "gb18030") for read in _CYRILLIC),
)  # fmt: skip
"""(charset it was read in, charset it was written in); cp1252 stands for Latin-1 as well."""
_SUSPECT_LATIN = 11.5
_SUSPECT_CYRILLIC = 8.0
_SUSPECT_EAST_ASIAN = 16.5
"""Mean bits of a line's characters that are not ASCII, by their script, over which it is suspect: about the 97th
percentile of clean lines, and the 3rd of wrong ones."""
_SUSPECT_ONE = 20.0
"""Bits of a single character over which its line is suspect."""
_LEAST_EAST_ASIAN = 6
"""Least characters of an East Asian line that is suspect; no way back is told by fewer."""
_STRANGE = 18.0
"""Mean bits over which every way back is tried for a line of an otherwise clean text."""
_LETTERS_TO = 0x590
"""Code point up to which a single character makes a line suspect; one Han or Arabic letter in English is no wonder."""
_REPEAT = 2 * BITS_UNIT
_LEAST_GAIN = 14.0
"""Bits that a way back must gain at least."""
_LIMITS = ((6, 0.45), (10, 0.38), (16, 0.3), (40, 0.25))
"""(least characters that are not ASCII, least share of their bits to gain) of a way back other than from a charset of
single bytes to UTF-8, whose form is evidence in itself."""
_FTFY_GAIN = 5.0
"""Bits that ftfy must gain, which has looked at the very pairs of characters."""
_LETTERS = 0.6
"""Least share of letters among the characters that are not ASCII which a way back other than to UTF-8 makes."""
_ALIKE = 30
"""Least characters that are not ASCII of a way back between Latin-1 and a charset of single bytes like it."""
_LETTER_GAIN = 0.7
"""Bits a letter that a way back between Cyrillic charsets must gain by the trigrams of letters."""
_LATIN_C1 = re.compile("[\x80-\x9f]")
"""Controls in a Latin text: Windows-1252 read as Latin-1."""
_PROBE = 3000
"""Characters by which a way is chosen for a text."""
_FTFY = ftfy.TextFixerConfig(fix_c1_controls=False)
_LEAST_LOST = 0.02
"""Share of all characters up to which lost ones do not spoil a text."""
_ROUNDS = 4


@compiled
def _is_sign(code: int, kind: int) -> bool:
    """Whether a character is a sign that does not end or begin words, as quotes, dashes and dots do."""
    return kind == ORDINARY and not 0x2010 <= code <= 0x2027 and code not in (0xAB, 0xBB, 0xB7, 0x2039, 0x203A)


@compiled
def _is_odd_after(sign: int, after: int, kinds: np.ndarray) -> bool:
    """Whether a sign is odd before a character: a letter that is not ASCII, or another sign, if not both draw a box."""
    if after < 128 or after == sign or (0x2500 <= sign < 0x2580 and 0x2500 <= after < 0x25A0):
        return 0x2550 <= sign < 0x2570 and after != sign and after >= 128
    return kinds[after] in (LATIN_LOWER, LATIN_UPPER, LATIN_SYMBOL) or _is_sign(after, kinds[after])


@compiled
def _leads(code: int) -> bool:
    """Whether a character is a wrong reading of a byte whose second may have become a space."""
    return code in (0xC2, 0xC3, 0xC4, 0xC5, 0xD0, 0xD1, 0x102, 0x413, 0x420, 0x421, 0xE2)


@compiled
def _is_suspect(number: int, total: int, worst: int, cyrillic: int, wide: int, signs: int) -> bool:
    """Whether what `_line_costs` tells of a line makes it suspect."""
    least, limit = 2, _SUSPECT_LATIN
    if 2 * wide > number:
        least, limit = _LEAST_EAST_ASIAN, _SUSPECT_EAST_ASIAN
    elif 2 * cyrillic > number:
        limit = _SUSPECT_CYRILLIC
    mean = total / (number * BITS_UNIT)
    return (mean > limit and number >= least) or worst > _SUSPECT_ONE * BITS_UNIT or signs > 0


@compiled
def _line_costs(codes: np.ndarray, kinds: np.ndarray, bits: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """What is to be known of each line that is not all ASCII, [lines, 10] int64.

    Its start and end; of its characters that are not ASCII the number, the bits × 8 and the most bits × 8; how many of
    them are Cyrillic, how many East Asian, how many signs right before others or letters, how many right after others
    (as the bytes of UTF-8 are) or alone what leads them; whether the line is suspect.
    """
    lines = np.empty((len(codes) // 2 + 1, 10), np.int64)
    count = 0
    start = 0
    number = total = worst = cyrillic = wide = signs = close = lost = 0
    before = kinds[32]
    for place in range(len(codes) + 1):
        code = int(np.int64(codes[place])) if place < len(codes) else 10
        if code == 10:
            if number:
                odd = close > 0 and 2 * lost < number and _is_suspect(number, total, worst, cyrillic, wide, signs)
                suspect = 1 if odd else 0
                lines[count] = (start, place, number, total, worst, cyrillic, wide, signs, close, suspect)
                count += 1
            start = place + 1
            number = total = worst = cyrillic = wide = signs = close = lost = 0
            before = kinds[32]
            continue
        kind = kinds[code]
        if code >= 128:
            cost = int(np.int64(pairs[before, kind])) + int(np.int64(bits[code]))
            if kind == ORDINARY and place > start and code == codes[place - 1]:
                cost = min(cost, _REPEAT)
            number += 1
            total += cost
            lost += code == LOST
            cyrillic += 0x400 <= code < 0x530
            wide += 0x2E80 <= code < 0xD7B0 or code >= 0xF900
            close += (place > start and codes[place - 1] >= 128) or _leads(code)
            signs += _is_sign(code, kind) and place + 1 < len(codes) and _is_odd_after(code, codes[place + 1], kinds)
            if code < _LETTERS_TO:
                worst = max(worst, cost)
        before = kind
    return lines[:count]


def _bits(codes: np.ndarray) -> float:
    return sum_bits(codes, *tables()) / BITS_UNIT


def _told_bits(codes: np.ndarray) -> float:
    kinds, _, pairs = tables()
    return sum_bits(codes, kinds, told_bits(), pairs) / BITS_UNIT


def _text(codes: np.ndarray) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@cache
def _readable() -> tuple[tuple[str, ...], np.ndarray]:
    """Charsets of the ways, and from which each character can come, a bit each, [1,114,112] uint32."""
    reads = tuple(dict.fromkeys(way[0] for way in _WAYS))
    mask = np.zeros(TABLE_SIZE, np.uint32)
    for number, read in enumerate(reads):
        table, _ = encoder(read)
        mask |= np.where(table != 0xFFFF, np.uint32(1 << number), np.uint32(0))
    mask[LOST] = 0xFFFFFFFF
    return reads, mask


def _ways_for(codes: np.ndarray) -> list[tuple[str, str]]:
    """The ways back that can have made most of the characters, in order."""
    reads, mask = _readable()
    odd = mask[codes[codes >= 128]]
    if not len(odd):
        return []
    shares = ((odd[:, None] >> np.arange(len(reads), dtype=np.uint32)) & 1).mean(0)
    possible = {read for read, share in zip(reads, shares.tolist(), strict=True) if share >= 0.8}
    return [way for way in _WAYS if way[0] in possible]


def _gains(
    codes: np.ndarray, told: np.ndarray, gain: float, odd_bits: float, number: int, way: tuple[str, str] | None
) -> bool:
    """Whether a way back is worth taking; None is ftfy's."""
    if way is None:
        return gain > _FTFY_GAIN
    if gain < _LEAST_GAIN:
        return False
    if way[1] == UTF_8 and way[0] in SINGLE:
        # Two letters of a Cyrillic word may look like bytes of UTF-8.
        cyrillic = int(((codes >= 0x400) & (codes < 0x530)).sum())
        return len(codes) - len(told) >= 3 or cyrillic < 0.8 * number
    odd = told[told >= 128]
    if len(odd) == 0 or float(((class_table()[odd] & LETTER) != 0).mean()) < _LETTERS:
        return False
    read, written = way
    if read in _CYRILLIC and written in _CYRILLIC:
        before, after = letter_bits(codes).cyrillic, letter_bits(told).cyrillic
        if not after < before - _LETTER_GAIN:
            return False
    elif read in SINGLE and written in SINGLE and written not in _CYRILLIC and number < _ALIKE:
        return False
    return any(number >= least and gain >= share * odd_bits for least, share in _LIMITS)


def _odd_bits(codes: np.ndarray) -> tuple[float, int]:
    lines = _line_costs(codes, *tables())
    return float(lines[:, 3].sum()) / BITS_UNIT, int(lines[:, 2].sum())


def _best_way(codes: np.ndarray, ways: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The way back that makes the characters likeliest, or None."""
    before = _bits(codes)
    odd_bits, number = _odd_bits(codes)
    best, chosen = before, None
    for way in ways:
        told = reread(codes, *way)
        after = _told_bits(told)
        if after < best and _gains(codes, told, before - after, odd_bits, number, way):
            best, chosen = after, way
    return chosen


def _mend_line(codes: np.ndarray, known: tuple[str, str] | None, odd_bits: float, number: int) -> np.ndarray | None:
    """The line by its best way back, or None; a known way is taken where it helps at all.

    Args:
        codes: of the line.
        known: way back of the text, if it is wrong all over.
        odd_bits: bits of the line's characters that are not ASCII.
        number: how many these are.
    """
    before = _bits(codes)
    if known is not None:
        told = reread(codes, *known)
        if _told_bits(told) < before:
            return told
    strange = odd_bits > _STRANGE * number
    best, chosen = before, None
    for way in _ways_for(codes):
        if not (strange or way == known or (way[1] == UTF_8 and way[0] in SINGLE)):
            continue
        told = reread(codes, *way)
        after = _told_bits(told)
        if after < best and _gains(codes, told, before - after, odd_bits, number, way):
            best, chosen = after, told
    text = _text(codes)
    if is_bad(text):
        told = _codes(ftfy.fix_encoding(text, _FTFY))
        after = _told_bits(told)
        if after < best and _gains(codes, told, before - after, odd_bits, number, None):
            chosen = told
    return chosen


def _known_way(codes: np.ndarray, lines: np.ndarray) -> tuple[str, str] | None:
    """The way back for a text that is wrong all over, by its suspect lines."""
    odd = np.concatenate([codes[start : end + 1] for start, end, *_ in lines.tolist()])[:_PROBE]
    return _best_way(odd, _ways_for(odd))


def _round(codes: np.ndarray) -> np.ndarray | None:
    """One step back for every line that gains by it, or None where none does."""
    lines = _line_costs(codes, *tables())
    suspect = lines[:, 9] > 0
    if not suspect.any():
        return None
    whole = bool(lines[suspect, 2].sum() > 0.5 * lines[:, 2].sum())
    known = _known_way(codes, lines[suspect]) if whole else None
    whole = known is not None
    parts = []
    done = 0
    changed = False
    for (start, end, number, bits, *_), doubtful in zip(lines.tolist(), suspect.tolist(), strict=True):
        line = codes[start:end]
        told = None
        if doubtful:
            told = _mend_line(line, known, bits / BITS_UNIT, number)
        elif whole:
            # A text that is wrong all over has lines too short to show it.
            assert known is not None
            told = reread(line, *known)
            if LOST in told or _told_bits(told) >= _bits(line):
                told = None
        if told is None:
            continue
        parts += [codes[done:start], told]
        done = end
        changed = True
    return np.concatenate([*parts, codes[done:]]) if changed else None


def repair(text: str) -> str:
    """The text with wrong decodings undone; the text itself where there are none.

    Bytes that a wrong reading has lost are told from what is left where that is nearly certain; elsewhere a replacement
    character stands.
    """
    if text.isascii():
        return text
    text, codes = _undo(text)
    if features(text).has(REMOVABLE) and _is_latin(codes):
        read = _LATIN_C1.sub(_read_c1, text)
        # What the controls stood for may be a wrong decoding in its turn.
        text = text if read == text else _undo(read)[0]
    return text


def _undo(text: str) -> tuple[str, np.ndarray]:
    """A text with wrong decodings undone, one after the other, and its code points."""
    codes = analyse(text).codes
    for _ in range(_ROUNDS):
        told = _round(codes)
        if told is None:
            break
        text, codes = _text(told), told
    return text, codes


def _is_latin(codes: np.ndarray) -> bool:
    """Whether there are controls from 80 to 9F and no letters of other scripts than Latin."""
    controls = bool(((codes >= 0x80) & (codes < 0xA0)).any())
    return controls and not bool(((codes >= 0x370) & (codes < 0x1E00) | (codes >= 0x2E80) & (codes < 0xFE00)).any())


def _read_c1(match: re.Match[str]) -> str:
    return match[0].encode("latin-1").decode("cp1252", "replace").replace("\ufffd", match[0])


class Mojibake(Rule):
    """Wrong decodings are undone; a text that stays unreadable is left out."""

    name: ClassVar[str] = "mojibake"

    max_lost: Fraction = 0.1
    """Most of the characters that are not ASCII which may be lost for good, as replacement characters, in a text that
    goes on; single ones are removed."""

    def apply(self, document: Document) -> Change | Drop | None:
        """Repair, or drop what is lost."""
        text = document.text
        if document.is_code or text.isascii():
            return None
        told = repair(text)
        if "\ufffd" in told:
            lost = told.count("\ufffd")
            odd = sum(character > "\x7f" for character in told)
            if lost >= 4 and lost > self.max_lost * odd and lost > _LEAST_LOST * len(told):
                return Drop("lost", lost / odd)
        return Change(told) if told != text else None
