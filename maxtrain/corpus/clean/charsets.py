"""Characters back to the bytes they were read from, and the bytes read anew, with bytes that were lost on the way.

Python's codecs stop or replace at the first byte that is missing. Here a replacement character is a byte that is not
known: where the bytes around it leave few characters, and one of them is much likelier than the rest, that one is
taken.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from maxtrain.corpus.clean.plausible import BITS_UNIT, tables
from maxtrain.corpus.text.classes import TABLE_SIZE
from maxtrain.corpus.text.kernels import compiled

UTF_8 = "utf-8"
SINGLE = (
    "cp1252",
    "cp1251",
    "koi8-r",
    "cp866",
    "iso8859-5",
    "cp1250",
    "iso8859-2",
    "cp1253",
    "cp1255",
    "cp1256",
    "cp874",
)
"""Charsets of one byte a character that are known; cp1252 includes Latin-1's controls."""
DOUBLE = ("gb18030", "big5hkscs", "cp932", "euc_jp", "cp949")
LOST = 0xFFFD
_NONE = 0xFFFF


class Decoder(NamedTuple):
    """How bytes are read.

    Attributes:
        single: character of each byte, [256] uint32, 0xFFFD where it is none.
        double: character of each pair of bytes, [65536] uint32, or [1] for a charset of single bytes.
        lead: whether a byte begins a pair, [256] bool.
        utf_8: whether the bytes are UTF-8; the tables do not matter then.
    """

    single: np.ndarray
    double: np.ndarray
    lead: np.ndarray
    utf_8: bool


@cache
def decoder(charset: str) -> Decoder:
    """The decoder of a charset."""
    single = np.full(256, LOST, np.uint32)
    lead = np.zeros(256, np.bool_)
    if charset == UTF_8:
        return Decoder(single, np.zeros(1, np.uint32), lead, True)
    for byte in range(256):
        told = bytes([byte]).decode(charset, "replace")
        if len(told) == 1:
            single[byte] = ord(told)
    if charset == "cp1252":
        single[single == LOST] = np.flatnonzero(single == LOST)
    if charset not in DOUBLE:
        return Decoder(single, np.zeros(1, np.uint32), lead, False)
    double = np.full(65536, LOST, np.uint32)
    for first in range(0x81, 0xFF):
        for second in range(0x40, 0xFF):
            told = _strict(bytes([first, second]), charset)
            # Some pairs of Big5-HKSCS are two code points, a letter with a mark; nobody misses them.
            if len(told) == 1:
                double[first << 8 | second] = ord(told)
                lead[first] = True
    single[lead] = LOST
    # Pairs of the user's own area: a wrong reading, if anything.
    double[(double >= 0xE000) & (double < 0xF900)] = LOST
    return Decoder(single, double, lead, False)


def _strict(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset)
    except UnicodeDecodeError:
        return ""


