"""Repeated paragraphs and passages."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.corpus.dedup.paragraphs import (
    ParagraphConfig,
    cut_spans,
    paragraph_keys,
    paragraph_spans,
    repeated_rows,
)
from maxtrain.corpus.dedup.substrings import (
    SubstringConfig,
    fingerprints,
    repeated_passages,
    repeated_share,
    stream_of,
)

NOTICE = "This site keeps small files on your machine so that it may know you again when you come back to read on."


def random_words(count, seed):
    return " ".join(f"{number:x}" for number in np.random.default_rng(seed).integers(10**6, 10**8, count))


def test_planted_passages_are_found(rows):
    documents = rows("dedup/substrings.jsonl.zst")
    found = repeated_passages([row["text"] for row in documents], np.arange(len(documents)), SubstringConfig())
    seen, covered = set(), []
    for row, spans in zip(documents, found, strict=True):
        if row["passage"] in seen:
            inside = np.zeros(len(row["text"]), bool)
            for start, stop in spans:
                inside[start:stop] = True
            covered.append(inside[row["start"] : row["end"]].mean() >= 0.9)
        seen.add(row["passage"])
    assert len(covered) > 100
    assert np.mean(covered) >= 0.98


@pytest.mark.parametrize("length", [75, 76, 90, 150, 1000])
def test_a_passage_of_the_least_length_is_always_found(length):
    for seed in range(20):
        # No white space: a letter is a weight.
        common = random_words(length, seed).replace(" ", "")[:length]
        texts = [random_words(40, seed + 100) + "!" + common + "!", random_words(30, seed + 200) + "?" + common + "?"]
        spans = repeated_passages(texts, np.arange(2), SubstringConfig(min_letters=0.0))
        start = texts[1].index(common)
        assert spans == [[], [(start, start + length)]]


def test_chinese_counts_twice():
    text = "".join(chr(0x4E00 + number) for number in np.random.default_rng(3).integers(0, 9000, 200))
    texts = [text, "甲乙丙丁戊己庚辛" + text[50:88] + "子丑寅卯辰巳午未"]
    assert repeated_passages(texts, np.arange(2), SubstringConfig()) == [[], [(8, 46)]]
    assert repeated_passages(texts, np.array([1, 0]), SubstringConfig()) == [[(50, 88)], []]


def test_repeats_within_a_text():
    part = random_words(30, 1)
    text = f"{part}\n\nSomething else in between.\n\n{part}"
    ((start, stop),) = repeated_passages([text], np.zeros(1, np.int64), SubstringConfig())[0]
    assert text[start:stop].strip() == part
    assert start > len(part)
    assert repeated_share(text, [(start, stop)]) == pytest.approx(0.45, abs=0.05)


def test_rulers_are_no_passages():
    texts = [f"{seed}\n{'-' * 300}\n{random_words(20, seed)}\n{'| 0 ' * 100}" for seed in range(3)]
    assert repeated_passages(texts, np.arange(3), SubstringConfig()) == [[], [], []]


def test_runs_of_one_character_give_few_fingerprints():
    assert len(fingerprints(stream_of("a" * 100_000), SubstringConfig())[0]) < 5000


@given(st.lists(st.text(max_size=200), max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_texts(texts):
    texts = texts + [text * 3 for text in texts]
    found = repeated_passages(texts, np.arange(len(texts)), SubstringConfig(min_length=40, min_letters=0.0))
    for text, spans in zip(texts, found, strict=True):
        assert all(0 <= start < stop <= len(text) for start, stop in spans)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
        cut_spans(text, spans)
        paragraph_keys(text, ParagraphConfig(min_length=1))


def test_paragraphs_and_lines():
    text = "One\nline two\r\n\r\nSecond\r\npart\n \nThird\n"
    assert [text[a:b] for a, b in paragraph_spans(text)] == ["One\nline two", "Second\r\npart", "Third"]
    assert [text[a:b] for a, b in paragraph_spans(text, "line")] == ["One", "line two", "Second", "part", "Third"]
    assert len(paragraph_spans("")) == 0


def test_later_copies_of_paragraphs_are_cut():
    config = ParagraphConfig(min_length=40)
    opening = "Opening {}, which is only here, and is long enough to count."
    texts = [f"{opening.format(seed)}\n\n{NOTICE}\n\nEnd." for seed in range(3)]
    texts[2] = texts[2].replace(NOTICE, NOTICE.upper().replace(" ", "\n", 3))
    found = [paragraph_keys(text, config) for text in texts]
    keys = np.concatenate([keys for keys, _ in found])
    documents = np.repeat(np.arange(3), [len(keys) for keys, _ in found])
    ordinals = np.concatenate([np.arange(len(keys)) for keys, _ in found])
    cut = repeated_rows(keys, documents, ordinals, config)
    assert cut.tolist() == [False, False, False, True, False, True]
    order = np.random.default_rng(0).permutation(len(keys))
    assert (repeated_rows(keys[order], documents[order], ordinals[order], config) == cut[order]).all()
    span = found[1][1][1]
    assert cut_spans(texts[1], [tuple(span)]) == "Opening 1, which is only here, and is long enough to count.\n\nEnd."
    thrice = ParagraphConfig(min_length=40, min_count=4)
    assert not repeated_rows(keys, documents, ordinals, thrice).any()


def test_protected_paragraphs_stay():
    for text in (
        "# A heading that is quite long but a heading nevertheless, so it stays where it is\n",
        "    indented_code = call(with_some, arguments, that_repeat, over, many, files, and_more)\n",
        "Copyright 2020 the authors of this file, who may be reached at the address given below.\n",
    ):
        assert len(paragraph_keys(text, ParagraphConfig(min_length=40))[0]) == 0
        assert len(paragraph_keys(text, ParagraphConfig(min_length=40, protect=()))[0]) == 1


def test_cutting_leaves_lines_whole():
    assert cut_spans("a\n  b\n\n    c\n", [(2, 5)]) == "a\n    c\n"
    assert cut_spans("one two three", [(4, 8)]) == "one three"
    assert cut_spans("a\n\nb", [(3, 4)]) == "a"
    assert cut_spans("a", [(0, 1)]) == ""
    assert cut_spans("a b", []) == "a b"
