"""Passages that repeat across and within documents, found in bounded memory (Lee et al. 2022, arXiv:2107.06499).

Lee et al. cut repeats of 50 tokens with a suffix array over the whole corpus. Here fingerprints are sampled by
winnowing (Schleimer, Wilkerson, Aiken 2003): of the hashes of all passages of some weight, the least in every window of
starts is kept, so that two equal passages of `min_length` surely have one in common. Fingerprints are partitioned by
hash; a later occurrence is compared with the first one and extended as far as the texts agree. Memory is that of a
partition.

Lengths are weights: a character counts 1, one of a script without spaces 2, white space 0. The default of 75 is a long
sentence, in Chinese 38 characters; the 50 tokens of Lee et al. are about 170 in English.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import Fraction, Section
from maxtrain.corpus.dedup.paragraphs import merge_spans
from maxtrain.corpus.text.classes import LETTER, class_table
from maxtrain.corpus.text.folded import codes_of, comparison_table, fold_characters
from maxtrain.corpus.text.kernels import compiled, mix

_BASE = np.uint64(0x9E3779B97F4A7C15)


class SubstringConfig(Section):
    """Which repeats count."""

    min_length: Annotated[int, Field(ge=40, le=1_000_000)] = 75
    """Least length of a repeated passage: characters without white space, those of scripts without spaces twice."""
    min_letters: Fraction = 0.2
    """Least share of letters; rulers, tables of numbers and drawings repeat without being copied."""
    drop_share: Fraction = 1.0
    """A document of which more than this share is in later copies is dropped; a lesser share is cut out of it."""


@dataclass(frozen=True)
class Stream:
    """A text as it is compared.

    Attributes:
        positions: place in the text of each character, [kept] int32.
        values: the characters, folded, [kept] uint32.
        ends: weight up to and with each, [kept] int64.
    """

    positions: np.ndarray
    values: np.ndarray
    ends: np.ndarray


def stream_of(text: str) -> Stream:
    """What is compared of a text."""
    positions, values, weights = fold_characters(codes_of(text), class_table(), comparison_table(), True)
    return Stream(positions, values, np.cumsum(weights, dtype=np.int64))


@compiled
def _winnow(values: np.ndarray, ends: np.ndarray, seed: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints [found] uint64 and their places in the stream [found] int32.

    Args:
        values: folded characters.
        ends: weight up to and with each.
        seed: weight of a hashed passage.
        window: weight of the starts of which the one with the least hash is kept.
    """
    size = len(values)
    prefix = np.zeros(size + 1, np.uint64)
    powers = np.ones(seed + 2, np.uint64)
    for number in range(1, len(powers)):
        powers[number] = powers[number - 1] * _BASE
    for number in range(size):
        prefix[number + 1] = prefix[number] * _BASE + mix(np.uint64(values[number]) + _BASE)
    queue = np.empty(size + 1, np.int64)
    hashes = np.empty(size, np.uint64)
    out_hashes = np.empty(size, np.uint64)
    out_places = np.empty(size, np.int32)
    head = 0
    tail = 0
    count = 0
    stop = 0
    begun = 0
    last = -1
    for start in range(size):
        before = ends[start - 1] if start else 0
        while stop < size and ends[stop] - before < seed:
            stop += 1
        if stop == size:
            break
        hashes[start] = mix(prefix[stop + 1] - prefix[start] * powers[stop + 1 - start])
        # Of equal hashes the first stays until it leaves the window: runs of one character give few fingerprints.
        while tail > head and hashes[queue[tail - 1]] > hashes[start]:
            tail -= 1
        queue[tail] = start
        tail += 1
        while ends[start] - (ends[begun - 1] if begun else 0) > window:
            begun += 1
        while queue[head] < begun:
            head += 1
        if ends[start] >= window and queue[head] != last:
            last = queue[head]
            out_hashes[count] = hashes[last]
            out_places[count] = last
            count += 1
    return out_hashes[:count].copy(), out_places[:count].copy()


