"""Loops over code points, compiled by numba and cached beside the code."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from maxtrain.corpus.text.classes import DIGIT, LETTER, MARK, NEWLINE, SPACE, UNSPACED

_Function = TypeVar("_Function", bound=Callable[..., Any])
_WORD = LETTER | MARK | DIGIT
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


def compiled(function: _Function) -> _Function:
    """Compile a function of arrays and numbers; the machine code is kept for later processes."""
    return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@compiled
def mix(value: np.uint64) -> np.uint64:
    """Spread a hash over all 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def find_units(codes: np.ndarray, classes: np.ndarray, fold: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts and ends [units] int32 and hashes [units] uint64 of the units of a text.

    Args:
        codes: code points, [characters] uint32.
        classes: their flags, [characters] uint16.
        fold: each code point in lower case, uint32.
    """
    starts = np.empty(len(codes), np.int32)
    ends = np.empty(len(codes), np.int32)
    hashes = np.empty(len(codes), np.uint64)
    count = 0
    position = 0
    while position < len(codes):
        if classes[position] & UNSPACED:
            stop = position + 1
        elif classes[position] & _WORD:
            stop = position + 1
            while stop < len(codes) and classes[stop] & _WORD and not classes[stop] & UNSPACED:
                stop += 1
        else:
            position += 1
            continue
        value = _FNV_OFFSET
        for place in range(position, stop):
            value = (value ^ np.uint64(fold[codes[place]])) * _FNV_PRIME
        starts[count] = position
        ends[count] = stop
        hashes[count] = mix(value)
        count += 1
        position = stop
    return starts[:count].copy(), ends[:count].copy(), hashes[:count].copy()


@compiled
def find_lines(classes: np.ndarray) -> np.ndarray:
    """Bounds of the lines that are not blank, without the white space at their ends, [lines, 2] int32."""
    bounds = np.empty((len(classes) // 2 + 1, 2), np.int32)
    count = 0
    position = 0
    while position < len(classes):
        stop = position
        while stop < len(classes) and not classes[stop] & NEWLINE:
            stop += 1
        first, last = position, stop
        while first < last and classes[first] & SPACE:
            first += 1
        while last > first and classes[last - 1] & SPACE:
            last -= 1
        if last > first:
            bounds[count, 0] = first
            bounds[count, 1] = last
            count += 1
        position = stop + 1
    return bounds[:count].copy()


@compiled
def count_in(hashes: np.ndarray, known: np.ndarray) -> int:
    """How many of the hashes [n] uint64 are among the known ones, [m] uint64 sorted."""
    count = 0
    for value in hashes:
        place = np.searchsorted(known, value)
        if place < len(known) and known[place] == value:
            count += 1
    return count
