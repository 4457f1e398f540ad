"""The stage that finds duplicates over shards: sketches of each, then one task that compares them.

`sketch` makes of a shard what a comparison needs; `find` holds about 300 bytes a document in memory, reads the shingle
sets of two shards at a time, and leaves for each shard the rows that go. Both follow `dedup.deduplicate` step by step,
which is their oracle.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maxtrain.corpus.dedup import DuplicatesConfig, NearConfig
from maxtrain.corpus.dedup.driver import scope_of, source_ranks
from maxtrain.corpus.dedup.exact import ExactConfig, choose_by_key, text_keys, url_keys
from maxtrain.corpus.dedup.near import (
    candidate_pairs,
    choose,
    components,
    flat_keys,
    group_pairs,
    pack_pairs,
    precedence,
    similarities,
    unpack_pairs,
)
from maxtrain.corpus.dedup.sketch import ShingleSets, Sketches, sketch
from maxtrain.corpus.shards import read_shard

RULE = "dedup"
"""Name of the stage among the rules."""
_BATCH = 512
_ARRAYS = (
    "doc_id",
    "quality",
    "source_rank",
    "scope",
    "url",
    "url_given",
    "text",
    "keys",
    "usable",
    "values",
    "offsets",
    "levels",
)
_SCHEMA = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("score", pa.float64()), ("survivor", pa.string())])


def sketch_shard(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Make the sketches of a shard.

    Args:
        arguments: `shard`; `dedup`: the recipe's section.
        work: where the shard is.
        folder: receives an array a file.
    """
    config = DuplicatesConfig.model_validate(arguments["dedup"], strict=False)
    exact, near = config.exact or ExactConfig(), config.near or NearConfig()
    columns: dict[str, list[Any]] = {name: [] for name in ("doc_id", "quality", "source")}
    urls, texts, sketches = [], [], []
    batch: list[tuple[str, str | None]] = []

    def flush() -> None:
        batch_texts = [text for text, _ in batch]
        urls.append(url_keys([url for _, url in batch]))
        texts.append(text_keys(batch_texts, exact))
        sketches.append(sketch(batch_texts, near.sketch))
        batch.clear()

    for document in read_shard(work / arguments["shard"]):
        columns["doc_id"].append(document.doc_id.encode())
        columns["quality"].append(np.nan if document.quality_score is None else document.quality_score)
        columns["source"].append(document.source)
        batch.append((document.text, document.url))
        if len(batch) == _BATCH:
            flush()
    flush()
    sets = ShingleSets.join([part.sets for part in sketches])
    arrays = (
        np.array(columns["doc_id"], "S32"),
        np.array(columns["quality"], np.float64),
        source_ranks(columns["source"], config.prefer),
        scope_of(columns["source"], config.scope),
        np.concatenate([keys for keys, _ in urls]),
        np.concatenate([given for _, given in urls]),
        np.concatenate(texts),
        np.concatenate([part.keys for part in sketches]),
        np.concatenate([part.usable for part in sketches]),
        sets.values,
        sets.offsets,
        sets.levels,
    )
    for name, array in zip(_ARRAYS, arrays, strict=True):
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    return {"documents": len(columns["doc_id"])}


