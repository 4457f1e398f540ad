"""A dataset behind an S3 URL, on a server of the test's own."""

import numpy as np
import pytest

from maxtrain.core import files
from maxtrain.core.errors import DataError, run_command
from maxtrain.dataset import Dataset, verify_only_own_files


@pytest.fixture(scope="module")
def store(make_bucket, original):
    """A bucket that holds the dataset under `d`; the bucket's key-value store."""
    bucket = make_bucket("bucket")
    for path in original.rglob("*"):
        if path.is_file():
            bucket[f"d/{path.relative_to(original)}"] = path.read_bytes()
    return bucket


def test_reads_what_the_local_one_reads(store, original):
    local, remote = Dataset.open(str(original)), Dataset.open("s3://bucket/d")
    assert remote.manifest_hash == local.manifest_hash
    assert remote.tokenizer_model() == local.tokenizer_model()
    numbers = list(range(len(local.documents)))
    starts, stops = [1] * len(numbers), local.documents.num_tokens.tolist()
    for one, other in zip(
        local.tokens_many(numbers, starts, stops), remote.tokens_many(numbers, starts, stops), strict=True
    ):
        assert np.array_equal(one, other)
    assert remote.documents.origin(3) == local.documents.origin(3)


def test_a_file_of_others_behind_a_url_is_named(store, original, tmp_path):
    dataset = Dataset.open("s3://bucket/d")
    verify_only_own_files(dataset.location, dataset.manifest)
    assert files.list_files("s3://bucket/d") == files.list_files(original)
    store["d/shards/old.bin"], store["d2/x"] = b"1", b"2"
    with pytest.raises(DataError, match=r"^s3://bucket/d: shards/old.bin: not in the manifest"):
        verify_only_own_files(dataset.location, dataset.manifest)
    del store["d/shards/old.bin"]
    with pytest.raises(OSError, match="No such file"):
        files.list_files(tmp_path / "none")


def test_damage_behind_a_url_is_one_line(store, original):
    shard = (original / "shards/00001.bin").read_bytes()
    for data, word in ((shard[:-1], "truncated"), (shard + b"\0", "truncated"), (b"\2" + shard[1:], "damaged")):
        store["d/shards/00001.bin"] = data
        with pytest.raises(DataError, match=word):
            Dataset.open("s3://bucket/d")
    dataset = Dataset.open("s3://bucket/d", verify="none")
    del store["d/shards/00001.bin"]
    with pytest.raises(DataError, match="missing"):
        Dataset.open("s3://bucket/d")
    first = int(np.flatnonzero(dataset.documents.shard == 1)[0])
    with pytest.raises(DataError, match="missing or truncated"):
        dataset.tokens(first)
    store["d/shards/00001.bin"] = shard
    with pytest.raises(DataError, match="no dataset here"):
        Dataset.open("s3://bucket/none")


def test_nothing_but_the_message_reaches_stderr(store, capfd):
    files.read_bytes("s3://bucket/d/manifest.json")
    assert capfd.readouterr().err == ""


def test_unreachable_store_is_a_failure_that_may_be_tried_again(store, monkeypatch, capfd):
    monkeypatch.setattr(files, "_RETRIES", {"max_retries": 1, "initial_delay": "10ms", "max_delay": "10ms"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert run_command(lambda: len(Dataset.open("s3://bucket/d").documents)) == 1
    told = capfd.readouterr().err
    assert "s3://bucket/d/manifest.json" in told
    assert told.count("\n") == 1


def test_ranges_and_sizes_by_url(store):
    store["a"] = b"0123456789"
    store["empty"] = b""
    assert files.read_bytes("s3://bucket/a") == b"0123456789"
    assert files.read_ranges("s3://bucket/a", [(0, 2), (8, 2)]) == [b"01", b"89"]
    assert files.exists("s3://bucket/a")
    assert not files.exists("s3://bucket/b")
    assert files.has_size("s3://bucket/a", 10)
    assert files.has_size("s3://bucket/empty", 0)
    assert not files.has_size("s3://bucket/a", 9)
    assert not files.has_size("s3://bucket/a", 11)
    assert files.sha256_file("s3://bucket/a", 10) == files.sha256_bytes(b"0123456789")
    with pytest.raises(EOFError):
        files.read_range("s3://bucket/a", 8, 3)
    with pytest.raises(FileNotFoundError):
        files.read_bytes("s3://bucket/b")
