"""How likely the characters of a text follow each other, in bits: what tells a wrong decoding from the right one.

A text costs, for each character, the bits of its class after the class before it and the bits of the character within
its class. Every script is a class (with lower and upper case apart), so that two letters of different scripts in a word
cost much, and a rare character costs more than a common one. Two decodings of the same bytes compare by their sums.
`tools/data/make_character_model.py` made the tables, from the Universal Declaration of Human Rights and this
repository's sample corpus.
"""

from functools import cache
from importlib.resources import files

import numpy as np

from maxtrain.corpus.text.classes import CONTROL, LETTER, MARK, TABLE_SIZE, UPPER, class_table
from maxtrain.corpus.text.kernels import compiled

(
    ASCII_LOWER,
    ASCII_UPPER,
    DIGIT,
    SPACE,
    ASCII_PUNCTUATION,
    LATIN_LOWER,
    LATIN_UPPER,
    LATIN_SYMBOL,
    CONTROLS,
    GREEK_LOWER,
    GREEK_UPPER,
    CYRILLIC_LOWER,
    CYRILLIC_UPPER,
    HEBREW,
    ARABIC,
    INDIC,
    THAI,
    HANGUL,
    HIRAGANA,
    KATAKANA,
    HAN,
    CJK_PUNCTUATION,
    PUNCTUATION,
    SYMBOL,
    COMPATIBILITY,
    COMBINING,
    OTHER,
    PHONETIC,
    VIETNAMESE,
) = range(29)
ORDINARY = 29
"""Signs that may stand anywhere: quotes, dashes, currencies, boxes."""
NUM_CLASSES = 30
BITS_UNIT = 8
"""The tables hold bits × 8."""
_ORDINARY = "§¶°©®«»·±×÷€£¢¥•†‡…–—―‘’“”„‚‹›™→←↑↓⇒∞≤≥≠≈√∑π−■□●○◆★☆▲△▼✓✔❤№"
_ORDINARY_BITS = 5
_CAPITALS_BITS = 3
_BRACKET_BITS = 6
_VIETNAMESE_BITS = 5
_REPEAT_BITS = True
_BASIC_BITS = 12
"""Bits of a character that the model has not seen but a charset's first level has."""
_RANGES = (
    (0x0250, 0x02FF, PHONETIC),
    (0x0300, 0x036F, COMBINING),
    (0x0590, 0x05FF, HEBREW),
    (0x0600, 0x077F, ARABIC),
    (0x0900, 0x0DFF, INDIC),
    (0x0E00, 0x0EFF, THAI),
    (0x1000, 0x109F, THAI),
    (0x1780, 0x17FF, THAI),
    (0x2010, 0x2027, PUNCTUATION),
    (0x2030, 0x205E, PUNCTUATION),
    (0x20A0, 0x20BF, PUNCTUATION),
    (0x2100, 0x2BFF, SYMBOL),
    (0x2E80, 0x2FDF, COMPATIBILITY),
    (0x3000, 0x303F, CJK_PUNCTUATION),
    (0x3040, 0x309F, HIRAGANA),
    (0x30A0, 0x30FF, KATAKANA),
    (0x3100, 0x33FF, COMPATIBILITY),
    (0x3400, 0x9FFF, HAN),
    (0xAC00, 0xD7A3, HANGUL),
    (0xF900, 0xFAFF, COMPATIBILITY),
    (0xFE30, 0xFE4F, COMPATIBILITY),
    (0xFF01, 0xFF5E, CJK_PUNCTUATION),
    (0xFF5F, 0xFFEF, COMPATIBILITY),
    (0x1F000, 0x1FAFF, SYMBOL),
    (0x20000, 0x3FFFD, HAN),
)


