"""One look at a text that all rules share: code points, classes, units, lines."""

from functools import cached_property, lru_cache

import numpy as np

from maxtrain.corpus.text.classes import class_table, fold_table
from maxtrain.corpus.text.kernels import find_lines, find_units


class Analysis:
    """What a text is made of; everything is computed when first asked for.

    A unit is a word (a run of letters, marks and digits) or, in a script without spaces between words, one character.

    Attributes:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def codes(self) -> np.ndarray:
        """Code points, [characters] uint32."""
        return np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)

    @cached_property
    def classes(self) -> np.ndarray:
        """Flags of `text.classes`, [characters] uint16."""
        return class_table()[self.codes]

    @cached_property
    def _units(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return find_units(self.codes, self.classes, fold_table())

    @property
    def unit_starts(self) -> np.ndarray:
        """Where each unit begins, [units] int32."""
        return self._units[0]

    @property
    def unit_ends(self) -> np.ndarray:
        """Where each unit ends, [units] int32."""
        return self._units[1]

    @property
    def unit_hashes(self) -> np.ndarray:
        """Hash of each unit in lower case, [units] uint64; the same on every machine."""
        return self._units[2]

    @cached_property
    def lines(self) -> np.ndarray:
        """Bounds of each line that is not blank, without the white space at its ends, [lines, 2] int32."""
        return find_lines(self.classes)


@lru_cache(maxsize=4)
def analyse(text: str) -> Analysis:
    """The analysis of a text; rules that look at the same text one after the other share it."""
    return Analysis(text)
