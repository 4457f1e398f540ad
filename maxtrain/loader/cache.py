"""Arrays that are costly to compute, kept in the user's cache directory under a hash of what they follow from."""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maxtrain.core.files import user_cache_directory

logger = logging.getLogger(__name__)

_SUMMARY = "summary.json"


@dataclass(frozen=True)
class CachedArrays:
    """Arrays by name and the SHA-256 of all of them, hex."""

    arrays: dict[str, np.ndarray]
    sha256: str


def cached_arrays(kind: str, key: str, build: Callable[[], dict[str, np.ndarray]]) -> CachedArrays:
    """Arrays from the cache, verified and memory-mapped; built and stored where absent or damaged.

    Where the cache cannot be written the arrays stay in memory, with a warning.

    Args:
        kind: folder of the cache.
        key: file-safe hash of everything that the arrays follow from.
        build: computes them.
    """
    directory = user_cache_directory() / kind / key
    if directory.is_dir():
        try:
            return _load(directory)
        except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: damaged, built anew (%s)", directory, error)
    arrays = build()
    try:
        _store(directory, arrays)
        return _load(directory)
    except OSError as error:
        logger.warning("%s: cannot be written, kept in memory (%s)", directory, error)
        return CachedArrays(arrays, _hash(arrays))


def _load(directory: Path) -> CachedArrays:
    summary = json.loads((directory / _SUMMARY).read_text())
    arrays = {name: np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in summary["names"]}
    found = _hash(arrays)
    if found != summary["sha256"]:
        raise ValueError(f"SHA-256 is {found}, should be {summary['sha256']}")
    return CachedArrays(arrays, found)


def _store(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array, allow_pickle=False)
        (fresh / _SUMMARY).write_text(json.dumps({"names": sorted(arrays), "sha256": _hash(arrays)}))
        if directory.exists():
            # Either damaged or just written by another process with the same content.
            shutil.move(directory, Path(temporary) / "old")
        fresh.rename(directory)


def _hash(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}/{array.dtype.str}/{array.shape}/".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