@cache
def kind_table() -> np.ndarray:
    """Class of every code point, [1,114,112] uint8."""
    flags = class_table()
    table = np.full(TABLE_SIZE, OTHER, np.uint8)
    upper = (flags & UPPER) != 0
    for first, last, lower_kind, upper_kind in (
        (0xC0, 0x24F, LATIN_LOWER, LATIN_UPPER),
        (0x1E00, 0x1EFF, LATIN_LOWER, LATIN_UPPER),
        (0x370, 0x3FF, GREEK_LOWER, GREEK_UPPER),
        (0x1F00, 0x1FFF, GREEK_LOWER, GREEK_UPPER),
        (0x400, 0x52F, CYRILLIC_LOWER, CYRILLIC_UPPER),
    ):
        part = slice(first, last + 1)
        table[part] = np.where(upper[part], upper_kind, lower_kind)
    table[0x1EA0:0x1EFA] = VIETNAMESE
    for first, last, kind in _RANGES:
        table[first : last + 1] = kind
    table[(flags & MARK) != 0] = np.where(table[(flags & MARK) != 0] == OTHER, COMBINING, table[(flags & MARK) != 0])
    table[(flags & CONTROL) != 0] = CONTROLS
    table[0xFFFD] = CONTROLS
    table[0xD7], table[0xF7] = LATIN_SYMBOL, LATIN_SYMBOL
    table[0xA0:0xC0] = LATIN_SYMBOL
    table[:128] = ASCII_PUNCTUATION
    table[:32] = CONTROLS
    table[127:160] = CONTROLS
    for character in "\t\n\r ":
        table[ord(character)] = SPACE
    table[[0xA0, 0x3000, 0x2028, 0x2029, *range(0x2000, 0x200B), 0x202F]] = SPACE
    # Formats that clean text has: the joiners, marks of direction, soft hyphen, byte order mark.
    table[[0xAD, *range(0x200B, 0x2010), 0xFEFF, 0x2060]] = PUNCTUATION
    table[[ord(character) for character in _ORDINARY]] = ORDINARY
    table[0x2500:0x25A0] = ORDINARY
    table[0x30:0x3A] = DIGIT
    table[0x41:0x5B] = ASCII_UPPER
    table[0x61:0x7B] = ASCII_LOWER
    assert table.max() < NUM_CLASSES
    assert (flags[0x4E00] & LETTER) != 0
    return table


@compiled
def count_kinds(codes: np.ndarray, kinds: np.ndarray, pairs: np.ndarray, characters: np.ndarray) -> None:
    """Add a text's pairs of classes [n, n] and characters [1,114,112] to int64 counts; a text begins after a space."""
    before = SPACE
    for code in codes:
        kind = kinds[code]
        pairs[before, kind] += 1
        characters[code] += 1
        before = kind


