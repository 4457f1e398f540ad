"""The laws of the data, held against plain loops over the documents."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxtrain.core.errors import DataError, UserError
from maxtrain.loader import Batch, Loader, compare_fingerprints
from maxtrain.loader.prefetch import prefetch_items

FIELDS = ("tokens", "targets", "weights", "segment_ids", "positions")


def mixed_docs(num: int = 60, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    sources = ["web", "code", "books"]
    return [{"length": int(rng.integers(3, 90)), "source": sources[i % 3]} for i in range(num)]


def read_documents(loader, rows):
    """Tokens by document as the rows hold them: {document: {offset in document: token}}, each place once."""
    seen: dict[int, dict[int, int]] = {}
    for row in rows:
        batch = loader.rows(np.array([row]))
        for piece in loader.trace(row):
            for offset in range(piece.num_tokens):
                place = piece.start_in_document + offset
                held = seen.setdefault(piece.document, {})
                assert place not in held, f"token {place} of document {piece.document} comes twice"
                held[place] = int(batch["tokens"][0, piece.start_in_row + offset])
    return seen


def assert_is_whole_stream(dataset, seen, documents):
    assert sorted(seen) == documents.tolist()
    for document in documents.tolist():
        expected = dataset.tokens(document).tolist()
        assert [seen[document][place] for place in range(len(expected))] == expected
        assert len(seen[document]) == len(expected)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize(("length", "block"), [(16, 16), (16, 64), (48, 48), (128, 1024)])
def test_an_epoch_holds_every_token_once(make_dataset, make_loader, domain, packing, length, block):
    dataset = make_dataset(mixed_docs())
    mixture = {"web": domain(packing=packing, source="web")}
    loader = make_loader((dataset, mixture, length, [(400, 1)]), block_tokens=block)
    use = loader.usage()[0]
    for epoch in range(2):
        rows = range(epoch * use.rows_per_epoch, (epoch + 1) * use.rows_per_epoch)
        seen = read_documents(loader, rows)
        assert_is_whole_stream(dataset, seen, dataset.select(mixture["web"].filter))
        padding = sum(int((loader.rows(np.array([row]))["segment_ids"] == 0).sum()) for row in rows)
        assert padding == use.padding_tokens
        assert min(len(loader.trace(row)) for row in rows) > 0  # no row is all padding


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 70), min_size=1, max_size=12),
    length=st.sampled_from([4, 8, 24]),
    slices=st.integers(1, 5),
    packing=st.sampled_from(["concat", "best_fit"]),
    cross=st.booleans(),
)
def test_rows_equal_a_loop_over_their_pieces(
    make_dataset, make_loader, domain, lengths, length, slices, packing, cross
):
    dataset = make_dataset([{"length": number} for number in lengths])
    loader = make_loader(
        (dataset, {"all": domain(packing=packing)}, length, [(7, 3)]),
        block_tokens=length * slices,
        cross_document_attention=cross,
    )
    batch = loader.rows(np.arange(21))
    for row in range(21):
        expected = {name: [0] * length for name in FIELDS}
        pieces = loader.trace(row)
        for number, piece in enumerate(pieces):
            document = dataset.tokens(piece.document).tolist()
            is_last = number == len(pieces) - 1
            for offset in range(piece.num_tokens):
                at, place = piece.start_in_row + offset, piece.start_in_document + offset
                expected["tokens"][at] = document[place]
                expected["segment_ids"][at] = 1 if cross else number + 1
                expected["positions"][at] = at if cross else offset
                has_next_in_row = at + 1 < piece.stop_in_row or (cross and not is_last)
                expected["weights"][at] = int(place + 1 < len(document) or has_next_in_row)
        for name in ("tokens", "segment_ids", "positions", "weights"):
            assert batch[name][row].tolist() == expected[name], name
        for piece in pieces:
            document = dataset.tokens(piece.document).tolist()
            for offset in range(piece.num_tokens):
                place = piece.start_in_document + offset
                if place + 1 < len(document):
                    assert batch["targets"][row, piece.start_in_row + offset] == document[place + 1]
        if cross:
            inside = batch["weights"][row, :-1] == 1
            assert np.array_equal(batch["targets"][row, :-1][inside], batch["tokens"][row, 1:][inside])


def test_shapes_and_dtypes(make_dataset, make_loader, domain):
    loader = make_loader((make_dataset(mixed_docs()), {"all": domain()}, 16, [(3, 4)]))
    batch = loader.batch(1)
    assert {name: (field.shape, field.dtype.name) for name, field in batch.items()} == {
        "tokens": ((4, 16), "int32"),
        "targets": ((4, 16), "int32"),
        "segment_ids": ((4, 16), "int32"),
        "positions": ((4, 16), "int32"),
        "weights": ((4, 16), "float32"),
        "domain": ((4,), "int32"),
    }


def test_a_document_longer_than_the_row_goes_on_in_other_rows(make_dataset, make_loader, domain):
    dataset = make_dataset([{"length": 100}, {"length": 5}])
    for packing in ("concat", "best_fit"):
        loader = make_loader((dataset, {"all": domain(packing=packing)}, 16, [(7, 1)]))
        targets = sum(float(loader.batch(step)["weights"].sum()) for step in range(7))
        assert targets == 99 + 4  # every token but the first of each document is a target, across rows too
        assert loader.usage()[0].splits == 6


def test_row_alone_equals_row_in_its_batch(make_dataset, make_loader, domain):
    mixture = {"web": domain(0.6, source="web"), "code": domain(0.4, source="code", packing="best_fit")}
    loader = make_loader((make_dataset(mixed_docs()), mixture, 16, [(5, 4), (5, 8)]), block_tokens=32)
    for step in range(10):
        batch = loader.batch(step)
        for position, row in enumerate(loader.plan.rows_of(step)):
            alone = loader.rows(np.array([row]))
            assert all(np.array_equal(alone[name][0], batch[name][position]) for name in batch)
            assert loader.domain_of(row) == loader.domains[batch["domain"][position]]


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_processes_together_read_the_global_batch(make_dataset, make_loader, domain, num_processes):
    stages = (make_dataset(mixed_docs()), {"all": domain()}, 16, [(4, 8), (4, 16)])
    whole = make_loader(stages)
    parts = []
    for process in range(num_processes):
        own = make_loader(stages)

        def fetch(step: int, own: Loader = own, process: int = process) -> Batch:
            rows = len(own.plan.rows_of(step))
            share = np.arange(process * rows // num_processes, (process + 1) * rows // num_processes)
            return own.batch(step, share)

        parts.append(list(prefetch_items(fetch, first=0, end=8, num_ahead=2)))
    for step in range(8):
        expected = whole.batch(step)
        joined = {name: np.concatenate([part[step][1][name] for part in parts]) for name in expected}
        assert all(np.array_equal(joined[name], expected[name]) for name in expected)
        assert {part[step][0] for part in parts} == {step}


def test_resuming_with_other_process_counts_continues_the_same_rows(make_dataset, make_loader, domain):
    stages = (make_dataset(mixed_docs()), {"all": domain()}, 16, [(9, 8)])
    seen = []
    for first, end, num_processes in ((0, 3, 2), (3, 5, 1), (5, 9, 4)):
        for step in range(first, end):
            shares = [
                make_loader(stages).batch(step, np.arange(process, 8, num_processes))
                for process in range(num_processes)
            ]
            batch = np.empty((8, 16), np.int32)
            for process, share in enumerate(shares):
                batch[process::num_processes] = share["tokens"]
            seen.append(batch)
    whole = make_loader(stages)
    assert all(np.array_equal(batch, whole.batch(step)["tokens"]) for step, batch in enumerate(seen))


@pytest.mark.parametrize("first_step", [0, 5, 9, 10])
def test_prefetched_equals_batch(make_dataset, make_loader, domain, first_step):
    loader = make_loader((make_dataset(mixed_docs()), {"all": domain()}, 16, [(4, 2), (6, 4)]))
    steps = list(prefetch_items(loader.batch, first=first_step, end=10, num_ahead=3))
    assert [step for step, _ in steps] == list(range(first_step, 10))
    for step, batch in steps:
        expected = loader.batch(step)
        assert batch.keys() == expected.keys()
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)


def test_shares_hold_over_every_prefix(make_dataset, make_loader, domain):
    weights = {"web": 0.55, "code": 0.3, "books": 0.15}
    mixture = {name: domain(weight, source=name) for name, weight in weights.items()}
    loader = make_loader((make_dataset(mixed_docs()), mixture, 16, [(100, 4)]))
    domains = np.concatenate([loader.batch(step)["domain"] for step in range(100)])
    for index, name in enumerate(loader.domains):
        had = np.cumsum(domains == index)
        assert np.abs(had - weights[name] * np.arange(1, 401)).max() < 1
    sources = {piece.source for row in range(400) if domains[row] == 1 for piece in loader.trace(row)}
    assert sources == {"code"}


def test_seed_changes_order_and_epochs_differ(make_dataset, make_loader, domain):
    dataset = make_dataset(mixed_docs())
    stages = (dataset, {"all": domain()}, 16, [(400, 1)])
    per_epoch = make_loader(stages).usage()[0].rows_per_epoch

    def order(loader, epoch):
        rows = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        return [(loader.trace(row)[0].document, loader.trace(row)[0].start_in_document) for row in rows]

    first, again, other = (make_loader(stages, seed=seed) for seed in (0, 0, 1))
    assert order(first, 0) == order(again, 0)
    assert sorted(order(first, 0)) == sorted(order(first, 1)) == sorted(order(other, 0))
    assert order(first, 0) != order(first, 1)
    assert order(first, 0) != order(other, 0)


def test_other_mixtures_need_no_other_dataset(make_dataset, make_loader, domain):
    docs = [{"length": 20, "source": "web", "quality_score": i / 40} for i in range(40)]
    dataset = make_dataset(docs)
    good = {"good": domain(quality_score={"min": 0.5}, num_tokens={"max": 30})}
    loader = make_loader((dataset, good, 16, [(20, 1)]))
    documents = {piece.document for row in range(20) for piece in loader.trace(row)}
    assert documents
    assert all(dataset.documents.quality_score[document] >= 0.5 for document in documents)


def test_trace_names_document_offset_and_source(make_dataset, make_loader, domain):
    dataset = make_dataset(mixed_docs())
    loader = make_loader((dataset, {"all": domain()}, 32, [(10, 2)]))
    for row in range(20):
        tokens = loader.rows(np.array([row]))["tokens"][0]
        end = 0
        for piece in loader.trace(row):
            assert piece.start_in_row == end
            end = piece.stop_in_row
            assert dataset.documents.doc_id[piece.document].decode() == piece.doc_id
            assert piece.source == dataset.documents.source[piece.document]
            stop = piece.start_in_document + piece.num_tokens
            expected = dataset.tokens(piece.document, piece.start_in_document, stop)
            assert np.array_equal(tokens[piece.start_in_row : piece.stop_in_row], expected)


def test_epochs_by_domain(make_dataset, make_loader, domain):
    dataset = make_dataset([{"length": 16, "source": "a"}] * 8 + [{"length": 16, "source": "b"}] * 2)
    mixture = {"a": domain(0.5, source="a"), "b": domain(0.5, source="b")}
    loader = make_loader((dataset, mixture, 16, [(8, 2)]))
    assert loader.epochs(0) == {"a": 0, "b": 0}
    assert loader.epochs(4) == {"a": 0.5, "b": 2.0}
    assert loader.epochs(8) == {"a": 1.0, "b": 4.0}


def test_epoch_cap_is_refused_before_training(make_dataset, make_loader, domain):
    dataset = make_dataset([{"length": 16}] * 8)
    assert make_loader((dataset, {"all": domain(max_epochs=2)}, 16, [(16, 1)])).epochs(16) == {"all": 2.0}
    with pytest.raises(
        UserError, match=r"mixture\.all\.max_epochs: 2 epochs of its 128 tokens .* read 272 tokens"
    ) as info:
        make_loader((dataset, {"all": domain(max_epochs=2)}, 16, [(17, 1)]))
    assert "\n" not in str(info.value)


def test_empty_domain_names_filter_and_what_there_is(make_dataset, make_loader, domain):
    dataset = make_dataset(mixed_docs())
    with pytest.raises(
        UserError, match=r'mixture\.wiki\.filter: .*"source": \["wiki"\].*source books, code, web'
    ) as info:
        make_loader((dataset, {"wiki": domain(source="wiki")}, 16, [(1, 1)]))
    assert "\n" not in str(info.value)


def test_twins_in_a_mixture_are_refused(make_dataset, make_loader, domain):
    mixture = {"a": domain(source="web"), "b": domain(source=("web",), packing="best_fit")}
    with pytest.raises(UserError, match=r"mixture\.b\.filter: the same filter as 'a'"):
        make_loader((make_dataset(mixed_docs()), mixture, 16, [(1, 1)]))


def test_vocabulary_over_the_models_is_refused(make_dataset, make_loader, domain):
    with pytest.raises(DataError, match=r"model\.vocab_size: 999 is below the 1000 ids"):
        make_loader((make_dataset(mixed_docs()), {"all": domain()}, 16, [(1, 1)]), vocab_size=999)


def test_a_token_outside_the_vocabulary_is_told_with_its_place(make_dataset, make_loader, domain, tmp_path):
    dataset = make_dataset([{"length": 16}])
    shard = tmp_path / "dataset1" / dataset.manifest.shards[0].file
    tokens = np.fromfile(shard, "<u2")
    tokens[9] = 5000
    tokens.tofile(shard)
    loader = make_loader((dataset, {"all": domain()}, 16, [(1, 1)]))
    with pytest.raises(DataError, match=r"token 9 of document 0 is 5000, outside the vocabulary of 1000"):
        loader.batch(0)


def test_block_must_hold_whole_rows(make_dataset, make_loader, domain):
    with pytest.raises(UserError, match=r"data\.block_tokens: 40 is not a multiple .* 16 .* 48 would be"):
        make_loader((make_dataset(mixed_docs()), {"all": domain()}, 16, [(1, 1)]), block_tokens=40)


def test_steps_outside_the_run_and_rows_across_stages_are_no_batches(make_dataset, make_loader, domain):
    stage = (make_dataset(mixed_docs()), {"all": domain()}, 16, [(2, 2)])
    loader = make_loader(stage, stage)
    with pytest.raises(IndexError, match="step 4"):
        loader.batch(4)
    with pytest.raises(IndexError, match="rows 3 to 4"):
        loader.rows(np.array([3, 4]))


def test_synthetic_rows_are_a_function_of_seed_and_row(make_loader, domain):
    stage = (None, {"all": domain()}, 32, [(5, 4)])
    loader = make_loader(stage, source="synthetic", vocab_size=100)
    batch = loader.batch(3)
    assert loader.domains == ("synthetic",)
    assert np.array_equal(batch["targets"][:, :-1], batch["tokens"][:, 1:])
    assert batch["tokens"].min() >= 0
    assert batch["targets"].max() < 100
    assert batch["weights"].all()
    assert np.array_equal(loader.rows(np.array([13]))["tokens"][0], batch["tokens"][1])
    other = make_loader(stage, source="synthetic", vocab_size=100, seed=1)
    assert not np.array_equal(other.batch(3)["tokens"], batch["tokens"])
    everything = np.concatenate([loader.batch(step)["tokens"].ravel() for step in range(5)])
    assert len(np.unique(everything)) == 100
    assert loader.trace(0) == []
    assert loader.epochs(5) == {"synthetic": 0.0}
    assert compare_fingerprints(loader.fingerprint, other.fingerprint, 0) == ["seed: 0 before, 1 now"]


def test_fingerprint_survives_json_and_names_every_change(make_dataset, make_loader, domain):
    dataset = make_dataset(mixed_docs())
    mixture = {"web": domain(0.5, source="web"), "code": domain(0.5, source="code")}
    base = (dataset, mixture, 16, [(4, 4)])
    saved = json.loads(json.dumps(make_loader(base).fingerprint))

    def changed(*stages, step=4, **options):
        return compare_fingerprints(saved, make_loader(*stages, **options).fingerprint, step)

    assert changed(base) == []
    assert changed(base, base) == []  # a new stage after the saved ones
    assert changed(base, seed=3) == ["seed: 0 before, 3 now"]
    assert changed(base, block_tokens=64) == ["block_tokens: 16 before, 64 now"]
    assert changed(base, cross_document_attention=True) == ["cross_document_attention: False before, True now"]
    assert changed((dataset, mixture, 16, [(4, 8)])) == [
        "stages[0].tokens: 256 before, 512 now",
        "stages[0].batches[0].rows: 4 before, 8 now",
    ]
    other = make_dataset(mixed_docs(seed=1), tag="other")
    assert [line.split(":")[0] for line in changed((other, mixture, 16, [(4, 4)]))] == ["stages[0].manifest_hash"]
    heavier = {**mixture, "web": domain(1.5, source="web")}
    assert changed((dataset, heavier, 16, [(4, 4)])) == [
        "stages[0].mixture[web].units: 32768 before, 49152 now",
        "stages[0].mixture[code].units: 32768 before, 16384 now",
    ]
    packed = {**mixture, "code": domain(0.5, source="code", packing="best_fit")}
    assert changed((dataset, packed, 16, [(4, 4)]))[0] == (
        "stages[0].mixture[code].packing: 'concat' before, 'best_fit' now"
    )


def test_only_what_was_read_binds_a_fingerprint(make_dataset, make_loader, domain):
    dataset, other = make_dataset(mixed_docs()), make_dataset(mixed_docs(seed=1), tag="other")
    mixture = {"web": domain(0.5, source="web"), "code": domain(0.5, source="code")}

    def stages(*parts):
        return make_loader(*((data, mixture, 16, batches) for data, batches in parts)).fingerprint

    warm = [(2, 2), (4, 4)]
    saved = stages((dataset, warm), (dataset, [(4, 4)]))

    def at(step, *parts):
        return compare_fingerprints(saved, stages(*parts), step)

    longer, shorter = (dataset, [(2, 2), (9, 4)]), (dataset, [(2, 2), (2, 4)])
    assert at(5, longer) == []  # the stage that runs may grow, and later ones go
    assert at(6, longer, (other, [(3, 2)])) == []
    assert at(4, shorter, (other, [(3, 2)])) == []  # it may end at once, and others follow
    assert at(5, shorter, (other, [(3, 2)])) == [
        "stages[0].tokens: 256 before, 192 now",
        "stages[0].batches[1].steps: 3 before, 2 now",
        "stages: 1 before, 2 now",
    ]
    assert at(6, (dataset, warm), (other, [(4, 4)])) == []  # the second stage has not begun
    assert [line.split(":")[0] for line in at(7, (dataset, warm), (other, [(4, 4)]))] == ["stages[1].manifest_hash"]
    assert at(7, (dataset, warm)) == ["stages: 2 before, 1 now"]
    assert at(2, (dataset, [(3, 2), (4, 4)])) == []
    assert at(3, (dataset, [(3, 2), (4, 4)]))[1:] == [
        "stages[0].batches[0].steps: 2 before, 3 now",
        "stages[0].batches: 2 before, 1 now",
    ]
    assert at(0, (other, [(1, 8)])) == []
