"""Deduplication of documents in memory: the order of the steps in one place, and the oracle of the sharded form."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maxtrain.corpus.dedup.config import DedupConfig, NearConfig
from maxtrain.corpus.dedup.exact import choose_by_key, text_keys, url_keys
from maxtrain.corpus.dedup.near import (
    candidate_pairs,
    choose,
    components,
    flat_keys,
    precedence,
    similarities,
    unpack_pairs,
)
from maxtrain.corpus.dedup.paragraphs import ParagraphConfig, cut_spans, paragraph_keys, repeated_rows
from maxtrain.corpus.dedup.sketch import sketch
from maxtrain.corpus.dedup.substrings import SubstringConfig, repeated_passages, repeated_share
from maxtrain.corpus.document import Document


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Why a document is left out.

    Attributes:
        rule: url, exact, near or substrings.
        survivor: place of the document that stays instead; -1 where passages of several stay.
        score: similarity or share that made it so; for near-duplicates the greatest to one of its cluster.
    """

    rule: str
    survivor: int
    score: float


@dataclass(frozen=True)
class Deduplicated:
    """What becomes of documents.

    Attributes:
        dropped: why each is left out, None for those that stay.
        texts: what is left of each document's text.
        paragraphs: spans that were cut as repeated paragraphs, of each document, in its original text.
        passages: spans that were cut as repeated passages, in what the cut paragraphs had left.
    """

    dropped: list[Duplicate | None]
    texts: list[str]
    paragraphs: list[list[tuple[int, int]]]
    passages: list[list[tuple[int, int]]]


def source_ranks(sources: Sequence[str], prefer: Sequence[str]) -> np.ndarray:
    """Place of each document's source in the order of preference, [documents] int64."""
    places = {source: place for place, source in reversed(list(enumerate(prefer)))}
    return np.array([places.get(source, len(prefer)) for source in sources], np.int64)


def scope_of(sources: Sequence[str], scope: str) -> np.ndarray:
    """What keys are mixed with (`keys ^ scope`), so that only documents of one scope meet, [documents] uint64."""
    if scope == "all":
        return np.zeros(len(sources), np.uint64)
    known = {source: int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "little") for source in set(sources)}
    return np.array([known[source] for source in sources], np.uint64)


def near_edges(texts: Sequence[str], scope: np.ndarray, config: NearConfig) -> tuple[np.ndarray, np.ndarray]:
    """Verified pairs of near-duplicates: places [edges, 2] int64 and similarities [edges] float64."""
    sketches = sketch(texts, config.sketch)
    keys, numbers = flat_keys(sketches.keys ^ scope[:, None], sketches.usable, 0)
    pairs = unpack_pairs(candidate_pairs(keys, numbers, config.representatives))
    found = similarities(pairs, sketches.sets, sketches.sets, config.threshold)
    chosen = (found > 0) & (found >= config.threshold)
    return pairs[chosen], found[chosen]


class _State:
    def __init__(self, documents: Sequence[Document], config: DedupConfig) -> None:
        self.texts = [document.text for document in documents]
        self.dropped: list[Duplicate | None] = [None] * len(documents)
        sources = [document.source for document in documents]
        quality = [np.nan if document.quality_score is None else document.quality_score for document in documents]
        self.scope = scope_of(sources, config.scope)
        self.ranks = precedence(
            np.array(quality, np.float64),
            np.array([document.doc_id for document in documents], np.str_),
            source_ranks(sources, config.prefer),
        )

    @property
    def alive(self) -> np.ndarray:
        """Places of the documents that are not dropped, [alive] int64."""
        return np.array([place for place, drop in enumerate(self.dropped) if drop is None], np.int64)

    def drop(self, rule: str, places: np.ndarray, survivors: np.ndarray, scores: np.ndarray) -> None:
        """Drop those of the places whose survivor is another one."""
        for place, survivor, score in zip(places.tolist(), survivors.tolist(), scores.tolist(), strict=True):
            if place != survivor:
                self.dropped[place] = Duplicate(rule, survivor, score)

    def drop_keys(self, rule: str, keys: np.ndarray, places: np.ndarray) -> None:
        """Drop all but one document of each key."""
        if len(places):
            survivors = places[choose_by_key(keys ^ self.scope[places, None], self.ranks[places])]
            self.drop(rule, places, survivors, np.ones(len(places)))


