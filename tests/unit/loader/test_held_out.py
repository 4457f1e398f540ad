from typing import Any

import numpy as np
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import Config
from maxtrain.core.errors import DataError, UserError
from maxtrain.dataset import Dataset, DatasetWriter, Document, History, TokenizerRecord, document_id
from maxtrain.loader import HeldOut, Loader
from maxtrain.tokenizer import train_tokenizer


@pytest.fixture
def dataset(make_dataset):
    docs = [{"length": 5 + i % 30, "source": "ab"[i % 2], "split": "heldout" if i % 3 else "train"} for i in range(60)]
    return make_dataset([*docs, {"length": 300, "source": "a", "split": "heldout"}])


@pytest.fixture
def mixture(domain):
    return {"a": domain(0.9, source="a"), "b": domain(0.1, source="b", packing="best_fit")}


@pytest.mark.parametrize("batch_rows", [1, 4, 7, 100])
def test_every_target_of_every_document_once(dataset, mixture, batch_rows):
    heldout = HeldOut(dataset, mixture, "heldout", 16, 200)
    batches = list(heldout.batches(batch_rows))
    assert len(batches) == -(-heldout.num_rows // batch_rows)
    assert all(batch["tokens"].shape == (batch_rows, 16) for batch in batches)
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    for index, name in enumerate(heldout.domains):
        documents = heldout.documents_of(name)
        assert {dataset.documents.source[document] for document in documents} == {name}
        assert {dataset.documents.split[document] for document in documents} == {"heldout"}
        expected = np.concatenate([dataset.tokens(document)[1:] for document in documents.tolist()])
        mask = (joined["domain"] == index)[:, None] & (joined["weights"] > 0)
        assert joined["targets"][mask].tolist() == expected.tolist()
        assert heldout.targets_of(name) == mask.sum()
        assert heldout.bytes_of(name) == sum(3 * int(dataset.documents.num_tokens[d]) for d in documents)
    filling = joined["tokens"][heldout.num_rows :]
    assert (filling == dataset.pad_id).all()
    assert not joined["weights"][heldout.num_rows :].any()
    assert not joined["segment_ids"][heldout.num_rows :].any()


def test_documents_are_taken_in_order_if_they_still_fit(dataset, mixture):
    heldout = HeldOut(dataset, mixture, "heldout", 16, 200)
    table = dataset.documents
    for name in heldout.domains:
        used, expected = 0, []
        for document in range(len(table)):
            length = int(table.num_tokens[document])
            if table.source[document] == name and table.split[document] == "heldout" and used + length <= 200:
                used += length
                expected.append(document)
        assert heldout.documents_of(name).tolist() == expected
        assert used > 150


def test_without_bos_the_bytes_of_first_tokens_are_no_targets(domain, tmp_path):
    """First tokens of several bytes, of one byte out of a character, and of a text that is empty."""
    texts = ["the sea was the sea", "the ship", "\U0001f600 the sea", ""]
    tokenizer = train_tokenizer(["the sea and the ship were one", "and the sea was the sea"] * 9, vocab_size=384)
    record = TokenizerRecord(
        sha256=tokenizer.hash, vocab_size=384, pad_id=tokenizer.pad_id, bos_id=None, eod_id=tokenizer.eod_id, unk_id=3
    )
    with DatasetWriter(tmp_path / "dataset", record, tokenizer.model, shard_tokens=100) as writer:
        for number, text in enumerate(texts):
            tags: dict[str, Any] = {"source": "s", "lang": "en", "category": "c", "split": "heldout"}
            place: dict[str, Any] = {"licence": "MIT", "origin": "", "input": "i", "line": number + 1}
            name = document_id("s", original_id=str(number), url=None, text=text)
            tokens, size = tokenizer.encode(text), len(text.encode())
            writer.add(Document(doc_id=name, tokens=tokens, num_bytes=size, quality_score=None, **tags, **place))
        writer.finish(History(code_version="test", build_version=1, recipe={}, inputs=(), rules={}, split_fractions={}))
    heldout = HeldOut(Dataset.open(str(tmp_path / "dataset")), {"all": domain()}, "heldout", 16, 1000)
    predicted = [tokenizer.encode(text)[1:] for text in texts]
    assert len(tokenizer.decode(tokenizer.encode(texts[0])[:1])) > 1
    assert len(predicted[2]) > 3  # what is left of the character, byte by byte
    left = [len(tokenizer.decode(tokens).encode()) for tokens in predicted]
    left[2] = len(texts[2].encode()) - 1
    assert heldout.bytes_of("all") == sum(left)
    assert heldout.targets_of("all") == sum(len(tokens) + 1 for tokens in predicted) - 1  # the empty text has only eod


def test_nothing_held_out_or_nothing_that_fits_is_refused(dataset, mixture):
    with pytest.raises(
        UserError, match=r'mixture\.a\.filter: no document .*"split": \["valid"\].*split heldout, train'
    ):
        HeldOut(dataset, mixture, "valid", 16, 200)
    with pytest.raises(
        UserError, match=r"evaluation\.max_tokens: 4 is less than every held-out document of domain 'a'"
    ):
        HeldOut(dataset, mixture, "heldout", 16, 4)


BASE: dict[str, Any] = {
    "run": {"directory": "unused"},
    "batch": {"global_batch_tokens": 64, "micro_batch": 4},
    "model": {"vocab_size": 1000, "num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32},
    "train": {"total_tokens": 128},
    "schedule": {"lr": 0.001},
    "evaluation": {"every": 1, "max_tokens": 200},
}


def from_config(**sections):
    config = Config.model_validate({**BASE, **sections})
    plan = plan_batches(config)
    loader = Loader(plan, data=config.data, seed=0, vocab_size=config.model.vocab_size)
    return HeldOut.from_config(config, loader), loader


def test_from_config_takes_the_domains_of_all_stages(dataset):
    def stage(name, **mixture):
        domains = {domain: {"weight": 1.0, "filter": {"source": source}} for domain, source in mixture.items()}
        return {"name": name, "tokens": 64, "mixture": domains}

    stages = [stage("one", first="a"), stage("two", second="a", first="b")]
    heldout, loader = from_config(data={"dataset": dataset.location, "sequence_length": 16, "stages": stages})
    assert heldout.domains == loader.domains == ("first", "second")
    assert {dataset.documents.source[document] for document in heldout.documents_of("first")} == {"a"}


def test_from_config_takes_another_dataset_with_the_same_tokenizer_only(dataset, make_dataset):
    data = {"dataset": dataset.location, "sequence_length": 16}
    docs = [{"length": 20, "split": "heldout"}] * 3
    same, other = make_dataset(docs), make_dataset(docs, model=b"another model")
    evaluation = {"every": 1, "max_tokens": 1000}
    heldout, _ = from_config(data=data, evaluation={**evaluation, "dataset": same.location})
    assert heldout.targets_of("all") == 57
    with pytest.raises(DataError, match=r"evaluation\.dataset: .*dataset3 has another tokenizer"):
        from_config(data=data, evaluation={**evaluation, "dataset": other.location})
    with pytest.raises(DataError, match="no dataset here"):
        from_config(data=data, evaluation={**evaluation, "dataset": f"{same.location}-absent"})


def test_from_config_reads_the_datas_own_dataset_whatever_the_stages_read(dataset, make_dataset):
    other = make_dataset([{"length": 50}] * 5)
    stages = [{"name": "one", "tokens": 128, "dataset": other.location}]
    heldout, loader = from_config(data={"dataset": dataset.location, "sequence_length": 16, "stages": stages})
    assert loader.stages[0].dataset.location == other.location
    assert heldout.targets_of("all") > 100
    with pytest.raises(UserError, match=r"evaluation\.dataset: is required, for data\.dataset is null"):
        from_config(data={"dataset": None, "sequence_length": 16, "stages": stages})


def test_synthetic_data_has_nothing_held_out():
    with pytest.raises(UserError, match=r"evaluation\.every: a run on synthetic data"):
        from_config(data={"source": "synthetic", "sequence_length": 16})
