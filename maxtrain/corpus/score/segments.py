"""Short segments between commas, bars and line ends, and the unit that most of them share."""

import numpy as np

from maxtrain.corpus.text import Analysis
from maxtrain.corpus.text.classes import NEWLINE
from maxtrain.corpus.text.kernels import compiled

_LEAST_SEGMENTS = 20
_MOST_UNITS = 9
_BREAKS = np.zeros(0x10000, np.bool_)
_BREAKS[[ord(character) for character in ",;|/•·、，；｜。.!?！？：:\t"]] = True


@compiled
def _common_share(
    codes: np.ndarray,
    classes: np.ndarray,
    starts: np.ndarray,
    hashes: np.ndarray,
    breaks: np.ndarray,
    least_segments: int,
    most_units: int,
) -> float:
    """Share of segments that hold the commonest pair of neighbouring units; 0 for few or long segments."""
    num_units = len(starts)
    segment = np.empty(num_units, np.int32)
    number = 0
    since = 0
    place = 0
    for unit in range(num_units):
        while place < starts[unit]:
            code = codes[place]
            if since and (classes[place] & NEWLINE or (code < len(breaks) and breaks[code])):
                number += 1
                since = 0
            place += 1
        segment[unit] = number
        since += 1
    num_segments = number + 1
    if num_segments < least_segments or num_units / num_segments > most_units:
        return 0.0
    # The commonest pair: sort pairs by hash, count the distinct segments of each.
    pairs = np.empty(num_units, np.uint64)
    count = 0
    where = np.empty(num_units, np.int32)
    for unit in range(num_units - 1):
        if segment[unit] == segment[unit + 1]:
            pairs[count] = hashes[unit] * np.uint64(31) + hashes[unit + 1]
            where[count] = segment[unit]
            count += 1
    if count == 0:
        return 0.0
    order = np.argsort(pairs[:count], kind="mergesort")
    most = 0
    run = 0
    last_segment = -1
    for index in range(count):
        pair = order[index]
        if index == 0 or pairs[pair] != pairs[order[index - 1]]:
            run = 0
            last_segment = -1
        if where[pair] != last_segment:
            run += 1
            last_segment = where[pair]
        most = max(most, run)
    return most / num_segments


def common_unit_share(analysis: Analysis) -> float:
    """Share of the short segments of a text that hold the same pair of units; 0 where it is no list of segments."""
    return float(
        _common_share(
            analysis.codes,
            analysis.classes,
            analysis.unit_starts,
            analysis.unit_hashes,
            _BREAKS,
            _LEAST_SEGMENTS,
            _MOST_UNITS,
        )
    )
