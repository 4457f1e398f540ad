"""Near-duplicates: sketches, candidates, verification, clusters."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.corpus.dedup.config import NearConfig
from maxtrain.corpus.dedup.driver import near_edges
from maxtrain.corpus.dedup.near import (
    candidate_pairs,
    choose,
    components,
    flat_keys,
    group_pairs,
    pack_pairs,
    partition_of,
    precedence,
    similarities,
    unpack_pairs,
)
from maxtrain.corpus.dedup.sketch import PIECE, SketchConfig, _functions, _minhash, sketch

CONFIG = SketchConfig()
CODE = {"javascript", "go", "c++", "rust", "lisp", "python", "perl", "typescript"}


def words(count, seed=0):
    return " ".join(f"w{number}" for number in np.random.default_rng(seed).integers(0, 10**9, count))


def jaccard(a, b, size=5):
    grams = [{tuple(part[at : at + size]) for at in range(len(part) - size + 1)} for part in (a, b)]
    return len(grams[0] & grams[1]) / len(grams[0] | grams[1])


def similarity(a, b, config=CONFIG):
    sets = sketch([a, b], config).sets
    return similarities(np.array([[0, 1]]), sets, sets)[0]


def test_labelled_pairs(rows):
    documents, pairs = rows("dedup/docs.jsonl.zst"), rows("dedup/pairs.jsonl")
    place = {document["id"]: number for number, document in enumerate(documents)}
    edges, _ = near_edges([row["text"] for row in documents], np.zeros(len(documents), np.uint64), NearConfig())
    members, groups = components(edges)
    cluster = np.arange(len(documents))
    cluster[members] = groups
    merged = np.array([cluster[place[pair["a"]]] == cluster[place[pair["b"]]] for pair in pairs])
    truth = np.array([pair["j_w5"] for pair in pairs])
    langs = np.array([pair["lang"] for pair in pairs])
    assert merged[truth >= 0.8].mean() >= 0.99
    assert merged[truth < 0.5].mean() <= 0.001
    for lang, least in (("en", 0.99), ("zh", 0.99), ("zh-Hant", 0.99), ("javascript", 0.99), ("ko", 0.97)):
        assert merged[(truth >= 0.8) & (langs == lang)].mean() >= least, lang
        assert merged[(truth < 0.5) & (langs == lang)].mean() <= 0.001, lang


@pytest.mark.parametrize("lang", ["ja", "zh", "en", "ru", "ar"])
def test_recall_by_language(shared, rows, lang):
    # Edits that leave a Jaccard similarity of about .85, made here in each language alike.
    texts = [row["text"][:3000] for row in rows("corpora/multilingual.jsonl.zst") if row["lang"] == lang]
    if lang in ("zh", "en"):
        texts += [row["text"][:3000] for row in rows(f"corpora/web_{lang}.jsonl.zst")]
    texts = [text for text in texts if len(text) > 1000][:150]
    assert len(texts) >= 10
    random = np.random.default_rng(5)
    pairs = []
    for text in texts:
        spaced = lang in ("en", "ru", "ar")
        pieces = text.split() if spaced else [character for character in text if not character.isspace()]
        edited = list(pieces)
        for at in random.choice(len(pieces), max(1, len(pieces) // 75), replace=False):
            edited[at] = "zqx" if spaced else "龘"
        pairs += [text, (" " if spaced else "").join(edited)]
    found = sketch(pairs, CONFIG)
    numbers = np.arange(len(pairs)).reshape(-1, 2)
    alike = similarities(numbers, found.sets, found.sets)
    candidates = candidate_pairs(*flat_keys(found.keys, found.usable, 0))
    near = alike >= 0.8
    assert near.sum() >= 8
    assert np.isin(pack_pairs(numbers[:, 0], numbers[:, 1]), candidates)[near].mean() >= 0.97


def test_similarity_is_the_true_jaccard():
    a = words(400)
    b = " ".join(a.split()[:300] + words(100, 1).split())
    assert similarity(a, b) == pytest.approx(jaccard(a.split(), b.split()))
    a, b = "天地玄黄宇宙洪荒日月盈昃辰宿列张", "天地玄黄宇宙洪荒日月盈仄辰宿列张"
    assert similarity(a, b) == pytest.approx(jaccard(a, b))


def test_form_does_not_matter():
    text = "The Café opened: its menu, “small” but good, was read by every ΣΊΣΥΦΟΣ of the town."
    other = "the cafe\u0301 OPENED -- its menu small but good\n\nwas READ by every σίσυφος of the town"
    assert similarity(text, other) == 1
    assert similarity("カタカナは半角でも同じ言葉です", "ｶﾀｶﾅは半角でも 同じ\n言葉です") == 1


def test_punctuation_of_scripts_without_spaces_is_an_option():
    a, b = "云移雉尾开宫扇，日绕龙鳞识圣颜。一卧沧江惊岁晚", "云移雉尾开宫扇,日绕龙鳞识圣颜.一卧沧江惊岁晚"
    assert similarity(a, b) < 0.8
    assert similarity(a, b, SketchConfig(punctuation=False)) == 1


def test_minhash_estimates_jaccard():
    factors, addends = _functions(2000)
    errors = []
    for seed in range(8):
        a = words(300, seed)
        b = " ".join(a.split()[: 60 + 30 * seed] + words(240 - 30 * seed, seed + 50).split())
        sets = sketch([a, b], CONFIG).sets
        keys = np.zeros((2, 2000), np.uint64)
        for at in range(2):
            _minhash(sets.values[sets.offsets[at] : sets.offsets[at + 1]], factors, addends, 1, keys[at])
        errors.append((keys[0] == keys[1]).mean() - similarities(np.array([[0, 1]]), sets, sets)[0])
    assert np.abs(errors).max() < 0.05
    assert abs(np.mean(errors)) < 0.015


def test_a_sketch_follows_from_its_text_alone():
    texts = [words(50, seed) for seed in range(5)] + ["", "short", "三个字"]
    together, alone = sketch(texts, CONFIG), [sketch([text], CONFIG) for text in texts]
    assert (together.keys == np.concatenate([one.keys for one in alone])).all()
    assert together.usable.tolist() == [True] * 5 + [False] * 3
    # Pinned: an index written by one version is read by the next; a change needs another index.VERSION.
    assert hex(sketch(["one two three four five six seven eight nine ten"], CONFIG).keys[0, 0]) == "0xd0ef9b19068213bd"


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text(text):
    found = sketch([text, text + "\x00"], CONFIG)
    assert found.sets.offsets[-1] == len(found.sets.values)
    for number in range(2):
        part = found.sets.values[found.sets.offsets[number] : found.sets.offsets[number + 1]]
        assert (part[1:] > part[:-1]).all()


def test_huge_text_in_bounded_memory():
    text = "".join(chr(0x4E00 + number) for number in np.random.default_rng(1).integers(0, 20000, 5 * PIECE))
    tracemalloc.start()
    found = sketch([text, text[: -PIECE // 4]], CONFIG)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sets.levels.tolist() == [3, 3]
    assert len(found.sets.values) < 2 * PIECE
    assert peak < 14 * len(text)
    # A prefix's similarity is its length; a shorter text is compared at the longer one's level.
    assert similarities(np.array([[0, 1]]), found.sets, found.sets)[0] == pytest.approx(0.95, abs=0.01)
    whole = sketch([text[:PIECE]], CONFIG).sets
    assert whole.levels[0] == 0
    assert similarities(np.array([[0, 0]]), whole, found.sets)[0] == pytest.approx(0.2, abs=0.01)


def test_reduced_sets_keep_the_similarity():
    a = words(20000)
    b = " ".join(a.split()[:18000] + words(2000, 1).split())
    sets = sketch([a, b, "one two three four five six"], CONFIG).sets
    small = sets.reduced(1024)
    assert (np.diff(small.offsets) <= 1024).all()
    assert np.diff(small.offsets)[2] == 2
    exact = similarities(np.array([[0, 1]]), sets, sets)[0]
    assert similarities(np.array([[0, 1]]), small, small)[0] == pytest.approx(exact, abs=0.05)
    assert similarities(np.array([[0, 1]]), sets, small)[0] == pytest.approx(exact, abs=0.05)


def test_least_stops_early_and_changes_nothing():
    texts = [words(200)] + [" ".join(words(200).split()[:at] + words(200 - at, at).split()) for at in range(0, 200, 5)]
    sets = sketch(texts, CONFIG).sets
    pairs = np.array([(0, at) for at in range(1, len(texts))])
    every = similarities(pairs, sets, sets)
    for least in (0.2, 0.5, 0.8, 1.0):
        assert (similarities(pairs, sets, sets, least) == np.where(every >= least, every, 0)).all()


def test_partitions_and_shards_give_the_same_pairs():
    random = np.random.default_rng(2)
    keys = random.integers(0, 2**64, 300, dtype=np.uint64)[random.integers(0, 300, 3000)]
    documents = random.integers(0, 500, 3000)
    whole = candidate_pairs(keys, documents)
    parts = [
        candidate_pairs(keys[partition_of(keys, 7) == part], documents[partition_of(keys, 7) == part])
        for part in range(7)
    ]
    assert (np.unique(np.concatenate(parts)) == whole).all()
    order = random.permutation(3000)
    assert (candidate_pairs(keys[order], documents[order]) == whole).all()
    firsts = np.array([0, 100, 350])
    grouped = list(group_pairs(whole, firsts))
    assert len({(a, b) for a, b, _ in grouped}) == len(grouped)
    for a, b, pairs in grouped:
        assert (np.searchsorted(firsts, pairs, side="right") - 1 == [a, b]).all()
    together = np.concatenate([pairs for _, _, pairs in grouped])
    assert (np.unique(pack_pairs(together[:, 0], together[:, 1])) == whole).all()


def test_overfull_bucket_is_bounded_and_connected():
    documents = np.arange(5000)
    pairs = unpack_pairs(candidate_pairs(np.full(5000, 7, np.uint64), documents, 4))
    assert len(pairs) < 5000 * 8
    members, groups = components(pairs)
    assert (members == documents).all()
    assert (groups == 0).all()
    assert len(candidate_pairs(np.full(9, 7, np.uint64), np.arange(9), 4)) == 36


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40), st.randoms())
def test_components(edges, random):
    members, groups = components(np.array(edges, np.int64).reshape(-1, 2))
    random.shuffle(edges)
    again = components(np.array(edges, np.int64).reshape(-1, 2))
    assert (members == again[0]).all()
    assert (groups == again[1]).all()
    label = {number: {number} for pair in edges for number in pair}
    for a, b in edges:
        joined = label[a] | label[b]
        for number in joined:
            label[number] = joined
    assert groups.tolist() == [min(label[number]) for number in members.tolist()]


def test_the_kept_document():
    quality = np.array([0.5, 0.9, 0.9, np.nan])
    ids = np.array(["a", "c", "b", "0"])
    assert precedence(quality, ids).tolist() == [2, 1, 0, 3]
    assert precedence(quality, ids, np.array([0, 1, 1, 0])).tolist() == [0, 3, 2, 1]
    assert choose(np.array([5, 5, 9, 5]), precedence(quality, ids)).tolist() == [1, 1, 2, 1]
    assert choose(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
