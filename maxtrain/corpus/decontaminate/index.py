"""The evaluation list as hashed n-grams, in which no text can be read.

A folder with two files for each file of items:

    TASK.json     version, items, their file's SHA-256, licences, sources, n-grams, the SHA-256 of TASK.grams
    TASK.grams    little-endian: hashes of long n-grams [long] uint64 ascending, of short ones [short] uint64 ascending,
                  the passage of each [long], [short] uint16 (uint32 from 65,536 on; those of item i are 2i, and 2i + 1
                  for its solution), then the items' ids, one a line, compressed by zlib

With fewer n-grams than there are (`max_grams`), short ones are kept only of passages that have no long one: the share
that makes a near-match cannot be told from a sample of a few.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxtrain.core.errors import DataError, UserError
from maxtrain.corpus.decontaminate.items import LONG, PARTS, SHORT, Items, gram_hashes, read_items

VERSION = 1
"""Of the format and of everything that hashes follow from."""


def suite_identity(tasks: Iterable[tuple[str, str]]) -> str:
    """Identity of a list of evaluation tasks: SHA-256 of its (task, SHA-256 of the items file) pairs, sorted.

    Args:
        tasks: names and hashes (`items.items_sha256`); hashed as lines `TASK HASH`, each with a line end.
    """
    lines = sorted(f"{task} {sha256}\n" for task, sha256 in tasks)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sample(hashes: np.ndarray, most: int | None) -> np.ndarray:
    """Distinct n-grams of a passage; of more than `most`, some at even distances, so that every part is covered."""
    if most is not None and len(hashes) > most:
        hashes = hashes[(np.arange(most) * (len(hashes) - 1)) // max(most - 1, 1)]
    return np.unique(hashes)


def _rows(items: Items, kind: int, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    sizes = LONG if kind == 0 else SHORT
    grams, numbers = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    passages = [passage for parts in items.passages for passage in parts]
    for number, (units, unspaced) in enumerate(passages):
        chosen = _sample(gram_hashes(units, sizes[unspaced]), most)
        grams.append(chosen)
        numbers.append(np.full(len(chosen), number, np.uint32))
    hashes, owners = np.concatenate(grams), np.concatenate(numbers)
    order = np.lexsort((owners, hashes))
    return hashes[order], owners[order]


def _encode(items: Items, most: int | None) -> tuple[bytes, dict[str, int]]:
    long, long_items = _rows(items, 0, most)
    short, short_items = _rows(items, 1, most)
    searchable = len(np.unique(np.concatenate([long_items, short_items]) // len(PARTS)))
    if most is not None:
        needed = ~np.isin(short_items, long_items)
        short, short_items = short[needed], short_items[needed]
    kind = _item_kind(len(items.ids))
    columns = ((long, "<u8"), (short, "<u8"), (long_items, kind), (short_items, kind))
    data = b"".join(array.astype(kind).tobytes() for array, kind in columns)
    told = {"too_short": len(items.ids) - searchable, "long": len(long), "short": len(short)}
    return data + zlib.compress("\n".join(items.ids).encode(), 9), told


def _item_kind(items: int) -> str:
    return "<u2" if items * len(PARTS) < 2**16 else "<u4"


def build_eval_index(paths: Sequence[Path], output: Path, max_grams: int | None = None) -> dict[str, Any]:
    """Write the index of files of items.

    Args:
        paths: JSON lines, plain, gz or zst.
        output: folder; it is made.
        max_grams: most n-grams of a size for each passage of an item, null for all. Fewer take less room, but a
            document that shares little with an item is then found with the probability that it has one of them.

    Returns:
        `suite`, the identity, and `tasks`, their manifests.

    Raises:
        DataError: a file is no list of items.
        UserError: two files have the same name.
    """
    output.mkdir(parents=True, exist_ok=True)
    tasks: dict[str, Any] = {}
    for path in sorted(paths, key=lambda path: path.name):
        items = read_items(path)
        if items.task in tasks:
            raise UserError(f"{path}: a second file of items named {items.task}; rename one")
        data, told = _encode(items, max_grams)
        (output / f"{items.task}.grams").write_bytes(data)
        tasks[items.task] = {
            "version": VERSION,
            "task": items.task,
            "items": len(items.ids),
            "items_sha256": items.sha256,
            "parts": ["+".join(part) for part in PARTS],
            "long_units": LONG,
            "short_units": SHORT,
            "max_grams": max_grams,
            **told,
            "grams_sha256": hashlib.sha256(data).hexdigest(),
            "licences": items.licences,
            "sources": items.sources,
        }
        text = json.dumps(tasks[items.task], indent=1, ensure_ascii=False)
        (output / f"{items.task}.json").write_text(text + "\n", "utf-8")
    return {"suite": suite_identity((task, told["items_sha256"]) for task, told in tasks.items()), "tasks": tasks}


@dataclass(frozen=True)
class EvalIndex:
    """The n-grams of some tasks, joined.

    Attributes:
        identity: of the suite.
        tasks: names, sorted.
        task_items: items of each task, [tasks] int64; items are numbered through, task by task.
        ids: of all items.
        grams: distinct hashes, ascending, [grams] uint64.
        offsets: where each n-gram's owners begin, [grams + 1] int64.
        owners: passages that have the n-gram; those of item i are 2i and 2i + 1, [rows] int64.
        spread: items that have each n-gram, [grams] int64.
        is_long: whether the n-gram alone is a hit, [grams] bool.
        totals: n-grams of each passage, [passages, 2] int64: long, short.
        is_whole: whether it has all n-grams of all items.
    """

    identity: str
    tasks: list[str]
    task_items: np.ndarray
    ids: list[str]
    grams: np.ndarray
    offsets: np.ndarray
    owners: np.ndarray
    spread: np.ndarray
    is_long: np.ndarray
    totals: np.ndarray
    is_whole: bool

    def task_of(self, item: int) -> str:
        """The task of an item."""
        return self.tasks[int(np.searchsorted(np.cumsum(self.task_items), item, side="right"))]


def _load_task(folder: Path, path: Path) -> tuple[dict[str, Any], list[np.ndarray], list[str]]:
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["version"] != VERSION:
            raise DataError(f"{path}: version {manifest['version']}, this code reads {VERSION}; build the index anew")
        data = (folder / f"{manifest['task']}.grams").read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest["grams_sha256"]:
            raise DataError(f"{path}: the n-grams' SHA-256 is not the manifest's; build the index anew")
        long, short = manifest["long"], manifest["short"]
        item_kind = _item_kind(manifest["items"])
        columns = (("<u8", long), ("<u8", short), (item_kind, long), (item_kind, short))
        bounds = np.cumsum([0, *(np.dtype(kind).itemsize * count for kind, count in columns)])
        arrays = [
            np.frombuffer(data[start:stop], kind)
            for start, stop, (kind, _) in zip(bounds[:-1], bounds[1:], columns, strict=True)
        ]
        return manifest, arrays, zlib.decompress(data[bounds[-1] :]).decode().split("\n")
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: no index of evaluation items ({error})") from error


def load_eval_index(folder: Path, tasks: Sequence[str] | None = None) -> EvalIndex:
    """Read an index.

    Args:
        folder: as `build_eval_index` wrote it.
        tasks: names of tasks; null for all.

    Raises:
        DataError: nothing there, damaged, or another version.
        UserError: a task is not in it.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    missing = sorted(set(tasks or ()) - set(paths))
    if missing:
        raise UserError(f"{folder}: no task {', '.join(missing)}; there are {', '.join(paths) or 'none'}")
    names = sorted(paths if tasks is None else set(tasks))
    if not names:
        raise DataError(f"{folder}: no index of evaluation items; build one from their files")
    loaded = [_load_task(folder, paths[name]) for name in names]
    counts = np.array([len(ids) for _, _, ids in loaded], np.int64)
    firsts = (np.cumsum(counts) - counts) * len(PARTS)
    long = np.concatenate([arrays[0] for _, arrays, _ in loaded]).astype(np.uint64)
    short = np.concatenate([arrays[1] for _, arrays, _ in loaded]).astype(np.uint64)
    long_owners, short_owners = (
        np.concatenate(
            [arrays[at].astype(np.int64) + first for (_, arrays, _), first in zip(loaded, firsts, strict=True)]
        )
        for at in (2, 3)
    )
    rows = np.concatenate([long, short])
    owners = np.concatenate([long_owners, short_owners])
    order = np.lexsort((owners, rows))
    grams, starts = np.unique(rows[order], return_index=True)
    passages = int(counts.sum()) * len(PARTS)
    numbers = np.repeat(np.arange(len(grams)), np.diff(np.append(starts, len(rows))))
    pairs = np.unique(numbers * passages + owners[order] // len(PARTS))
    return EvalIndex(
        identity=suite_identity((manifest["task"], manifest["items_sha256"]) for manifest, _, _ in loaded),
        tasks=names,
        task_items=counts,
        ids=[item for _, _, ids in loaded for item in ids],
        grams=grams,
        offsets=np.append(starts, len(rows)).astype(np.int64),
        owners=owners[order],
        spread=np.bincount(pairs // max(passages, 1), minlength=len(grams)),
        is_long=(order < len(long))[starts],
        totals=np.stack([np.bincount(part, minlength=passages) for part in (long_owners, short_owners)], axis=1),
        is_whole=all(manifest["max_grams"] is None for manifest, _, _ in loaded),
    )