@cache
def encoder(charset: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of each character, [1,114,112] uint16, 0xFFFF for none; which bytes a lost one can be, [256] bool."""
    tables_ = decoder(charset)
    table = np.full(TABLE_SIZE, _NONE, np.uint16)
    if charset in DOUBLE:
        known = np.flatnonzero(tables_.double != LOST)
        table[tables_.double[known][::-1]] = known[::-1]
    known = np.flatnonzero(tables_.single != LOST)
    table[tables_.single[known]] = known
    lost = np.zeros(256, np.bool_)
    if charset in DOUBLE:
        lost[0x80:] = True
    elif charset == "cp1252":
        # Python and the web's standard differ: 81, 8D, 8F, 90 and 9D are none, or controls.
        lost[[0x81, 0x8D, 0x8F, 0x90, 0x9D]] = True
        table[0x80:0xA0] = np.arange(0x80, 0xA0)
    else:
        lost[np.flatnonzero(tables_.single == LOST)] = True
    table[LOST] = _NONE
    return table, lost


@compiled
def _to_bytes(codes: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, -1 where lost and -2 where the character has none, and the character that each is of, int32."""
    data = np.empty(2 * len(codes), np.int32)
    source = np.empty(2 * len(codes), np.int32)
    count = 0
    for place in range(len(codes)):
        value = np.int32(table[codes[place]])
        if codes[place] == LOST:
            value = np.int32(-1)
        elif value == _NONE:
            value = np.int32(-2)
        if value >= 256:
            data[count] = value >> 8
            source[count] = place
            count += 1
            value = value & 255
        data[count] = value
        source[count] = place
        count += 1
    return data[:count], source[:count]


@compiled
def _can_be_lost(guess: int, after: int, lost: np.ndarray, lead: np.ndarray, double: np.ndarray) -> bool:
    """Whether the wrong reading could not read a byte, with the byte after it, which is below 0 if unknown."""
    if not lost[guess]:
        return False
    return len(double) == 1 or after < 0 or not lead[guess] or double[guess << 8 | after] == LOST


@compiled
def _is_alone(source: np.ndarray, place: int) -> bool:
    """Whether a byte is all that its character was."""
    return (place == 0 or source[place - 1] != source[place]) and (
        place + 1 == len(source) or source[place + 1] != source[place]
    )


@compiled
def _likeliest(
    candidates: np.ndarray, count: int, bits: np.ndarray, before: int, kinds: np.ndarray, pairs: np.ndarray
) -> int:
    """Of the first candidates the one that has two fifths of the probability or more; LOST if none has."""
    total = 0.0
    best = 0.0
    chosen = LOST
    for number in range(count):
        code = candidates[number]
        weight = 2.0 ** (-(np.float64(bits[code]) + np.float64(pairs[before, kinds[code]])) / BITS_UNIT)
        total += weight
        if weight > best:
            best = weight
            chosen = code
    return chosen if total > 0 and best >= 0.4 * total else LOST


@compiled
def _read_utf_8(
    data: np.ndarray,
    source: np.ndarray,
    codes: np.ndarray,
    lost: np.ndarray,
    read_lead: np.ndarray,
    read_double: np.ndarray,
    kinds: np.ndarray,
    bits: np.ndarray,
    pairs: np.ndarray,
) -> np.ndarray:
    """Code points of bytes; what is no UTF-8 keeps its character, or is LOST where that had other bytes too."""
    out = np.empty(len(data) + 1, np.uint32)
    candidates = np.empty(8192, np.int64)
    count = 0
    place = 0
    before = kinds[32]
    while place < len(data):
        byte = data[place]
        size = 0
        if byte == -1:
            # The lead of a sequence, if two continuations or one follow: three bytes are the commonest.
            run = 0
            while run < 3 and place + 1 + run < len(data) and 0x80 <= data[place + 1 + run] < 0xC0:
                run += 1
            size = run + 1 if run else 0
        elif 0xC2 <= byte < 0xE0:
            size = 2
        elif 0xE0 <= byte < 0xF0:
            size = 3
        elif 0xF0 <= byte < 0xF5:
            size = 4
        unknown = 1 if byte == -1 else 0
        good = size > 1 and place + size <= len(data)
        if good:
            for offset in range(1, size):
                value = data[place + offset]
                if value == -1:
                    unknown += 1
                elif not 0x80 <= value < 0xC0:
                    good = False
        if good and (unknown > 2 or (unknown == 2 and size < 3)):
            good = False
        if good:
            found = 0
            missing = np.full(2, -1, np.int64)
            known = 0
            for offset in range(size):
                if data[place + offset] == -1:
                    missing[known] = offset
                    known += 1
            lead_first = 0xC2 if size == 2 else (0xE0 if size == 3 else 0xF0)
            lead_last = 0xE0 if size == 2 else (0xF0 if size == 3 else 0xF5)
            first, last = (lead_first, lead_last) if missing[0] == 0 else (0x80, 0xC0)
            if unknown == 0:
                first, last = 0, 1
            for guess in range(first, last):
                for other in range(0x80, 0xC0 if unknown == 2 else 0x81):
                    if unknown:
                        after = -1
                        if unknown == 2 and missing[1] == missing[0] + 1:
                            after = other
                        elif place + missing[0] + 1 < len(data):
                            after = data[place + missing[0] + 1]
                        if not _can_be_lost(guess, after, lost, read_lead, read_double):
                            continue
                    if unknown == 2:
                        after = data[place + missing[1] + 1] if place + missing[1] + 1 < len(data) else -1
                        if not _can_be_lost(other, after, lost, read_lead, read_double):
                            continue
                    value = 0
                    for offset in range(size):
                        part = np.int64(data[place + offset])
                        if offset == missing[0]:
                            part = np.int64(guess)
                        elif offset == missing[1]:
                            part = np.int64(other)
                        if offset == 0:
                            value = part & (0x1F if size == 2 else (0x0F if size == 3 else 0x07))
                        else:
                            value = value << 6 | (part & 0x3F)
                    short = value < (0x80 if size == 2 else (0x800 if size == 3 else 0x10000))
                    if not short and value < 0x110000 and not 0xD800 <= value < 0xE000:
                        candidates[found] = value
                        found += 1
            if found == 0:
                good = False
            else:
                code = candidates[0] if unknown == 0 else _likeliest(candidates, found, bits, before, kinds, pairs)
                out[count] = code
        if good:
            before = kinds[out[count]]
            count += 1
            place += size
            continue
        out[count] = codes[source[place]] if byte == -2 or _is_alone(source, place) else LOST
        before = kinds[out[count]]
        count += 1
        place += 1
    return out[:count].copy()


@compiled
def _read_table(
    data: np.ndarray,
    source: np.ndarray,
    codes: np.ndarray,
    lost: np.ndarray,
    read_lead: np.ndarray,
    read_double: np.ndarray,
    single: np.ndarray,
    double: np.ndarray,
    lead: np.ndarray,
    kinds: np.ndarray,
    bits: np.ndarray,
    pairs: np.ndarray,
) -> np.ndarray:
    """Code points of bytes by tables of one and two bytes; what has no character is LOST, what had no bytes stays."""
    out = np.empty(len(data) + 1, np.uint32)
    candidates = np.empty(256, np.int64)
    wide = len(double) > 1
    count = 0
    place = 0
    before = kinds[32]
    while place < len(data):
        byte = data[place]
        if byte == -2:
            out[count] = codes[source[place]]
            place += 1
        elif (
            wide
            and (byte == -1 or lead[byte])
            and place + 1 < len(data)
            and data[place + 1] != -2
            and (byte != -1 or data[place + 1] != -1)
            and (data[place + 1] == -1 or data[place + 1] >= 0x40)
        ):
            second = data[place + 1]
            code = LOST
            if byte >= 0 and second >= 0:
                code = int(np.int64(double[byte << 8 | second]))
            else:
                found = 0
                after = second
                if byte >= 0:
                    after = data[place + 2] if place + 2 < len(data) else -1
                for guess in range(0x80, 256):
                    if not _can_be_lost(guess, after, lost, read_lead, read_double):
                        continue
                    pair = guess << 8 | second if byte == -1 else byte << 8 | guess
                    if double[pair] != LOST:
                        candidates[found] = double[pair]
                        found += 1
                code = _likeliest(candidates, found, bits, before, kinds, pairs)
            if code == LOST and byte >= 0 and second >= 0 and second < 0x80:
                # The lead is broken, or a character of its own; the second byte may be a letter.
                out[count] = codes[source[place]] if _is_alone(source, place) else LOST
                place += 1
            else:
                out[count] = code
                place += 2
        elif byte == -1:
            out[count] = LOST
            place += 1
        else:
            out[count] = single[byte]
            if out[count] == LOST and _is_alone(source, place):
                out[count] = codes[source[place]]
            place += 1
        before = kinds[out[count]]
        count += 1
    return out[:count].copy()


def reread(codes: np.ndarray, read: str, written: str) -> np.ndarray:
    """The code points, uint32, that come out when what was read in one charset is read in the other.

    Args:
        codes: code points as they were read, uint32.
        read: charset that they were read in.
        written: charset that the bytes are in, or utf-8.
    """
    table, lost = encoder(read)
    data, source = _to_bytes(codes, table)
    origin, target = decoder(read), decoder(written)
    if target.utf_8:
        return _read_utf_8(data, source, codes, lost, origin.lead, origin.double, *tables())
    return _read_table(
        data, source, codes, lost, origin.lead, origin.double, target.single, target.double, target.lead, *tables()
    )
