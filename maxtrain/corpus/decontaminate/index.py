"""The evaluation list as hashed n-grams, in which no text can be read.

A folder with two files for each file of items:

    TASK.json     version, items, their file's SHA-256, licences, sources, n-grams, the SHA-256 of TASK.grams
    TASK.grams    little-endian: hashes of long n-grams [long] uint64 ascending, of short ones [short] uint64 ascending,
                  the item of each [long], [short] uint32, then the items' ids, one a line, compressed by zlib
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
    for number, passages in enumerate(items.passages):
        found = [gram_hashes(units, sizes[unspaced]) for units, unspaced in passages]
        chosen = np.unique(np.concatenate([_sample(part, most) for part in found] + [grams[0]]))
        grams.append(chosen)
        numbers.append(np.full(len(chosen), number, np.uint32))
    hashes, owners = np.concatenate(grams), np.concatenate(numbers)
    order = np.lexsort((owners, hashes))
    return hashes[order], owners[order]


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
        long, long_items = _rows(items, 0, max_grams)
        short, short_items = _rows(items, 1, max_grams)
        data = b"".join(
            array.astype(kind).tobytes()
            for array, kind in ((long, "<u8"), (short, "<u8"), (long_items, "<u4"), (short_items, "<u4"))
        ) + zlib.compress("\n".join(items.ids).encode(), 9)
        (output / f"{items.task}.grams").write_bytes(data)
        tasks[items.task] = {
            "version": VERSION,
            "task": items.task,
            "items": len(items.ids),
            "items_sha256": items.sha256,
            "too_short": len(items.ids) - len(np.unique(short_items)),
            "parts": ["+".join(part) for part in PARTS],
            "long_units": LONG,
            "short_units": SHORT,
            "max_grams": max_grams,
            "long": len(long),
            "short": len(short),
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
        owners: items that have the n-gram, [rows] int64.
        is_long: whether the n-gram alone is a hit, [grams] bool.
        totals: n-grams of each item, [items, 2] int64: long, short.
        is_whole: whether it has all n-grams of all items.
    """

    identity: str
    tasks: list[str]
    task_items: np.ndarray
    ids: list[str]
    grams: np.ndarray
    offsets: np.ndarray
    owners: np.ndarray
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
        bounds = np.cumsum([0, 8 * long, 8 * short, 4 * long, 4 * short])
        arrays = [
            np.frombuffer(data[start:stop], kind)
            for start, stop, kind in zip(bounds[:-1], bounds[1:], ("<u8", "<u8", "<u4", "<u4"), strict=True)
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
    firsts = np.cumsum(counts) - counts
    long = np.concatenate([arrays[0] for _, arrays, _ in loaded]).astype(np.uint64)
    short = np.concatenate([arrays[1] for _, arrays, _ in loaded]).astype(np.uint64)
    long_owners = np.concatenate([arrays[2] + first for (_, arrays, _), first in zip(loaded, firsts, strict=True)])
    short_owners = np.concatenate([arrays[3] + first for (_, arrays, _), first in zip(loaded, firsts, strict=True)])
    rows = np.concatenate([long, short])
    owners = np.concatenate([long_owners, short_owners]).astype(np.int64)
    order = np.lexsort((owners, rows))
    grams, starts = np.unique(rows[order], return_index=True)
    items = int(counts.sum())
    return EvalIndex(
        identity=suite_identity((manifest["task"], manifest["items_sha256"]) for manifest, _, _ in loaded),
        tasks=names,
        task_items=counts,
        ids=[item for _, _, ids in loaded for item in ids],
        grams=grams,
        offsets=np.append(starts, len(rows)).astype(np.int64),
        owners=owners[order],
        is_long=(order < len(long))[starts],
        totals=np.stack([np.bincount(part, minlength=items) for part in (long_owners, short_owners)], axis=1),
        is_whole=all(manifest["max_grams"] is None for manifest, _, _ in loaded),
    )
