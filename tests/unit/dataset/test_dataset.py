import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from maxtrain.config.schema import Range, TagFilter
from maxtrain.core.errors import BusyError, DataError
from maxtrain.core.files import DirectoryLock
from maxtrain.dataset import FORMAT_VERSION, Dataset, DatasetWriter, document_id, token_dtype


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_document_id_is_the_stated_hash():
    def by_hand(identity):
        return hashlib.sha256(b"web\0" + identity.encode()).hexdigest()[:32]

    assert document_id("web", original_id="7", url="u", text="t") == by_hand("7")
    assert document_id("web", original_id=None, url="u", text="t") == by_hand("u")
    assert document_id("web", original_id="", url="", text="文") == by_hand("文")


def test_every_document_comes_back_in_id_order(original, documents):
    dataset = Dataset.open(str(original))
    table = dataset.documents
    expected = sorted(documents, key=lambda document: document.doc_id)
    assert [name.decode() for name in table.doc_id] == [document.doc_id for document in expected]
    for number, document in enumerate(expected):
        assert dataset.tokens(number).tolist() == [1, *document.tokens, 2]
        assert table.num_tokens[number] == len(document.tokens) + 2
        assert table.num_bytes[number] == document.num_bytes
        for tag in ("source", "lang", "category", "split"):
            assert getattr(table, tag)[number] == getattr(document, tag)
        score = table.quality_score[number]
        assert np.isnan(score) if document.quality_score is None else score == document.quality_score
        assert table.licence(number) == document.licence
        assert table.origin(number) == document.origin
        assert table.place(number) == f"in.jsonl:{document.line}"
    assert table.doc_id.dtype == "S32"
    assert table.shard.dtype == np.int32
    assert table.offset.dtype == np.int64


def test_shards_are_flat_files_within_the_limit(original, documents):
    dataset = Dataset.open(str(original))
    expected = [t for document in sorted(documents, key=lambda d: d.doc_id) for t in (1, *document.tokens, 2)]
    assert np.concatenate([np.fromfile(p, "<u2") for p in sorted((original / "shards").iterdir())]).tolist() == expected
    assert len(dataset.manifest.shards) > 3
    assert all(shard.num_tokens <= 1000 for shard in dataset.manifest.shards)
    assert (np.diff(dataset.documents.shard) <= 1).all()
    assert dataset.manifest.totals.tokens == len(expected)
    assert sum(split.documents for split in dataset.manifest.splits.values()) == len(documents)
    assert dataset.manifest.licences["MIT"].documents == len(documents) / 2
    assert dataset.manifest_hash == hashlib.sha256((original / "manifest.json").read_bytes()).hexdigest()
    assert dataset.tokenizer_hash == hashlib.sha256(dataset.tokenizer_model()).hexdigest()


def test_document_longer_than_a_shard_has_one_of_its_own(tmp_path, documents, write):
    write(tmp_path / "d", documents, shard_tokens=50)
    dataset = Dataset.open(str(tmp_path / "d"))
    long = dataset.documents.num_tokens > 50
    shards, counts = np.unique(dataset.documents.shard, return_counts=True)
    assert long.any()
    assert (counts[np.isin(shards, dataset.documents.shard[long])] == 1).all()


def test_order_of_arrival_leaves_no_trace(tmp_path, original, documents, write):
    write(tmp_path / "d", documents[::-1])
    assert tree(tmp_path / "d") == tree(original)


def test_ranges_of_documents(original, documents):
    dataset = Dataset.open(str(original), verify="size")
    whole = [dataset.tokens(number) for number in range(len(documents))]
    numbers = [3, 50, 3, 0]
    parts = dataset.tokens_many(numbers, [0, 1, 1, 2], [1, 2, 3, 3])
    assert [part.tolist() for part in parts] == [
        whole[3][:1].tolist(), whole[50][1:2].tolist(), whole[3][1:3].tolist(), whole[0][2:3].tolist()
    ]  # fmt: skip
    assert dataset.tokens(5, 2, 2).tolist() == []
    with pytest.raises(IndexError, match="which has"):
        dataset.tokens(3, 0, len(whole[3]) + 1)
    with pytest.raises(ValueError, match="read-only"):
        whole[0][0] = 1