class _Shards:
    """The sketches of all shards, columns joined, shingle sets left on disk."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        sizes = [len(self._array(folder, "doc_id")) for folder in folders]
        self.firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.total = sum(sizes)

    def _array(self, folder: Path, name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", allow_pickle=False, mmap_mode="r")

    def column(self, name: str) -> np.ndarray:
        """A column over all documents."""
        return np.concatenate([self._array(folder, name) for folder in self._folders])

    def sets(self, shard: int) -> ShingleSets:
        """Shingle sets of one shard."""
        return ShingleSets(*(np.array(self._array(self._folders[shard], name)) for name in _ARRAYS[-3:]))


def find(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Compare the sketches; leave for each shard the rows that go.

    Args:
        arguments: `sketches`: folders, in the order of shards; `dedup`: the recipe's section.
        work: where the folders are.
        folder: receives `00000.parquet` and on.
    """
    config = DuplicatesConfig.model_validate(arguments["dedup"], strict=False)
    shards = _Shards([work / name for name in arguments["sketches"]])
    ids = shards.column("doc_id")
    ranks = precedence(shards.column("quality"), ids, shards.column("source_rank"))
    scope = shards.column("scope")
    reasons = np.zeros(shards.total, "U5")
    survivors = np.full(shards.total, -1, np.int64)
    scores = np.ones(shards.total)

    def drop(reason: str, places: np.ndarray, kept: np.ndarray, found: np.ndarray | None = None) -> None:
        gone = places != kept
        reasons[places[gone]] = reason
        survivors[places[gone]] = kept[gone]
        if found is not None:
            scores[places[gone]] = found[gone]

    def drop_keys(reason: str, keys: np.ndarray, places: np.ndarray) -> None:
        if len(places):
            drop(reason, places, places[choose_by_key(keys, ranks[places])])

    everything = np.arange(shards.total)
    drop_keys("id", ids.view(">u8").reshape(-1, 4).astype(np.uint64), everything)
    if config.url:
        alive = np.flatnonzero(shards.column("url_given") & (reasons == ""))
        drop_keys("url", shards.column("url")[alive] ^ scope[alive, None], alive)
    if config.exact is not None:
        alive = np.flatnonzero(reasons == "")
        drop_keys("exact", shards.column("text")[alive] ^ scope[alive, None], alive)
    if config.near is not None:
        alive = np.flatnonzero(reasons == "")
        edges, found = _near_edges(shards, alive[np.argsort(ranks[alive])], scope, config.near)
        members, groups = components(edges)
        if len(members):
            greatest = np.zeros(shards.total)
            np.maximum.at(greatest, edges.ravel(), np.repeat(found, 2))
            drop("near", members, members[choose(groups, ranks[members])], greatest[members])
    counts = _write(folder, shards, ids, reasons, survivors, scores)
    return {"documents": shards.total, "dropped": counts}


def _near_edges(
    shards: _Shards, alive: np.ndarray, scope: np.ndarray, config: NearConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Verified pairs of places [edges, 2] int64 and their similarities [edges] float64.

    Args:
        shards: sketches.
        alive: places of the documents to compare, in the order of precedence, which candidates of an overfull bucket
            follow from.
        scope: of `scope_of`, of all documents.
        config: what counts as nearly equal.
    """
    sketches = Sketches(
        (shards.column("keys") ^ scope[:, None])[alive],
        shards.column("usable")[alive],
        ShingleSets(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint8)),
    )
    keys, numbers = flat_keys(sketches.keys, sketches.usable, 0)
    pairs = alive[unpack_pairs(candidate_pairs(keys, numbers, config.representatives))].reshape(-1, 2)
    packed = np.sort(pack_pairs(pairs[:, 0], pairs[:, 1]))
    edges, similar = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for first, second, group in group_pairs(packed, shards.firsts):
        inside = group - shards.firsts[[first, second]]
        sets_a = shards.sets(first)
        sets_b = sets_a if second == first else shards.sets(second)
        found = similarities(inside, sets_a, sets_b, config.threshold)
        chosen = (found > 0) & (found >= config.threshold)
        edges.append(group[chosen])
        similar.append(found[chosen])
    return np.concatenate(edges), np.concatenate(similar)


def _write(
    folder: Path, shards: _Shards, ids: np.ndarray, reasons: np.ndarray, survivors: np.ndarray, scores: np.ndarray
) -> dict[str, int]:
    """Write the rows that go, a file a shard; returns their counts by reason."""
    # A survivor of an early step may go in a later one: the last one of the chain is named.
    last = survivors.copy()
    while (open_ := np.flatnonzero((last >= 0) & (survivors[last] >= 0))).size:
        last[open_] = survivors[last[open_]]
    bounds = [*shards.firsts.tolist(), shards.total]
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        places = first + np.flatnonzero(reasons[first:stop] != "")
        table = pa.table(
            {
                "row": places - first,
                "reason": reasons[places].tolist(),
                "score": scores[places],
                "survivor": [ids[place].decode() for place in last[places]],
            },
            schema=_SCHEMA,
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", compression="zstd")
    names, counts = np.unique(reasons[reasons != ""], return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def read_removals(path: Path) -> dict[int, tuple[str, float, str]]:
    """Reason, score and survivor of each row of a shard that goes."""
    table = pq.read_table(path, use_threads=False).to_pydict()
    told = zip(table["reason"], table["score"], table["survivor"], strict=True)
    return dict(zip(table["row"], told, strict=True))
