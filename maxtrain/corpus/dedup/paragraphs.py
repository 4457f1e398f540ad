"""Paragraphs that repeat over documents: counted by hash, all but the first cut out."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from maxtrain.config.schema.types import AsTuple, PositiveInt, Section
from maxtrain.corpus.text.analysis import analyse
from maxtrain.corpus.text.classes import NEWLINE, class_table
from maxtrain.corpus.text.folded import comparison_table, fold_characters
from maxtrain.corpus.text.kernels import compiled, mix

_CODE = re.compile(r"\A(?:```|~~~|    |\t)|[{};]\s*\Z|\A(?:#include|import|from|def|class|function|package) ")
_HEADING = re.compile(r"\A(?:#{1,6}\s|=+\s|第.{1,8}[章节節回卷篇])")
_LICENCE = re.compile(r"(?i)copyright|\(c\)|©|licen[cs]|all rights reserved|版权|版權|许可|授權|著作権")
_PROTECTIONS = {"headings": _HEADING, "code": _CODE, "licences": _LICENCE}

Protection = Literal["headings", "code", "licences"]


class ParagraphConfig(Section):
    """Which paragraphs count as repeated."""

    by: Literal["paragraph", "line"] = "paragraph"
    """What is compared: paragraphs, which blank lines part, or single lines."""
    min_length: PositiveInt = 100
    """Least characters without white space; one of a script without spaces counts as two."""
    min_count: Annotated[int, Field(ge=2, le=2**31 - 1)] = 2
    """From how many occurrences on the later ones are cut."""
    keep: PositiveInt = 1
    """Occurrences that stay."""
    protect: Annotated[tuple[Protection, ...], AsTuple] = ("headings", "code", "licences")
    """Kinds of paragraphs that always stay."""


def paragraph_spans(text: str, by: str = "paragraph") -> np.ndarray:
    """Bounds of the paragraphs (or lines) of a text, [paragraphs, 2] int32."""
    analysis = analyse(text)
    lines = analysis.lines
    if by == "line" or len(lines) < 2:
        return lines
    breaks = np.concatenate([[0], np.cumsum((analysis.classes & NEWLINE) != 0)])
    # `\r\n` is two line ends and no blank line.
    codes = analysis.codes
    pairs = np.zeros(len(codes) + 1, np.int64)
    pairs[2:] = np.cumsum((codes[1:] == 10) & (codes[:-1] == 13))
    ends = breaks - pairs
    new = np.concatenate([[True], ends[lines[1:, 0]] - ends[lines[:-1, 1]] > 1])
    firsts = np.flatnonzero(new)
    lasts = np.concatenate([firsts[1:], [len(lines)]]) - 1
    return np.stack([lines[firsts, 0], lines[lasts, 1]], axis=1)


@compiled
def _hash_spans(
    spans: np.ndarray, positions: np.ndarray, values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    hashes = np.zeros(len(spans), np.uint64)
    lengths = np.zeros(len(spans), np.int64)
    place = 0
    for number in range(len(spans)):
        while place < len(positions) and positions[place] < spans[number, 0]:
            place += 1
        value = np.uint64(0xCBF29CE484222325)
        while place < len(positions) and positions[place] < spans[number, 1]:
            value = mix((value ^ np.uint64(values[place])) * np.uint64(0x9E3779B97F4A7C15))
            lengths[number] += weights[place]
            place += 1
        hashes[number] = value
    return hashes, lengths


def paragraph_keys(text: str, config: ParagraphConfig) -> tuple[np.ndarray, np.ndarray]:
    """Paragraphs that may be cut: keys [paragraphs] uint64 and spans [paragraphs, 2] int32.

    Letters are folded and white space is passed over. Where a corpus has 10^9 paragraphs, the probability that any two
    different ones share a 64-bit key is 3 %.
    """
    spans = paragraph_spans(text, config.by)
    if not len(spans):
        return np.zeros(0, np.uint64), spans
    positions, values, weights = fold_characters(analyse(text).codes, class_table(), comparison_table(), True)
    keys, lengths = _hash_spans(spans, positions, values, weights)
    chosen = lengths >= config.min_length
    guards = [_PROTECTIONS[name] for name in config.protect]
    for number in np.flatnonzero(chosen):
        start, stop = spans[number]
        # Protection looks at a paragraph's ends and beginning: a limit keeps huge ones cheap.
        part = text[start : min(stop, start + 2000)]
        chosen[number] = not any(guard.search(part) for guard in guards)
    return keys[chosen], spans[chosen]


def repeated_rows(keys: np.ndarray, ranks: np.ndarray, ordinals: np.ndarray, config: ParagraphConfig) -> np.ndarray:
    """Which rows are later copies to cut, [rows] bool; all rows of a key must be there, in any order.

    Args:
        keys: of paragraphs, [rows] uint64.
        ranks: precedence (or number) of the paragraph's document, [rows] int64.
        ordinals: place of the paragraph in its document, [rows] int64.
        config: how many stay.
    """
    order = np.lexsort((ordinals, ranks, keys))
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(keys) else np.zeros(0, int)
    counts = np.diff(np.concatenate([starts, [len(keys)]]))
    place = np.arange(len(keys)) - np.repeat(starts, counts)
    cut = np.zeros(len(keys), np.bool_)
    cut[order] = (place >= config.keep) & (np.repeat(counts, counts) >= config.min_count)
    return cut


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans [start, end) in order, those that touch or overlap joined."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        elif stop > start:
            merged.append((start, stop))
    return merged


def cut_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """A text without the spans; where whole lines go, their line ends and the blank lines after them go too."""
    parts = []
    place = 0
    for start, stop in merge_spans(spans):
        if not text[place:start].rpartition("\n")[2].strip() and (stop == len(text) or text[stop] in "\r\n"):
            while stop < len(text) and text[stop].isspace():
                stop += 1
            # The white space that begins the next line is its indentation.
            stop = max(text.rfind("\n", place, stop) + 1, start) if stop < len(text) else stop
        parts.append(text[place:start])
        place = max(place, stop)
    rest = text[place:]
    return "".join([*parts, rest]) if rest.strip() else "".join(parts).rstrip()
