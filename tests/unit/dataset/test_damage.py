"""Every way in which a dataset can be damaged is one clear line."""

import json

import numpy as np
import pytest

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.dataset import Dataset


def refuse(location, *words, verify="full"):
    with pytest.raises(DataError) as error:
        Dataset.open(str(location), verify=verify)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def edit_manifest(location, change):
    path = location / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def flip(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_missing_dataset(tmp_path):
    refuse(tmp_path / "none", "no dataset here", "maxtrain.corpus build")
    (tmp_path / "file").write_text("")
    refuse(tmp_path / "file", "no dataset here")


def test_empty_dataset(copy):
    edit_manifest(copy, lambda manifest: manifest.update(shards=[], documents={"count": 0, "sha256": ""}))
    refuse(copy, "empty")


@pytest.mark.parametrize("verify", ["full", "size"])
@pytest.mark.parametrize("name", ["shards/00001.bin", "documents.parquet", "tokenizer.model"])
def test_missing_and_truncated_files(copy, name, verify):
    path = copy / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refuse(copy, name, verify=verify)
    path.unlink()
    refuse(copy, name, "missing", verify=verify)


@pytest.mark.parametrize("name", ["shards/00001.bin", "documents.parquet", "tokenizer.model"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_flipped_bits(copy, name, place):
    path = copy / name
    flip(path, int(place * path.stat().st_size))
    refuse(copy, name)


def test_flipped_bit_in_a_shard_passes_a_check_of_sizes_only(copy):
    flip(copy / "shards/00001.bin", 100)
    Dataset.open(str(copy), verify="size")


def test_other_tokenizer(copy):
    (copy / "tokenizer.model").write_bytes(b"x")
    refuse(copy, "tokenizer.model", "hash differs", verify="size")
    with pytest.raises(DataError, match="not the tokenizer that wrote the tokens"):
        Dataset.open(str(copy), verify="none").tokenizer_model()


def test_token_over_the_vocabulary_is_named_with_shard_and_place(copy):
    path = copy / "shards/00002.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[17] = 1000
    tokens.tofile(path)

    def rehash(manifest):
        manifest["shards"][2]["sha256"] = files.sha256_file(path)

    edit_manifest(copy, rehash)
    refuse(copy, "shards/00002.bin", "token 17 has id 1000", "vocabulary of 1000")


def test_damaged_manifest(copy):
    path = copy / "manifest.json"
    data = path.read_text()
    path.write_text(data[: len(data) // 2])
    refuse(copy, "manifest.json", "not valid JSON")
    path.write_text("[]")
    refuse(copy, "format version None")
    path.write_text(data)
    edit_manifest(copy, lambda manifest: manifest.update(format_version=99))
    refuse(copy, "format version 99")
    edit_manifest(copy, lambda manifest: manifest.update(format_version=1))
    refuse(copy, "format version 1 ", "build the dataset again")
    path.write_text(data)
    edit_manifest(copy, lambda manifest: manifest["shards"][1].pop("sha256"))
    refuse(copy, "damaged at shards.1.sha256")


def test_table_of_another_dataset(copy):
    def swap(manifest):
        manifest["shards"][0], manifest["shards"][1] = manifest["shards"][1], manifest["shards"][0]

    edit_manifest(copy, swap)
    refuse(copy, "does not fit the shards", verify="size")


def test_sizes_in_the_manifest_that_do_not_agree(copy):
    edit_manifest(copy, lambda manifest: manifest["shards"][1].update(num_bytes=7))
    refuse(copy, "00001.bin", "7 bytes are not")


def test_shard_lost_after_opening(copy):
    dataset = Dataset.open(str(copy))
    (copy / "shards/00000.bin").unlink()
    with pytest.raises(DataError, match=r"00000\.bin: missing or truncated"):
        dataset.tokens(0)