def fingerprints(stream: Stream, config: SubstringConfig) -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints of a text: hashes [found] uint64, places in its stream [found] int32."""
    seed = config.min_length * 2 // 5
    return _winnow(stream.values, stream.ends, seed, config.min_length - seed - 2)


def match_fingerprints(hashes: np.ndarray, documents: np.ndarray, ranks: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Each later occurrence of a fingerprint beside its first one; all rows of a hash must be there, in any order.

    Args:
        hashes: [rows] uint64.
        documents: numbers of the documents, [rows] int64.
        ranks: their precedence: the occurrence of the least rank, then place, is the one that stays, [rows] int64.
        places: in the documents' streams, [rows] int32.

    Returns:
        (first's document, its place, later document, its place), sorted, [matches, 4] int64.
    """
    order = np.lexsort((places, ranks, hashes))
    ordered = hashes[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(hashes) else np.zeros(0, np.bool_)
    owner = order[np.flatnonzero(first)][np.cumsum(first) - 1] if len(hashes) else order
    later = order[~first]
    owner = owner[~first]
    rows = np.stack([documents[owner], places[owner], documents[later], places[later]], axis=1).astype(np.int64)
    return rows[np.lexsort((rows[:, 3], rows[:, 1], rows[:, 2], rows[:, 0]))]


@compiled
def _extend(
    first: np.ndarray, later: np.ndarray, ends: np.ndarray, seeds: np.ndarray, least: int, same: bool
) -> np.ndarray:
    out = np.empty((len(seeds), 2), np.int64)
    count = 0
    for number in range(len(seeds)):
        a, b = seeds[number, 0], seeds[number, 1]
        covered = False
        for earlier in range(count - 1, max(count - 9, -1), -1):
            covered |= out[earlier, 0] <= b < out[earlier, 1]
        if covered or first[a] != later[b]:
            continue
        start = 0
        while start < a and start < b and first[a - start - 1] == later[b - start - 1]:
            start += 1
        stop = 0
        while a + stop < len(first) and b + stop < len(later) and first[a + stop] == later[b + stop]:
            stop += 1
        begin, end = b - start, b + stop
        # Within one text, a passage that repeats at once overlaps itself: what lies before the first repeat stays.
        weight = ends[end - 1] - (ends[begin - 1] if begin else 0)
        if weight >= least and not (same and a == b):
            out[count, 0] = begin
            out[count, 1] = end
            count += 1
    return out[:count].copy()


def extend_matches(
    first: Stream, later: Stream, seeds: np.ndarray, config: SubstringConfig, same: bool = False
) -> np.ndarray:
    """Passages of the later text that are in the first one too, as places in its stream, [found, 2] int64.

    Args:
        first: the text that keeps its passages.
        later: the one that would lose them.
        seeds: places of common fingerprints in both, in the order of `match_fingerprints`, [seeds, 2] int64.
        config: least length.
        same: whether both are one and the same text.
    """
    return _extend(first.values, later.values, later.ends, seeds, config.min_length, same)


def passages(text: str, stream: Stream, found: np.ndarray, config: SubstringConfig) -> list[tuple[int, int]]:
    """Repeated passages of a text as spans of characters [start, end), merged; those of few letters are left out.

    Args:
        text: the text.
        stream: of the text.
        found: from `extend_matches`, of all first texts, [found, 2] int64.
        config: least share of letters.
    """
    letters = (class_table()[stream.values] & LETTER) != 0
    sums = np.concatenate([[0], np.cumsum(letters)])
    spans = [
        (int(stream.positions[start]), int(stream.positions[stop - 1]) + 1)
        for start, stop in found.tolist()
        if sums[stop] - sums[start] >= config.min_letters * (stop - start)
    ]
    return [(start, min(stop, len(text))) for start, stop in merge_spans(spans)]


def repeated_passages(texts: list[str], ranks: np.ndarray, config: SubstringConfig) -> list[list[tuple[int, int]]]:
    """Later copies in each text, in memory: the same spans as the sharded form gives.

    Args:
        texts: the texts.
        ranks: precedence of each, [documents] int64.
        config: which repeats count.
    """
    streams = [stream_of(text) for text in texts]
    prints = [fingerprints(stream, config) for stream in streams]
    documents = np.repeat(np.arange(len(texts)), [len(hashes) for hashes, _ in prints])
    hashes = np.concatenate([hashes for hashes, _ in prints] + [np.zeros(0, np.uint64)])
    places = np.concatenate([places for _, places in prints] + [np.zeros(0, np.int32)])
    matches = match_fingerprints(hashes, documents, ranks[documents], places)
    found: list[list[np.ndarray]] = [[] for _ in texts]
    bounds = np.flatnonzero((np.diff(matches[:, [0, 2]], axis=0) != 0).any(axis=1)) + 1
    for part in np.split(matches, bounds):
        if len(part):
            a, b = int(part[0, 0]), int(part[0, 2])
            found[b].append(extend_matches(streams[a], streams[b], part[:, [1, 3]], config, a == b))
    return [
        passages(text, stream, np.concatenate(parts), config) if parts else []
        for text, stream, parts in zip(texts, streams, found, strict=True)
    ]


def repeated_share(text: str, spans: list[tuple[int, int]]) -> float:
    """Share of a text's weight that lies in the spans."""
    stream = stream_of(text)
    if not spans or not len(stream.ends):
        return 0.0
    weights = np.diff(stream.ends, prepend=0)
    inside = np.zeros(len(text) + 1, np.int64)
    for start, stop in spans:
        inside[start] += 1
        inside[stop] -= 1
    covered = np.cumsum(inside)[stream.positions] > 0
    return float(weights[covered].sum() / stream.ends[-1])
