"""One pass over a text that finds where personal data could stand; everything dearer looks only there.

All boundaries are told by ASCII letters and digits, so a number right beside Chinese characters is found, and one
inside an identifier is not.
"""

from functools import cache

import numpy as np

from maxtrain.corpus.text.kernels import compiled

EMAIL = 0
"""Local part, @ and a domain with a dot in it."""
NUMBER = 1
"""Seven or more digits with at most two separators between them."""
DOTTED = 2
"""Four numbers of up to three digits with dots between."""
COLONS = 3
"""Hexadecimal digits with two or more colons, or five dashes."""
ACCOUNT = 4
"""Two letters, two digits, then eleven or more letters and digits, perhaps in groups."""
TOKEN = 5
"""A word of sixteen and more characters with both a letter and a digit."""
PLATE = 6
"""A Chinese character and a capital letter."""
NUM_KINDS = 7

_DIGIT = 1
_LETTER = 2
_HEX = 4
_TOKEN = 8
_LOCAL = 16
_GAP = 32
_ALNUM = _DIGIT | _LETTER
_LATIN_END = 0x250
"""Letters below may stand in an address; beyond begin scripts that often touch it."""


@cache
def flag_table() -> np.ndarray:
    """Flags of the code points below 128, [128] uint8."""
    table = np.zeros(128, np.uint8)
    for flag, characters in (
        (_DIGIT, "0123456789"),
        (_LETTER, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_HEX, "0123456789abcdefABCDEF"),
        (_TOKEN, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/.~"),
        (_LOCAL, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.%'"),
        (_GAP, " -.()/"),
    ):
        for character in characters:
            table[ord(character)] |= flag
    return table


@compiled
def _email(codes: np.ndarray, at: int, flags: np.ndarray) -> tuple[int, int]:
    """Bounds of the address around an @; (0, 0) where none is."""
    first = at
    while first > 0 and at - first < 64:
        code = codes[first - 1]
        if not (code < 128 and flags[code] & _LOCAL) and not (0xC0 <= code < _LATIN_END and code != 0xD7):
            break
        first -= 1
    while first < at and codes[first] < 128 and not flags[codes[first]] & _ALNUM and codes[first] != 95:
        first += 1
    last = at + 1
    dot = 0
    # A first label in another script, as in name@邮箱.example.
    while last < len(codes) and last - at < 32 and 0x250 <= codes[last] < 0xFF00 and not 0x2000 <= codes[last] < 0x3040:
        last += 1
    if last > at + 1 and (last >= len(codes) or codes[last] != 46):
        return 0, 0
    while last < len(codes) and last - at < 254:
        code = codes[last]
        if code == 46:
            if last + 1 < len(codes) and codes[last + 1] == 46:
                break
            dot = last
        elif code == 45 or (code < 128 and flags[code] & _ALNUM) or (0xDF <= code < _LATIN_END and code != 0xF7):
            pass
        else:
            break
        last += 1
    while last > at and (codes[last - 1] == 46 or codes[last - 1] == 45):
        last -= 1
    if dot >= last:
        dot = 0
        for place in range(at + 1, last):
            if codes[place] == 46:
                dot = place
    if first >= at or codes[at - 1] == 46 or dot <= at + 1 or last - dot < 3:
        return 0, 0
    return first, last


@compiled
def _number(codes: np.ndarray, start: int, flags: np.ndarray) -> tuple[int, int]:
    """End of the digits that begin at `start` with their separators, and how many digits they are."""
    digits = 0
    gaps = 0
    end = start + 1
    place = start
    while place < len(codes):
        code = codes[place]
        if code < 128 and flags[code] & _DIGIT:
            digits += 1
            gaps = 0
            end = place + 1
        elif (code < 128 and flags[code] & _GAP) or code == 0xA0 or code == 0x2011 or code == 0xFF09 or code == 0x2009:
            gaps += 1
            if gaps > 2:
                break
        elif place > start:
            break
        place += 1
    return end, digits


@compiled
def _dotted(codes: np.ndarray, start: int, flags: np.ndarray) -> int:
    """End of four numbers with dots between, or 0."""
    place = start
    for group in range(4):
        length = 0
        while place < len(codes) and codes[place] < 128 and flags[codes[place]] & _DIGIT:
            length += 1
            place += 1
        if length == 0 or length > 3:
            return 0
        if group < 3:
            if place >= len(codes) or codes[place] != 46:
                return 0
            place += 1
    if place < len(codes) and codes[place] < 128:
        if flags[codes[place]] & _LETTER or codes[place] == 95:
            return 0
        if (
            codes[place] == 46
            and place + 1 < len(codes)
            and codes[place + 1] < 128
            and flags[codes[place + 1]] & _DIGIT
        ):
            return 0
    return place


@compiled
def _colons(codes: np.ndarray, start: int, flags: np.ndarray) -> tuple[int, int, int]:
    """End of the hexadecimal digits, colons and dashes from `start`; how many colons; how many dashes."""
    place = start
    colons = 0
    dashes = 0
    while place < len(codes) and codes[place] < 128:
        if codes[place] == 58:
            colons += 1
        elif codes[place] == 45:
            dashes += 1
        elif not flags[codes[place]] & _HEX:
            break
        place += 1
    return place, colons, dashes


@compiled
def _account(codes: np.ndarray, start: int, flags: np.ndarray) -> int:
    """End of up to 34 letters and digits in groups, where 15 and more are; else 0."""
    place = start
    count = 0
    while place < len(codes) and count < 34 and codes[place] < 128:
        if flags[codes[place]] & _ALNUM:
            count += 1
        elif not (codes[place] == 32 or codes[place] == 45) or not flags[codes[place - 1]] & _ALNUM:
            break
        place += 1
    while place < len(codes) and codes[place] < 128 and flags[codes[place]] & _ALNUM and count < 40:
        place += 1
        count += 1
    return place if count >= 15 else 0


@compiled
def _put(found: np.ndarray, count: int, kind: int, start: int, end: int, digits: int) -> int:
    found[count, 0] = kind
    found[count, 1] = start
    found[count, 2] = end
    found[count, 3] = digits
    return count + 1


@compiled
def _scan(codes: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, bool]:
    wide = False
    previous = np.uint8(0)
    found = np.empty((64, 4), np.int64)
    count = 0
    number_end = 0
    colons_end = 0
    token_start = -1
    seen = np.uint8(0)
    for place in range(len(codes) + 1):
        code = codes[place] if place < len(codes) else np.uint32(32)
        before_flag = previous
        flag = flags[code] if code < 128 else np.uint8(0)
        previous = flag
        if flag & _TOKEN:
            if token_start < 0:
                token_start = place
                seen = flag
            seen |= flag
        elif token_start >= 0:
            if place - token_start >= 16 and seen & _DIGIT and seen & _LETTER:
                count = _put(found, count, TOKEN, token_start, place, 0)
            token_start = -1
        if flag & _LETTER and before_flag & _ALNUM:
            continue
        if not flag & ~_GAP and code != 58 and code != 43 and code != 40 and code != 64:
            wide = wide or bool(0xFF10 <= code <= 0xFF19 or code == 0xFF20)
            continue
        if count + 7 > len(found):
            grown = np.empty((2 * len(found), 4), np.int64)
            grown[:count] = found[:count]
            found = grown
        if code == 64:
            first, last = _email(codes, place, flags)
            if last:
                count = _put(found, count, EMAIL, first, last, 0)
            continue
        before = codes[place - 1] if place else np.uint32(32)
        inside = before_flag & _ALNUM or before == 95
        if (flag & _DIGIT or code == 43 or code == 40) and place >= number_end:
            end, digits = _number(codes, place, flags)
            number_end = end
            if digits >= 7 and not (inside and digits < 8):
                count = _put(found, count, NUMBER, place, end, digits)
        if inside:
            continue
        if 0x4E00 <= before < 0xA000 and 65 <= code <= 90:
            count = _put(found, count, PLATE, place - 1, place + 1, 0)
        if flag & _DIGIT and before != 46:
            end = _dotted(codes, place, flags)
            if end:
                count = _put(found, count, DOTTED, place, end, 0)
        if (flag & _HEX or code == 58) and place >= colons_end:
            end, colons, dashes = _colons(codes, place, flags)
            colons_end = end
            if colons >= 2 or dashes == 5:
                count = _put(found, count, COLONS, place, end, 0)
        if flag & _LETTER and place + 14 < len(codes):
            second, third, fourth = codes[place + 1], codes[place + 2], codes[place + 3]
            if (
                second < 128
                and third < 128
                and fourth < 128
                and flags[second] & _LETTER
                and flags[third] & _DIGIT
                and flags[fourth] & _DIGIT
            ):
                end = _account(codes, place, flags)
                if end:
                    count = _put(found, count, ACCOUNT, place, end, 0)
    return found[:count].copy(), wide


def find_candidates(codes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Where something could stand.

    Args:
        codes: code points, [characters] uint32.

    Returns:
        Candidates, [n, 4] int64: kind, start, end, digits of a number; and whether the text has digits of full width,
        which were not looked at.
    """
    return _scan(codes, flag_table())
