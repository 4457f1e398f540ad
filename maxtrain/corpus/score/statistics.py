"""Numbers about a text that the heuristics judge by, counted in compiled loops over the shared analysis."""

from functools import cached_property, lru_cache

import numpy as np

from maxtrain.corpus.text import Analysis, analyse
from maxtrain.corpus.text.classes import (
    CONTROL,
    DIGIT,
    HAN,
    LETTER,
    MARK,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    UNSPACED,
    UPPER,
)
from maxtrain.corpus.text.kernels import compiled, mix

WINDOW = 200
"""Units of a window in which distinct units are counted: shares over a whole text would depend on its length."""
_LOOP_GRAM = 4
_ODD = np.zeros(128, np.bool_)
_ODD[[ord(character) for character in "#$%&*+<=>@\\^_`{|}~"]] = True


_COUNTED = np.array([LETTER | MARK, DIGIT, SPACE, PUNCTUATION, SYMBOL, CONTROL, UPPER, UNSPACED, HAN], np.uint16)
"""Classes that are counted; after them come the odd ASCII symbols."""


@compiled
def _count_classes(codes: np.ndarray, classes: np.ndarray, counted: np.ndarray, odd: np.ndarray) -> np.ndarray:
    """Characters of each counted class and, last, odd ASCII symbols, [classes + 1] int64."""
    counts = np.zeros(len(counted) + 1, np.int64)
    for place in range(len(codes)):
        flags = classes[place]
        for index in range(len(counted)):
            if flags & counted[index]:
                counts[index] += 1
        if codes[place] < 128 and odd[codes[place]]:
            counts[len(counted)] += 1
    return counts


@compiled
def _distinct_share(hashes: np.ndarray, window: int) -> float:
    """Distinct units per unit, the mean over windows; a shorter text is one window."""
    if len(hashes) == 0:
        return 1.0
    total = 0.0
    count = 0
    for start in range(0, max(len(hashes) - window, 0) + 1, window):
        part = np.sort(hashes[start : start + window])
        distinct = 1
        for place in range(1, len(part)):
            if part[place] != part[place - 1]:
                distinct += 1
        total += distinct / len(part)
        count += 1
    return total / count