def test_filters_select_by_tag_and_number(original, documents):
    dataset = Dataset.open(str(original), verify="none")
    ordered = sorted(documents, key=lambda document: document.doc_id)

    def by_hand(rule):
        return [number for number, document in enumerate(ordered) if rule(document)]

    def train(document):
        return document.split == "train"

    assert dataset.select(TagFilter()).tolist() == by_hand(train)
    assert dataset.select(TagFilter(split=("train", "heldout"))).tolist() == list(range(len(ordered)))
    assert dataset.select(TagFilter(source=("web", "code"), lang="zh")).tolist() == by_hand(
        lambda d: train(d) and d.source in ("web", "code") and d.lang == "zh"
    )
    assert dataset.select(TagFilter(quality_score=Range(min=0.3))).tolist() == by_hand(
        lambda d: train(d) and d.quality_score is not None and d.quality_score >= 0.3
    )
    assert dataset.select(TagFilter(num_tokens=Range(min=20, max=50))).tolist() == by_hand(
        lambda d: train(d) and 20 <= len(d.tokens) + 2 <= 50
    )
    assert dataset.select(TagFilter(category="absent")).tolist() == []


@pytest.mark.parametrize(("vocab", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_width_of_tokens_follows_the_vocabulary(tmp_path, vocab, dtype, write, make_documents):
    documents = make_documents(5, vocab=vocab)
    write(tmp_path / "d", documents, vocab=vocab, bos=None)
    dataset = Dataset.open(str(tmp_path / "d"))
    assert dataset.dtype == dtype == token_dtype(vocab)
    assert dataset.bos_id is None
    expected = min(documents, key=lambda document: document.doc_id)
    assert dataset.tokens(0).tolist() == [*expected.tokens, 2]


def test_one_identity_twice_is_refused_with_both_places(tmp_path, documents, write):
    twice = [*documents, documents[4]]
    with pytest.raises(DataError, match=r"in\.jsonl:5 and in\.jsonl:5: two records with one identity"):
        write(tmp_path / "d", twice)
    assert list(tmp_path.iterdir()) == []


def test_no_document_and_a_token_over_the_vocabulary_are_refused(tmp_path, documents, write):
    with pytest.raises(DataError, match="empty dataset"):
        write(tmp_path / "d", [])
    with pytest.raises(DataError, match=r"in\.jsonl:\d+: token id \d+ is outside the vocabulary of 500"):
        write(tmp_path / "d", documents, vocab=500)
    assert list(tmp_path.iterdir()) == []


def test_existing_output_is_kept_unless_replaced(copy, documents, write):
    before = tree(copy)
    with pytest.raises(DataError, match="exists"):
        write(copy, documents[:5])
    with pytest.raises(DataError):
        write(copy, [], replace=True)
    assert tree(copy) == before
    write(copy, documents[:5], replace=True)
    assert len(Dataset.open(str(copy)).documents) == 5
    assert [path.name for path in copy.parent.iterdir()] == ["d"]


def test_leftovers_of_a_killed_build_vanish_and_a_running_one_is_respected(tmp_path, documents, original, write):
    partial = tmp_path / ".d.partial"
    (partial / "shards").mkdir(parents=True)
    (partial / "shards" / "00099.bin").write_bytes(b"old")
    with DirectoryLock(partial), pytest.raises(BusyError, match="held by process"):
        write(tmp_path / "d", documents)
    write(tmp_path / "d", documents)
    assert tree(tmp_path / "d") == tree(original)
    assert not partial.exists()


def test_failed_build_leaves_nothing(tmp_path, documents, original):
    def fail():
        tokenizer = Dataset.open(str(original)).manifest.tokenizer
        with DatasetWriter(tmp_path / "d", tokenizer, b"", shard_tokens=9) as writer:
            writer.add(documents[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_table_and_manifest_are_plain_for_other_tools(original, documents):
    table = pq.read_table(original / "documents.parquet")
    assert table.column_names[:4] == ["doc_id", "shard", "offset", "num_tokens"]
    assert table.num_rows == len(documents)
    manifest = json.loads((original / "manifest.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION
    assert manifest["rules"]["read"]["dropped"] == {"not_json": 1}
