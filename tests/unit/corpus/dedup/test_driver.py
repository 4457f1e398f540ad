"""Deduplication as a whole, and the index for a new crawl."""

import json
import random

import numpy as np
import pytest

from maxtrain.core.errors import DataError
from maxtrain.corpus.dedup import DedupConfig, DedupIndex, NearConfig, deduplicate, write_index
from maxtrain.corpus.dedup.exact import ExactConfig, text_keys, url_keys
from maxtrain.corpus.dedup.paragraphs import ParagraphConfig
from maxtrain.corpus.dedup.sketch import SketchConfig, sketch
from maxtrain.corpus.dedup.substrings import SubstringConfig
from maxtrain.corpus.document import Document

TEXT = " ".join(f"word{number}" for number in range(300))


def document(doc_id, text, source="web", quality=None, url=None, category="web_en"):
    return Document(doc_id, text, source, "en", category, "MIT", "in", 1, url=url, quality_score=quality)


def outcome(documents, **options):
    found = deduplicate(documents, DedupConfig(**options))
    return {
        one.doc_id: None if drop is None else (drop.rule, documents[drop.survivor].doc_id)
        for one, drop in zip(documents, found.dropped, strict=True)
    }


def test_each_rule_and_the_kept_one():
    documents = [
        document("a", TEXT),
        document("b", TEXT.upper()),
        document("c", TEXT.replace("word7 ", "word "), quality=0.7),
        document("d", "Another text, on the same page.", url="http://www.example.org/x?utm_source=1"),
        document("e", "Another text, on the same page, later.", url="https://example.org/x", quality=0.1),
        document("f", ""),
        document("g", " \n"),
        document("h", "tiny"),
    ]
    expected = dict.fromkeys("cefh") | {
        "a": ("near", "c"),
        "b": ("exact", "a"),
        "d": ("url", "e"),
        "g": ("exact", "f"),
    }
    # The survivor of b was dropped in turn: the one that stays is told.
    expected["b"] = ("exact", "c")
    assert outcome(documents) == expected
    random.Random(1).shuffle(documents)
    assert outcome(documents) == expected


def test_preferred_source_and_scope():
    documents = [document("a", TEXT, "web", 0.9), document("b", TEXT + " more", "wiki", 0.2)]
    assert outcome(documents) == {"a": None, "b": ("near", "a")}
    assert outcome(documents, prefer=("wiki",)) == {"a": ("near", "b"), "b": None}
    assert outcome(documents, scope="source") == {"a": None, "b": None}


def test_cuts():
    notice = "Readers of this page should know that it was moved here from an older place and may change at any time."
    documents = [
        document("a", f"First body, which nobody else has.\n\n{notice}\n\nEnd of a."),
        document("b", f"Second body, quite another one.\n\n{notice}\n\nEnd of b."),
        document("c", f"def f():\n    '''x'''\n\n{notice}\n\nEnd of c.", category="code"),
    ]
    found = deduplicate(documents, DedupConfig(near=None, paragraphs=ParagraphConfig(min_length=40)))
    assert found.texts == [documents[0].text, "Second body, quite another one.\n\nEnd of b.", documents[2].text]
    found = deduplicate(documents, DedupConfig(near=None, substrings=SubstringConfig()))
    assert notice not in found.texts[1]
    assert notice not in found.texts[2]
    found = deduplicate(documents, DedupConfig(near=None, substrings=SubstringConfig(drop_share=0.5)))
    drop = found.dropped[1]
    assert drop is not None
    assert drop.rule == "substrings"
    assert drop.score > 0.5


def test_twice_changes_nothing(rows):
    documents = [document(row["id"], row["text"], row["source"]) for row in rows("dedup/docs.jsonl.zst")[:600]]
    config = DedupConfig(paragraphs=ParagraphConfig())
    first = deduplicate(documents, config)
    kept = [
        document(one.doc_id, text, one.source)
        for one, text, drop in zip(documents, first.texts, first.dropped, strict=True)
        if drop is None
    ]
    assert 50 < len(kept) < 400
    second = deduplicate(kept, config)
    # A cut paragraph may leave two documents nearly equal: few, and no cut is left to make.
    assert sum(drop is not None for drop in second.dropped) <= len(kept) * 0.02


