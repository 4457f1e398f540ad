"""Near-duplicates: candidates from band keys, verified by their true Jaccard similarity, joined to clusters.

Each function is one step of the sharded form: keys are partitioned by `partition_of`, each partition gives its
candidate pairs, pairs are grouped by the two shards that they touch, so that each pair of shards is loaded once.
"""

from collections.abc import Iterator

import numpy as np

from maxtrain.corpus.dedup.sketch import ShingleSets
from maxtrain.corpus.text.kernels import compiled

MAX_DOCUMENTS = 2**32
"""Documents that pairs can number."""


def partition_of(keys: np.ndarray, partitions: int) -> np.ndarray:
    """The partition of each key, [keys] int64; keys are hashes, so that the partitions are of like size."""
    return ((keys >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.int64)


def pack_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pairs of document numbers as sortable numbers, [pairs] uint64, the smaller first."""
    low, high = np.minimum(first, second).astype(np.uint64), np.maximum(first, second).astype(np.uint64)
    return (low << np.uint64(32)) | high


def unpack_pairs(packed: np.ndarray) -> np.ndarray:
    """The pairs, [pairs, 2] int64."""
    return np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


@compiled
def _bucket_pairs(keys: np.ndarray, documents: np.ndarray, representatives: int) -> np.ndarray:
    total = 0
    for fill in range(2):
        out = np.empty(total if fill else 0, np.uint64)
        total = 0
        start = 0
        while start < len(keys):
            stop = start + 1
            while stop < len(keys) and keys[stop] == keys[start]:
                stop += 1
            for later in range(start + 1, stop):
                for earlier in range(start, later):
                    if earlier >= start + representatives and earlier < later - representatives:
                        continue
                    if documents[earlier] != documents[later]:
                        if fill:
                            low = min(documents[earlier], documents[later])
                            high = max(documents[earlier], documents[later])
                            out[total] = (np.uint64(low) << np.uint64(32)) | np.uint64(high)
                        total += 1
            start = stop
    return out


def candidate_pairs(keys: np.ndarray, documents: np.ndarray, representatives: int = 32) -> np.ndarray:
    """Pairs of documents that share a key.

    In a bucket of more than `2 * representatives + 1` documents, which only boilerplate fills, each document is paired
    with the first `representatives` and with as many before it in the order of numbers: the pairs grow with the bucket,
    not with its square, and copies of one text still hang together by the first ones.

    Args:
        keys: band keys, [rows] uint64.
        documents: numbers of the documents, under 2^32, [rows] int64.
        representatives: see above.

    Returns:
        Distinct pairs, packed and sorted, [pairs] uint64.
    """
    order = np.lexsort((documents, keys))
    keys, documents = keys[order], documents[order]
    same = keys[1:] == keys[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    return np.unique(_bucket_pairs(keys[shared], documents[shared].astype(np.int64), representatives))


def flat_keys(keys: np.ndarray, usable: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Band keys as rows: keys [rows] uint64, document numbers [rows] int64.

    Args:
        keys: [documents, bands] uint64.
        usable: which documents take part, [documents] bool.
        first: number of the first document.
    """
    numbers = np.flatnonzero(usable)
    return keys[numbers].ravel(), np.repeat(numbers + first, keys.shape[1])


def group_pairs(pairs: np.ndarray, firsts: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Pairs by the shards that they touch: (shard, shard, pairs [pairs, 2] int64), each two shards once, in order.

    Args:
        pairs: packed, sorted.
        firsts: number of the first document of each shard, ascending, [shards] int64.
    """
    unpacked = unpack_pairs(pairs)
    shards = np.searchsorted(firsts, unpacked, side="right") - 1
    both = shards[:, 0] * len(firsts) + shards[:, 1]
    order = np.argsort(both, kind="stable")
    bounds = np.flatnonzero(np.diff(both[order])) + 1
    for part in np.split(order, bounds):
        if len(part):
            yield int(shards[part[0], 0]), int(shards[part[0], 1]), unpacked[part]


@compiled
def _similarities(
    pairs: np.ndarray,
    a_values: np.ndarray,
    a_offsets: np.ndarray,
    a_levels: np.ndarray,
    b_values: np.ndarray,
    b_offsets: np.ndarray,
    b_levels: np.ndarray,
    least: float,
) -> np.ndarray:
    out = np.zeros(len(pairs), np.float64)
    for number in range(len(pairs)):
        first, second = pairs[number, 0], pairs[number, 1]
        a, a_end = a_offsets[first], a_offsets[first + 1]
        b, b_end = b_offsets[second], b_offsets[second + 1]
        level = max(a_levels[first], b_levels[second])
        if level:
            limit = np.int64(1) << (32 - level)
            while a_end > a and a_values[a_end - 1] >= limit:
                a_end -= 1
            while b_end > b and b_values[b_end - 1] >= limit:
                b_end -= 1
        both = (a_end - a) + (b_end - b)
        # J >= t needs an intersection of t / (1 + t) of the two sizes: stop once that is out of reach.
        misses = both - 2 * least / (1 + least) * both + 1e-6
        shared = 0
        missed = 0
        while a < a_end and b < b_end and missed <= misses:
            x, y = a_values[a], b_values[b]
            shared += x == y
            missed += x != y
            a += x <= y
            b += y <= x
        if missed <= misses and both > 0:
            out[number] = shared / (both - shared)
    return out


def similarities(pairs: np.ndarray, sets_a: ShingleSets, sets_b: ShingleSets, least: float = 0.0) -> np.ndarray:
    """Jaccard similarity of pairs, [pairs] float64; 0 where it is under `least`.

    Args:
        pairs: numbers within `sets_a` and `sets_b`, [pairs, 2] int64.
        sets_a: sets of the first of each pair.
        sets_b: sets of the second.
        least: what is not of interest.
    """
    a, b = sets_a, sets_b
    found = _similarities(pairs, a.values, a.offsets, a.levels, b.values, b.offsets, b.levels, least)
    found[found < least] = 0
    return found


@compiled
def _union(parents: np.ndarray, edges: np.ndarray) -> None:
    for number in range(len(edges)):
        a, b = edges[number, 0], edges[number, 1]
        while parents[a] != a:
            parents[a] = parents[parents[a]]
            a = parents[a]
        while parents[b] != b:
            parents[b] = parents[parents[b]]
            b = parents[b]
        if a < b:
            parents[b] = a
        else:
            parents[a] = b
    for number in range(len(parents)):
        parents[number] = parents[parents[number]]


def components(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Connected components; the same whatever the order of the edges.

    Args:
        edges: pairs of document numbers, [edges, 2] int64.

    Returns:
        The documents that have an edge, ascending, and the least number of each one's component, [members] int64 each.
    """
    members, compact = np.unique(edges, return_inverse=True)
    parents = np.arange(len(members))
    _union(parents, compact.reshape(-1, 2).astype(np.int64))
    return members.astype(np.int64), members[parents].astype(np.int64)


def precedence(quality: np.ndarray, doc_ids: np.ndarray, source_rank: np.ndarray | None = None) -> np.ndarray:
    """Rank of each document, 0 for the one that is kept before all others, [documents] int64.

    Args:
        quality: quality_score, NaN where there is none, which comes last, [documents] float64.
        doc_ids: [documents] strings; they decide between equals.
        source_rank: place of the document's source in the order of preference, which comes first, [documents] int64.
    """
    worst_last = -np.where(np.isnan(quality), -1.0, quality)
    columns = [np.asarray(doc_ids), worst_last] + ([] if source_rank is None else [source_rank])
    ranks = np.empty(len(quality), np.int64)
    ranks[np.lexsort(columns)] = np.arange(len(quality))
    return ranks


def choose(groups: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Place of the document that each one's group keeps, [documents] int64; a document whose own place it is stays.

    Args:
        groups: component (or key) of each document, [documents].
        ranks: of `precedence`, over these or all documents, [documents] int64.
    """
    _, group = np.unique(groups, return_inverse=True)
    group = group.reshape(-1)
    best = np.full(group.max(initial=-1) + 1, -1, np.int64)
    order = np.lexsort((ranks, group))
    first = np.ones(len(order), np.bool_)
    first[1:] = group[order][1:] != group[order][:-1]
    best[group[order][first]] = order[first]
    return best[group]