def deduplicate(documents: Sequence[Document], config: DedupConfig) -> Deduplicated:
    """Find duplicates among documents, all in memory.

    Args:
        documents: their ids are distinct; the result doesn't depend on their order.
        config: what counts as a duplicate.
    """
    state = _State(documents, config)
    if config.url:
        keys, given = url_keys([document.url for document in documents])
        state.drop_keys("url", keys[given], np.flatnonzero(given))
    if config.exact is not None:
        alive = state.alive
        state.drop_keys("exact", text_keys([state.texts[place] for place in alive], config.exact), alive)
    if config.near is not None:
        _drop_near(state, config.near)
    paragraphs = _cut_paragraphs(state, documents, config.paragraphs) if config.paragraphs else [[] for _ in documents]
    passages = _cut_passages(state, config.substrings) if config.substrings else [[] for _ in documents]
    for place, drop in enumerate(state.dropped):
        survivor = -1 if drop is None else drop.survivor
        while survivor >= 0 and (later := state.dropped[survivor]) is not None and later.survivor >= 0:
            survivor = later.survivor
        if drop is not None:
            state.dropped[place] = Duplicate(drop.rule, survivor, drop.score)
    return Deduplicated(state.dropped, state.texts, paragraphs, passages)


def _drop_near(state: _State, config: NearConfig) -> None:
    # Candidates of an overfull bucket follow from the order of numbers, so numbers are precedence.
    alive = state.alive[np.argsort(state.ranks[state.alive])]
    edges, found = near_edges([state.texts[place] for place in alive], state.scope[alive], config)
    members, groups = components(edges)
    greatest = np.zeros(len(alive))
    np.maximum.at(greatest, edges.ravel(), np.repeat(found, 2))
    survivors = members[choose(groups, state.ranks[alive[members]])] if len(members) else members
    state.drop("near", alive[members], alive[survivors], greatest[members])


def _cut_paragraphs(
    state: _State, documents: Sequence[Document], config: ParagraphConfig
) -> list[list[tuple[int, int]]]:
    cut: list[list[tuple[int, int]]] = [[] for _ in documents]
    alive = [place for place in state.alive.tolist() if not ("code" in config.protect and documents[place].is_code)]
    found = [paragraph_keys(state.texts[place], config) for place in alive]
    counts = [len(keys) for keys, _ in found]
    places = np.repeat(np.array(alive, np.int64), counts)
    keys = np.concatenate([keys for keys, _ in found] + [np.zeros(0, np.uint64)]) ^ state.scope[places]
    ordinals = np.concatenate([np.arange(count) for count in counts] + [np.zeros(0, np.int64)])
    rows = repeated_rows(keys, state.ranks[places], ordinals, config)
    spans = np.concatenate([spans for _, spans in found] + [np.zeros((0, 2), np.int32)])
    for place, (start, stop) in zip(places[rows].tolist(), spans[rows].tolist(), strict=True):
        cut[place].append((start, stop))
    for place in alive:
        if cut[place]:
            state.texts[place] = cut_spans(state.texts[place], cut[place])
    return cut


def _cut_passages(state: _State, config: SubstringConfig) -> list[list[tuple[int, int]]]:
    cut: list[list[tuple[int, int]]] = [[] for _ in state.texts]
    alive = state.alive
    for scope in np.unique(state.scope[alive]):
        places = alive[state.scope[alive] == scope]
        found = repeated_passages([state.texts[place] for place in places], state.ranks[places], config)
        for place, spans in zip(places.tolist(), found, strict=True):
            cut[place] = spans
            share = repeated_share(state.texts[place], spans)
            if share > config.drop_share:
                state.dropped[place] = Duplicate("substrings", -1, share)
            else:
                state.texts[place] = cut_spans(state.texts[place], spans)
    return cut
