import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.loader.best_fit import BestFitOrder, best_fit_decreasing
from maxtrain.loader.stream import DomainStream


def plain_best_fit(lengths, capacity):
    """Used room of each row by the textbook loop."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [index for index, room in enumerate(free) if room >= length]
        if fitting:
            free[min(fitting, key=lambda index: free[index])] -= length
        else:
            free.append(capacity - length)
    return sorted(capacity - room for room in free)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 40))
def test_equals_the_textbook_loop(data, capacity):
    lengths = np.array(data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=60)))
    row = best_fit_decreasing(lengths, capacity)
    used = np.bincount(row, weights=lengths)
    assert sorted(used.astype(int).tolist()) == plain_best_fit(lengths.tolist(), capacity)
    assert np.array_equal(best_fit_decreasing(lengths, capacity), row)


def test_packs_tightly():
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, 20_000).astype(int), 1, 2048)
    rows = int(best_fit_decreasing(lengths, 2048).max()) + 1
    assert lengths.sum() / (rows * 2048) > 0.98


@pytest.fixture
def stream(make_dataset, domain):
    dataset = make_dataset([{"length": 3 + i % 40} for i in range(50)])
    return DomainStream.select(dataset, domain().filter, "all")


def test_short_documents_are_never_split(stream):
    order = BestFitOrder(stream, seed=0, sequence_length=16)
    pieces = order.pieces(np.arange(order.rows_per_epoch))
    whole = stream.dataset.documents.num_tokens[pieces.document]
    length = pieces.stop - pieces.start
    assert (length[whole <= 16] == whole[whole <= 16]).all()
    assert ((length == 16) | (pieces.stop == whole)).all()  # full rows and one rest


def test_index_is_cached_and_rebuilt_when_damaged(stream, tmp_path, caplog, monkeypatch):
    built = []

    def counted(lengths, capacity):
        built.append(capacity)
        return best_fit_decreasing(lengths, capacity)

    monkeypatch.setattr("maxtrain.loader.best_fit.best_fit_decreasing", counted)
    first = BestFitOrder(stream, seed=0, sequence_length=16)
    again = BestFitOrder(stream, seed=0, sequence_length=16)
    assert len(built) == 1
    assert again.index_sha256 == first.index_sha256
    other = BestFitOrder(stream, seed=0, sequence_length=32)
    assert len(built) == 2
    assert other.index_sha256 != first.index_sha256

    damaged = 0
    for path in (tmp_path / "cache" / "packing").glob("*/stop.npy"):
        data = bytearray(path.read_bytes())
        data[-8] ^= 1
        path.write_bytes(data)
        damaged += 1
    assert damaged == 2
    with caplog.at_level(logging.WARNING):
        repaired = BestFitOrder(stream, seed=0, sequence_length=16)
    assert len(built) == 3
    assert "damaged, built anew" in caplog.text
    assert repaired.index_sha256 == first.index_sha256
    caplog.clear()
    BestFitOrder(stream, seed=0, sequence_length=16)
    assert len(built) == 3
    assert not caplog.records


def test_a_cache_that_cannot_be_written_is_told_and_done_without(stream, tmp_path, caplog, monkeypatch):
    expected = BestFitOrder(stream, seed=0, sequence_length=16)
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("MAXTRAIN_CACHE", str(blocked / "cache"))
    with caplog.at_level(logging.WARNING):
        order = BestFitOrder(stream, seed=0, sequence_length=16)
    assert "cannot be written" in caplog.text
    assert order.index_sha256 == expected.index_sha256