@compiled
def _loop_units(hashes: np.ndarray, gram: int) -> tuple[int, int]:
    """Units that lie in loops, and repeats of the longest one.

    A loop is a passage said three times or more without a break: the unit is the one a fixed distance before, over a
    run of at least twice the distance. The distance is to the last place of the same n-gram, so one pass finds all.
    """
    size = 1
    while size < 2 * len(hashes):
        size *= 2
    keys = np.zeros(size, np.uint64)
    places = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    covered = 0
    most = 0
    period = 0
    run = 0
    for place in range(len(hashes) - gram + 1):
        value = np.uint64(0)
        for offset in range(gram):
            value = mix(value ^ hashes[place + offset])
        slot = value & mask
        while places[slot] >= 0 and keys[slot] != value:
            slot = (slot + np.uint64(1)) & mask
        distance = place - places[slot] if places[slot] >= 0 else 0
        keys[slot] = value
        places[slot] = place
        if distance > 0 and distance == period:
            run += 1
        else:
            if period > 0 and run >= 2 * period and run >= 8:
                covered += run + period
                most = max(most, (run + period) // period)
            period = distance
            run = 1 if distance > 0 else 0
    if period > 0 and run >= 2 * period and run >= 8:
        covered += run + period
        most = max(most, (run + period) // period)
    return min(covered, len(hashes)), most


@compiled
def _duplicate_share(hashes: np.ndarray, sizes: np.ndarray, gram: int) -> float:
    """Share of the characters of all units that lie in an n-gram seen before (Rae et al. 2021, Gopher, table A1)."""
    count = len(hashes) - gram + 1
    if count <= 0:
        return 0.0
    size = 1
    while size < 2 * count:
        size *= 2
    keys = np.zeros(size, np.uint64)
    used = np.zeros(size, np.bool_)
    mask = np.uint64(size - 1)
    total = 0
    for place in range(len(hashes)):
        total += sizes[place]
    repeated = 0
    marked = 0
    for place in range(count):
        value = np.uint64(1)
        for offset in range(gram):
            value = mix(value ^ hashes[place + offset])
        slot = value & mask
        while used[slot] and keys[slot] != value:
            slot = (slot + np.uint64(1)) & mask
        if used[slot]:
            for unit in range(max(marked, place), place + gram):
                repeated += sizes[unit]
            marked = place + gram
        used[slot] = True
        keys[slot] = value
    return repeated / total if total else 0.0


@compiled
def _line_hashes(codes: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Hash of each line, [lines] uint64."""
    hashes = np.empty(len(bounds), np.uint64)
    for line in range(len(bounds)):
        value = np.uint64(0xCBF29CE484222325)
        for place in range(bounds[line, 0], bounds[line, 1]):
            value = (value ^ np.uint64(codes[place])) * np.uint64(0x100000001B3)
        hashes[line] = mix(value)
    return hashes


@compiled
def _repeated_lines(hashes: np.ndarray, bounds: np.ndarray) -> tuple[float, float]:
    """Share of lines, and of their characters, that were seen before."""
    if len(hashes) == 0:
        return 0.0, 0.0
    order = np.argsort(hashes)
    lines = 0
    characters = 0
    total = 0
    for place in range(len(order)):
        size = bounds[order[place], 1] - bounds[order[place], 0]
        total += size
        if place and hashes[order[place]] == hashes[order[place - 1]]:
            lines += 1
            characters += size
    return lines / len(hashes), characters / total


@compiled
def _longest_solid(classes: np.ndarray) -> int:
    """Longest run of ASCII-like characters without white space, scripts without spaces left out."""
    longest = 0
    run = 0
    for flags in classes:
        if flags & (SPACE | UNSPACED):
            run = 0
        else:
            run += 1
            longest = max(longest, run)
    return longest


class Statistics:
    """Counts of a text, each made when first asked for.

    Attributes:
        analysis: the text's code points, units and lines.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    @cached_property
    def _counts(self) -> np.ndarray:
        return _count_classes(self.analysis.codes, self.analysis.classes, _COUNTED, _ODD)

    @property
    def characters(self) -> int:
        """Characters that are not white space."""
        return len(self.analysis.codes) - int(self._counts[2])

    @property
    def units(self) -> int:
        """Words, and single characters of scripts without spaces."""
        return len(self.analysis.unit_hashes)

    def _share(self, index: int) -> float:
        return float(self._counts[index]) / self.characters if self.characters else 0.0

    @property
    def letters(self) -> float:
        """Share of letters and marks in the characters that are not white space."""
        return self._share(0)

    @property
    def digits(self) -> float:
        """Share of digits."""
        return self._share(1)

    @property
    def symbols(self) -> float:
        """Share of punctuation and symbols."""
        return self._share(3) + self._share(4)

    @property
    def odd_symbols(self) -> float:
        """Share of ASCII symbols that prose has few of."""
        return self._share(-1)

    @property
    def controls(self) -> float:
        """Share of controls, private use and unassigned code points."""
        return self._share(5)

    @property
    def unspaced(self) -> float:
        """Share of letters of scripts without spaces."""
        return self._share(7)

    @property
    def han(self) -> float:
        """Share of Han characters."""
        return self._share(8)

    @property
    def upper(self) -> float:
        """Capitals among letters."""
        return float(self._counts[6]) / int(self._counts[0]) if self._counts[0] else 0.0

    @cached_property
    def distinct(self) -> float:
        """Distinct units in a window of 200, as a share, the mean over windows."""
        return float(_distinct_share(self.analysis.unit_hashes, WINDOW))

    @cached_property
    def _loops(self) -> tuple[int, int]:
        return _loop_units(self.analysis.unit_hashes, _LOOP_GRAM)

    @property
    def loops(self) -> float:
        """Share of units in passages said three times or more without a break."""
        return self._loops[0] / self.units if self.units else 0.0

    @property
    def loop_units(self) -> int:
        """Units in such passages."""
        return self._loops[0]

    @cached_property
    def duplicates(self) -> float:
        """Share of the characters of units in 10-grams seen before (20-grams of single characters)."""
        sizes = self.analysis.unit_ends - self.analysis.unit_starts
        gram = 20 if self.unspaced > 0.5 else 10
        return float(_duplicate_share(self.analysis.unit_hashes, sizes, gram))

    @property
    def num_lines(self) -> int:
        """Lines that are not blank."""
        return len(self.analysis.lines)

    @cached_property
    def repeated_lines(self) -> tuple[float, float]:
        """Share of lines, and of their characters, that were seen before."""
        return _repeated_lines(_line_hashes(self.analysis.codes, self.analysis.lines), self.analysis.lines)

    @cached_property
    def longest_solid(self) -> int:
        """Longest run of characters without white space, scripts without spaces left out."""
        return int(_longest_solid(self.analysis.classes))

    @cached_property
    def mean_word(self) -> float:
        """Characters a unit."""
        sizes = self.analysis.unit_ends - self.analysis.unit_starts
        return float(sizes.mean()) if len(sizes) else 0.0

    def line_texts(self, most: int = 2000) -> list[str]:
        """The first lines as texts, white space at their ends left out."""
        return [self.analysis.text[start:stop] for start, stop in self.analysis.lines[:most].tolist()]


@lru_cache(maxsize=2)
def statistics(text: str) -> Statistics:
    """The statistics of a text; rules that judge the same text share them."""
    return Statistics(analyse(text))