@cache
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class of each code point, its bits × 8 within the class, [1,114,112] uint8 each, and pairs' bits × 8 [n, n]."""
    with files("maxtrain.corpus.clean").joinpath("data/characters.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        unseen, codes, known, pairs = (stored[name] for name in ("unseen", "codes", "bits", "pairs"))
    kinds = kind_table()
    bits = unseen[kinds]
    bits[basic_table()] = _BASIC_BITS * BITS_UNIT
    # A rare syllable or kanji is no likelier for standing in a language with few characters in the model.
    floor = np.zeros(NUM_CLASSES, np.uint8)
    floor[[HAN, HANGUL]] = (_BASIC_BITS + 3) * BITS_UNIT
    bits = np.where(basic_table(), bits, np.maximum(bits, floor[kinds]))
    bits[codes] = known
    bits[kinds == ORDINARY] = np.minimum(bits[kinds == ORDINARY], _ORDINARY_BITS * BITS_UNIT)
    pairs = pairs.copy()
    pairs[ORDINARY, :] = np.minimum(pairs[ORDINARY, :], _ORDINARY_BITS * BITS_UNIT)
    pairs[:, ORDINARY] = np.minimum(pairs[:, ORDINARY], _ORDINARY_BITS * BITS_UNIT)
    # Spaces that do not break, and formats, are as ordinary; Vietnamese is one language of many in the model.
    formats = np.flatnonzero(((kinds == SPACE) | (kinds == PUNCTUATION)) & (np.arange(TABLE_SIZE) > 127))
    bits[formats] = np.minimum(bits[formats], _ORDINARY_BITS * BITS_UNIT)
    bits[kinds == VIETNAMESE] = np.minimum(bits[kinds == VIETNAMESE], _VIETNAMESE_BITS * BITS_UNIT)
    pairs[:, VIETNAMESE] = np.minimum(pairs[:, VIETNAMESE], _VIETNAMESE_BITS * BITS_UNIT)
    pairs[VIETNAMESE, :] = np.minimum(pairs[VIETNAMESE, :], (_VIETNAMESE_BITS + 2) * BITS_UNIT)
    # East Asian brackets stand around words of every script.
    pairs[CJK_PUNCTUATION, :] = np.minimum(pairs[CJK_PUNCTUATION, :], _BRACKET_BITS * BITS_UNIT)
    pairs[:, CJK_PUNCTUATION] = np.minimum(pairs[:, CJK_PUNCTUATION], _BRACKET_BITS * BITS_UNIT)
    brackets = [ord(character) for character in "「」『』【】《》〈〉（）、。，！？：；～"]
    bits[brackets] = np.minimum(bits[brackets], _BRACKET_BITS * BITS_UNIT)
    # Words in capitals are few in the declaration.
    for first in (ASCII_UPPER, LATIN_UPPER, GREEK_UPPER, CYRILLIC_UPPER):
        for second in (ASCII_UPPER, LATIN_UPPER) if first in (ASCII_UPPER, LATIN_UPPER) else (first,):
            pairs[first, second] = min(pairs[first, second], (_CAPITALS_BITS + 2 * (second == LATIN_UPPER)) * BITS_UNIT)
    return kinds, bits, pairs


@cache
def told_bits() -> np.ndarray:
    """Bits × 8 of each character where it is told anew, [1,114,112] uint8.

    Boxes and stars are ordinary where they stand, and no likely outcome of another reading: old charsets put them
    where others have letters.
    """
    bits = tables()[1].copy()
    bits[0x2190:0x2800] = np.maximum(bits[0x2190:0x2800], 14 * BITS_UNIT)
    bits[0xFFFD] = 20 * BITS_UNIT
    return bits


@cache
def basic_table() -> np.ndarray:
    """Whether a character is of a basic set, [1,114,112] bool.

    Basic are the first levels of GB 2312, Big5 and JIS X 0208 and the syllables of KS X 1001.
    """
    table = np.zeros(TABLE_SIZE, np.bool_)
    rows = {"gb2312": range(0xB0, 0xD8), "euc_jp": range(0xB0, 0xD0), "euc_kr": range(0xB0, 0xC9)}
    for encoding, leads in rows.items():
        data = bytes(byte for lead in leads for trail in range(0xA1, 0xFF) for byte in (lead, trail))
        table[[ord(character) for character in data.decode(encoding, "ignore")]] = True
    trails = (*range(0x40, 0x7F), *range(0xA1, 0xFF))
    data = bytes(byte for lead in range(0xA4, 0xC7) for trail in trails for byte in (lead, trail))
    table[[ord(character) for character in data.decode("big5", "ignore")]] = True
    return table


@compiled
def sum_bits(codes: np.ndarray, kinds: np.ndarray, bits: np.ndarray, pairs: np.ndarray) -> int:
    """Bits × 8 of a text, [characters] uint32; a sign that repeats the one before costs little."""
    total = 0
    before = kinds[32]
    last = np.uint32(0)
    for code in codes:
        kind = kinds[code]
        cost = int(np.int64(pairs[before, kind])) + int(np.int64(bits[code]))
        if code == last and kind == ORDINARY:
            cost = min(cost, _REPEAT_BITS * BITS_UNIT)
        total += cost
        before = kind
        last = code
    return total
