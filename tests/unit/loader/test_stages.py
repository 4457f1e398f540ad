"""Cursors across stages: nothing is read twice before an epoch ends."""

import numpy as np
import pytest

from maxtrain.core.errors import DataError


def starts_read(loader, rows, source=None):
    """(document, offset) of every token read, in order."""
    return [
        (piece.document, piece.start_in_document + offset)
        for row in rows
        for piece in loader.trace(row)
        if source is None or piece.source == source
        for offset in range(piece.num_tokens)
    ]


def docs(num=200, length=24):
    return [{"length": length + i % 7, "source": "ab"[i % 2]} for i in range(num)]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_new_weights_repeat_nothing_before_the_epoch_ends(make_dataset, make_loader, domain, packing):
    dataset = make_dataset(docs())
    mixtures = [
        {name: domain(weight, source=name, packing=packing) for name, weight in weights.items()}
        for weights in ({"a": 0.7, "b": 0.3}, {"a": 0.2, "b": 0.8}, {"b": 0.5, "a": 0.5})
    ]
    loader = make_loader(*((dataset, mixture, 16, [(5, 8)]) for mixture in mixtures), block_tokens=64)
    assert loader.domains == ("a", "b")
    for source in "ab":
        read = starts_read(loader, range(120), source)
        assert len(read) == len(set(read))
    assert all(use.is_fresh == (use.stage == "stage0") for use in loader.usage())


def test_a_stage_boundary_drops_only_the_counted_remainder(make_dataset, make_loader, domain):
    dataset = make_dataset(docs())
    mixture = {"all": domain()}
    # Blocks of four rows; the first stage ends inside its second block.
    loader = make_loader((dataset, mixture, 16, [(5, 1)]), (dataset, mixture, 16, [(300, 1)]), block_tokens=64)
    whole = make_loader((dataset, mixture, 16, [(305, 1)]), block_tokens=64)
    first, second = loader.usage()
    assert (first.remainder_tokens, second.is_fresh) == (3 * 16, False)
    for row in range(5, 290):
        assert loader.trace(row) == whole.trace(row + 3)
    assert loader.epochs(5)["all"] == pytest.approx(5 / first.rows_per_epoch)
    assert loader.epochs(305)["all"] == pytest.approx(308 / first.rows_per_epoch)


def test_a_longer_sequence_continues_the_domain(make_dataset, make_loader, domain):
    dataset = make_dataset(docs())
    loader = make_loader(
        (dataset, {"all": domain()}, 16, [(30, 1)]),
        (dataset, {"all": domain()}, 64, [(20, 1)]),
        (dataset, {"all": domain()}, 32, [(20, 1)]),
        block_tokens=64,
    )
    read = starts_read(loader, range(70))
    assert len(read) == len(set(read))
    assert loader.batch(40)["tokens"].shape == (1, 64)


def test_a_cursor_passes_epochs_and_the_partial_block(make_dataset, make_loader, domain):
    # 130 tokens: three blocks of 64 tokens, the last with one row of 16 instead of four.
    dataset = make_dataset([{"length": 13}] * 10)
    mixture = {"all": domain()}
    for rows in range(1, 30):
        loader = make_loader((dataset, mixture, 16, [(rows, 1)]), (dataset, mixture, 16, [(40, 1)]), block_tokens=64)
        left_out = loader.usage()[0].remainder_tokens // 16
        whole = make_loader((dataset, mixture, 16, [(rows + left_out + 40, 1)]), block_tokens=64)
        assert loader.usage()[0].rows_per_epoch == 9
        assert left_out < 4
        for row in range(rows, rows + 40):
            assert loader.trace(row) == whole.trace(row + left_out)


def test_equal_filters_are_one_stream_under_any_name(make_dataset, make_loader, domain):
    dataset = make_dataset(docs())
    loader = make_loader(
        (dataset, {"old": domain(source=("a", "b"))}, 16, [(40, 1)]),
        (dataset, {"new": domain(source=("b", "a", "a"), split=("train",))}, 16, [(40, 1)]),
    )
    read = starts_read(loader, range(80))
    assert len(read) == len(set(read))


