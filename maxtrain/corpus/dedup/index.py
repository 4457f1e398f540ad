"""An index of a dataset's documents, against which new ones are checked without reading the old texts.

A folder of `.npy` arrays and a manifest with the config, the version and every array's SHA-256:

    doc_ids        [documents] bytes
    text_keys      [documents, 2] uint64, sorted, with text_documents [documents] uint32
    url_keys       [addresses, 2] uint64, sorted, with url_documents [addresses] uint32
    band_keys      [keys] uint64, sorted, with band_documents [keys] uint32
    shingles       [shingles] uint32, shingle_offsets [documents + 1] int64, shingle_levels [documents] uint8

Shingle sets are kept whole up to `INDEX_SHINGLES` and sampled by hash beyond, which leaves a standard error under .02
in the similarity of long documents.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.corpus.dedup.config import NearConfig
from maxtrain.corpus.dedup.exact import ExactConfig, text_keys, url_keys
from maxtrain.corpus.dedup.near import flat_keys, similarities
from maxtrain.corpus.dedup.sketch import ShingleSets, Sketches, sketch

VERSION = 1
"""Of the format and of everything that keys follow from."""
INDEX_SHINGLES = 1024
_MANIFEST = "manifest.json"
_NAMES = (
    "doc_ids",
    "text_keys",
    "text_documents",
    "url_keys",
    "url_documents",
    "band_keys",
    "band_documents",
    "shingles",
    "shingle_offsets",
    "shingle_levels",
)


@dataclass(frozen=True)
class Known:
    """What an index says of new documents.

    Attributes:
        rules: how each is known: "" for not at all, url, exact or near.
        doc_ids: the indexed document that it is a duplicate of, or "".
        scores: similarity, 1 for url and exact, 0 where it is not known, [documents] float64.
    """

    rules: list[str]
    doc_ids: list[str]
    scores: np.ndarray


def _config_json(exact: ExactConfig, near: NearConfig) -> dict[str, Any]:
    return {"exact": exact.model_dump(mode="json"), "sketch": near.sketch.model_dump(mode="json")}


def _sorted_keys(keys: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((documents, *(keys.T[::-1] if keys.ndim == 2 else (keys,))))
    return np.ascontiguousarray(keys[order]), documents[order].astype(np.uint32)


def write_index(
    folder: Path,
    doc_ids: Sequence[str],
    texts: np.ndarray,
    urls: tuple[np.ndarray, np.ndarray],
    sketches: Sketches,
    exact: ExactConfig,
    near: NearConfig,
) -> dict[str, Any]:
    """Write an index; the same documents in the same order give the same bytes.

    Args:
        folder: where; it is made.
        doc_ids: ids of the documents.
        texts: of `exact.text_keys`, [documents, 2] uint64.
        urls: of `exact.url_keys`.
        sketches: of `sketch.sketch`; those of shards are joined by `ShingleSets.join`.
        exact: what made `texts`.
        near: what made `sketches`.

    Returns:
        The manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(len(doc_ids))
    keys, given = urls
    sets = sketches.sets.reduced(INDEX_SHINGLES)
    arrays = [
        np.array([doc_id.encode() for doc_id in doc_ids], np.bytes_),
        *_sorted_keys(texts, numbers),
        *_sorted_keys(keys[given], numbers[given]),
        *_sorted_keys(*flat_keys(sketches.keys, sketches.usable, 0)),
        sets.values,
        sets.offsets,
        sets.levels,
    ]
    hashes = {}
    for name, array in zip(_NAMES, arrays, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        (folder / f"{name}.npy").write_bytes(buffer.getvalue())
        hashes[name] = hashlib.sha256(buffer.getvalue()).hexdigest()
    manifest = {"version": VERSION, "documents": len(doc_ids), **_config_json(exact, near), "sha256": hashes}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


class DedupIndex:
    """An index, its arrays mapped from disk.

    Args:
        folder: where `write_index` wrote it.
        exact: what texts are to be compared by.
        near: what n-grams are to be compared by.
        verify: whether to compare every file's hash, which reads all of them once.

    Raises:
        DataError: no index, a damaged one, another version or another config.
    """

    def __init__(self, folder: Path, exact: ExactConfig, near: NearConfig, verify: bool = True) -> None:
        self._near = near
        self._exact = exact
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            version, hashes = manifest["version"], manifest["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: no index of duplicates; write one with the dataset ({error})") from error
        if version != VERSION:
            raise DataError(f"{folder}: index of version {version}, this code reads {VERSION}; write it anew")
        for key, value in _config_json(exact, near).items():
            if manifest.get(key) != value:
                raise DataError(
                    f"{folder}: the index was made with {key} {manifest.get(key)}, the recipe says {value}; "
                    "use the same or write the index anew"
                )
        arrays = {}
        for name in _NAMES:
            path = folder / f"{name}.npy"
            try:
                if verify and files.sha256_file(path) != hashes[name]:
                    raise DataError(f"{path}: damaged, its SHA-256 is not the manifest's; write the index anew")
                # An empty array cannot be mapped.
                empty = path.stat().st_size <= 128
                arrays[name] = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
            except (OSError, KeyError, ValueError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{path}: missing or damaged; write the index anew ({error})") from error
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays["doc_ids"])

    def _doc_id(self, number: int) -> str:
        return self._arrays["doc_ids"][number].decode()

    def check(self, texts: Sequence[str], urls: Sequence[str | None]) -> Known:
        """What is known of new documents: by address, else by text, else by n-grams.

        Args:
            texts: their texts.
            urls: their addresses.
        """
        keys, given = url_keys(urls)
        by_url = np.where(given, self._find("url", keys), -1)
        by_text = self._find("text", text_keys(texts, self._exact))
        unknown = np.flatnonzero((by_url < 0) & (by_text < 0))
        rules, doc_ids, scores = [""] * len(texts), [""] * len(texts), np.zeros(len(texts))
        for rule, found in (("exact", by_text), ("url", by_url)):
            for place in np.flatnonzero(found >= 0).tolist():
                rules[place], doc_ids[place], scores[place] = rule, self._doc_id(int(found[place])), 1.0
        for place, number, score in self._near_ones(sketch([texts[int(new)] for new in unknown], self._near.sketch)):
            where = int(unknown[place])
            rules[where], doc_ids[where], scores[where] = "near", self._doc_id(number), score
        return Known(rules, doc_ids, scores)

    def _find(self, name: str, keys: np.ndarray) -> np.ndarray:
        """The least document with each key, -1 for none, [keys] int64."""
        known, documents = self._arrays[f"{name}_keys"], self._arrays[f"{name}_documents"]
        # The first half of a 128-bit key finds the place; equal halves of different keys are next to each other.
        found = np.full(len(keys), -1, np.int64)
        halves = known[:, 0]
        for place, start in enumerate(np.searchsorted(halves, keys[:, 0]).tolist()):
            row = start
            while row < len(known) and halves[row] == keys[place, 0]:
                if known[row, 1] == keys[place, 1]:
                    found[place] = documents[row]
                    break
                row += 1
        return found

    def _near_ones(self, sketches: Sketches) -> list[tuple[int, int, float]]:
        """Place, most similar indexed document and similarity of each document that has a near-duplicate."""
        known, documents = self._arrays["band_keys"], self._arrays["band_documents"]
        keys, places = flat_keys(sketches.keys, sketches.usable, 0)
        starts = np.searchsorted(known, keys)
        counts = np.minimum(np.searchsorted(known, keys, side="right") - starts, self._near.representatives)
        rows = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        packed = np.unique((np.repeat(places, counts).astype(np.uint64) << np.uint64(32)) | documents[rows])
        pairs = np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)
        involved, compact = np.unique(pairs[:, 1], return_inverse=True)
        arrays = self._arrays
        whole = ShingleSets(arrays["shingles"], arrays["shingle_offsets"], arrays["shingle_levels"])
        local = np.stack([pairs[:, 0], compact.reshape(-1)], axis=1)
        found = similarities(local, sketches.sets, whole.select(involved), self._near.threshold)
        order = np.lexsort((pairs[:, 1], -found, pairs[:, 0]))
        order = order[(found[order] > 0) & (found[order] >= self._near.threshold)]
        first = np.concatenate([[True], pairs[order][1:, 0] != pairs[order][:-1, 0]])[: len(order)]
        return [(int(pairs[row, 0]), int(pairs[row, 1]), float(found[row])) for row in order[first]]