@pytest.fixture
def index(tmp_path):
    texts = [TEXT, "中文网页的内容在这里，" * 3 + "它谈到许多不同的事情，包括天气、旅行与饮食。", "short"]
    urls = ["http://example.org/1", None, None]
    near, exact = NearConfig(), ExactConfig()
    write_index(
        tmp_path / "index", ["old-a", "old-b", "old-c"], text_keys(texts, exact), url_keys(urls),
        sketch(texts, near.sketch), exact, near,
    )  # fmt: skip
    return tmp_path / "index"


def test_index_of_an_old_dataset(index):
    known = DedupIndex(index, ExactConfig(), NearConfig()).check(
        [TEXT.replace("word5 ", "word "), "new page", "SHORT", "something else entirely, of nine words or so", ""],
        [None, "https://www.example.org/1/#a", None, None, None],
    )
    assert known.rules == ["near", "url", "exact", "", ""]
    assert known.doc_ids == ["old-a", "old-a", "old-c", "", ""]
    assert 0.8 < known.scores[0] < 1


def test_index_agrees_with_the_whole(rows, tmp_path):
    texts = [row["text"] for row in rows("dedup/docs.jsonl.zst")[:1200]]
    old, new = texts[::2], texts[1::2]
    near, exact = NearConfig(), ExactConfig()
    ids = [str(number) for number in range(len(old))]
    found = sketch(old, near.sketch)
    write_index(tmp_path / "i", ids, text_keys(old, exact), url_keys([None] * len(old)), found, exact, near)
    known = DedupIndex(tmp_path / "i", exact, near).check(new, [None] * len(new))
    documents = [document(f"0-{n:04}", text, quality=1.0) for n, text in enumerate(old)]
    documents += [document(f"1-{n:04}", text, quality=0.0) for n, text in enumerate(new)]
    whole = deduplicate(documents, DedupConfig()).dropped
    expected = {n for n, drop in enumerate(whole[len(old) :]) if drop is not None and drop.survivor < len(old)}
    told = {n for n, rule in enumerate(known.rules) if rule}
    # By chains of new documents the whole finds a few more.
    assert told <= expected
    assert len(told) >= 0.97 * len(expected)


def test_empty_index(tmp_path):
    near, exact = NearConfig(), ExactConfig()
    write_index(tmp_path / "i", [], text_keys([], exact), url_keys([]), sketch([], near.sketch), exact, near)
    assert DedupIndex(tmp_path / "i", exact, near).check([TEXT, ""], [None, "a.b"]).rules == ["", ""]


def test_bad_indices_are_refused(index, tmp_path):
    with pytest.raises(DataError, match="no index of duplicates"):
        DedupIndex(tmp_path / "none", ExactConfig(), NearConfig())
    with pytest.raises(DataError, match="the recipe says"):
        DedupIndex(index, ExactConfig(), NearConfig(sketch=SketchConfig(bands=4)))
    path = index / "shingles.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match="damaged"):
        DedupIndex(index, ExactConfig(), NearConfig())
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        DedupIndex(index, ExactConfig(), NearConfig())


def test_an_index_is_the_same_bytes(tmp_path):
    texts, near, exact = [TEXT, "other " * 9], NearConfig(), ExactConfig()
    manifests = [
        write_index(tmp_path / name, ["a", "b"], text_keys(texts, exact), url_keys([None, "x.y"]),
                    sketch(texts, near.sketch), exact, near)
        for name in "ab"
    ]  # fmt: skip
    assert manifests[0] == manifests[1]
    assert np.load(tmp_path / "a" / "doc_ids.npy").tolist() == [b"a", b"b"]