def test_another_dataset_filter_or_packing_starts_afresh(make_dataset, make_loader, domain):
    old, new = make_dataset(docs()), make_dataset(docs(250), tag="new")
    loader = make_loader(
        (old, {"all": domain(), "a": domain(source="a", packing="best_fit")}, 16, [(20, 2)]),
        (new, {"all": domain()}, 16, [(10, 2)]),
        (old, {"all": domain(), "a": domain(source="a")}, 16, [(10, 2)]),
        (old, {"all": domain()}, 8, [(10, 2)]),
    )
    fresh = [(use.stage, use.domain, use.is_fresh) for use in loader.usage()]
    assert fresh == [
        ("stage0", "all", True),
        ("stage0", "a", True),
        ("stage1", "all", True),
        ("stage2", "all", False),
        ("stage2", "a", True),
        ("stage3", "all", False),
    ]
    assert loader.trace(41)[0].dataset is new
    alone = make_loader((new, {"all": domain()}, 16, [(10, 2)]))
    assert all(np.array_equal(loader.batch(20 + i)["tokens"], alone.batch(i)["tokens"]) for i in range(10))


def test_best_fit_at_another_length_is_another_order(make_dataset, make_loader, domain):
    dataset = make_dataset(docs())
    mixture = {"all": domain(packing="best_fit")}
    loader = make_loader(*((dataset, mixture, length, [(10, 2)]) for length in (16, 32, 16)))
    assert [use.is_fresh for use in loader.usage()] == [True, True, False]
    whole = make_loader((dataset, mixture, 16, [(20, 2)]))
    assert all(np.array_equal(loader.batch(20 + i)["tokens"], whole.batch(10 + i)["tokens"]) for i in range(10))


def test_shares_hold_over_every_prefix_of_every_stage(make_dataset, make_loader, domain):
    dataset = make_dataset(docs())
    shares = [{"a": 0.7, "b": 0.3}, {"a": 0.15, "b": 0.85}]
    loader = make_loader(
        *(
            (dataset, {name: domain(weight, source=name) for name, weight in share.items()}, 16, [(10, 3), (10, 6)])
            for share in shares
        )
    )
    domains = np.concatenate([loader.batch(step)["domain"] for step in range(40)])
    for stage, share in enumerate(shares):
        part = domains[stage * 90 : (stage + 1) * 90]
        for index, name in enumerate(loader.domains):
            assert np.abs(np.cumsum(part == index) - share[name] * np.arange(1, 91)).max() < 1


def test_stages_with_different_tokenizers_are_refused(make_dataset, make_loader, domain):
    one, other = make_dataset(docs()), make_dataset(docs(), model=b"another model")
    with pytest.raises(DataError, match=r"dataset2: its tokenizer .* is not that of .*dataset1"):
        make_loader((one, {"all": domain()}, 16, [(2, 2)]), (other, {"all": domain()}, 16, [(2, 2)]))


def test_usage_counts_what_a_stage_reads(make_dataset, make_loader, domain):
    dataset = make_dataset([{"length": 10, "source": "a"}] * 5 + [{"length": 40, "source": "b"}])
    mixture = {"a": domain(0.75, source="a", packing="best_fit"), "b": domain(0.25, source="b")}
    a, b = make_loader((dataset, mixture, 16, [(4, 2)])).usage()
    assert (a.documents, a.tokens, a.rows, a.rows_per_epoch, a.padding_tokens, a.splits) == (5, 50, 6, 5, 30, 0)
    assert (b.documents, b.tokens, b.rows, b.rows_per_epoch, b.padding_tokens, b.splits) == (1, 40, 2, 3, 8, 2)
    assert (a.share, b.share) == (0.75, 0.25)
    assert (a.epochs, b.epochs) == (6 / 5, 2 / 3)
