"""Evaluation items: JSON lines, of which the parts that a model must not have seen are turned into n-gram hashes.

What counts of an item: `context`, `question` and `answer` (the right choice), in this order as one passage, since a
text that leaked has them one after the other; and `solution` as a passage of its own. Wrong choices, few-shot prompts
and unit tests do not count: they say nothing about the answer, or are the same in many items.

An item mostly of words is compared by words alone, as if there were no characters of scripts without spaces between
them: code and formulas are found whatever the language of their comments. Another one is compared by all units.
"""

import gzip
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from maxtrain.core.errors import DataError
from maxtrain.corpus.text.classes import class_table
from maxtrain.corpus.text.folded import codes_of, comparison_table, fold_words
from maxtrain.corpus.text.kernels import compiled, mix

PARTS = (("context", "question", "answer"), ("solution",))
"""Fields of an item that are joined to passages."""
LONG = (13, 20)
"""Units of an n-gram of which one alone is a hit: in words (Brown et al. 2020, arXiv:2005.14165, appendix C), and in
characters of scripts without spaces."""
SHORT = (8, 10)
"""Units of the n-grams whose share in a document makes a near-match; shorter items cannot be looked for."""
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Items:
    """A file of items.

    Attributes:
        task: the file's name without endings.
        sha256: of its lines, uncompressed.
        ids: of the items.
        passages: unit hashes of each item's passages, with whether they are of scripts without spaces.
        licences, sources: as the items state them, distinct, sorted.
    """

    task: str
    sha256: str
    ids: list[str]
    passages: list[list[tuple[np.ndarray, bool]]]
    licences: list[str]
    sources: list[str]


def task_name(path: Path) -> str:
    """The name of a file of items: its own, without endings."""
    return path.name.split(".jsonl")[0]


def items_bytes(path: Path) -> bytes:
    """The lines of a file of items, uncompressed.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            return gzip.decompress(data)
        if path.suffix == ".zst":
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
        return data
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise DataError(f"{path}: cannot be read as a file of evaluation items ({error})") from error


def items_sha256(path: Path) -> str:
    """SHA-256 of a file of items: of its lines, so that compression does not matter."""
    return hashlib.sha256(items_bytes(path)).hexdigest()


def units_of(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Starts, ends [units] int32 and hashes [units] uint64 of a text's units, and which are unspaced, [units] bool."""
    return fold_words(codes_of(text), class_table(), comparison_table())


@compiled
def gram_hashes(units: np.ndarray, size: int) -> np.ndarray:
    """Hashes of the n-grams of a text, in order, [units - size + 1] uint64; different sizes never meet.

    Args:
        units: hashes of its units, [units] uint64.
        size: n.
    """
    out = np.empty(max(len(units) - size + 1, 0), np.uint64)
    power = np.uint64(1)
    for _ in range(size):
        power *= _BASE
    rolling = np.uint64(0)
    for place in range(len(units)):
        rolling = rolling * _BASE + units[place]
        if place >= size:
            rolling -= units[place - size] * power
        if place >= size - 1:
            out[place - size + 1] = mix(rolling ^ np.uint64(size))
    return out


def passage_units(text: str) -> tuple[np.ndarray, bool]:
    """Unit hashes of an item's passage and whether most of them are of scripts without spaces."""
    _, _, hashes, unspaced = units_of(text)
    if 2 * unspaced.sum() > len(hashes):
        return hashes, True
    return hashes[~unspaced], False


def read_items(path: Path) -> Items:
    """Read a file of items.

    Raises:
        DataError: the file is missing, damaged, or a line is no item; the message says which.
    """
    data = items_bytes(path)
    ids, passages, licences, sources = [], [], set(), set()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        item = _parse(path, number, line)
        ids.append(str(item.get("id", number)))
        texts = ("\n".join(str(item[key]) for key in part if item.get(key)) for part in PARTS)
        passages.append([passage_units(text) for text in texts if text])
        licences.add(str(item.get("licence", "not stated")))
        sources.add(str(item.get("source", "not stated")))
    digest = hashlib.sha256(data).hexdigest()
    return Items(task_name(path), digest, ids, passages, sorted(licences), sorted(sources))


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: no JSON ({error})") from error
    keys = [key for part in PARTS for key in part]
    if not isinstance(item, dict) or not any(item.get(key) for key in keys):
        raise DataError(f"{path}, line {number}: an item needs text in one of the fields {', '.join(keys)}")
    return item
