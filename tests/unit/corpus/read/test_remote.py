"""Inputs behind S3 URLs, on a server of the test's own, read by pieces."""

import gzip
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxtrain.corpus.read import BadRecord, Source, fingerprint, input_bytes, read_file


@pytest.fixture(scope="module")
def bucket(make_bucket):
    return make_bucket("raw")


def read(name):
    digest = hashlib.sha256()
    source = Source(name, f"s3://raw/{name}", "MIT")
    return list(read_file(source, digest.update)), digest.hexdigest(), source


def test_files_behind_urls_are_read_as_local_ones(bucket):
    rows = [{"text": hashlib.sha256(str(n).encode()).hexdigest() * 20, "id": n} for n in range(8000)]
    lines = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows[:500]), sink)
    objects = {
        "in/a.jsonl.gz": (lines, 8000),
        "in/a.parquet": (sink.getvalue().to_pybytes(), 500),
        "empty.jsonl": (b"", 0),
    }
    for name, (data, count) in objects.items():
        bucket[name] = data
        items, digest, source = read(name)
        assert [item.text for item in items] == [row["text"] for row in rows[:count]]
        assert digest == hashlib.sha256(data).hexdigest() == fingerprint(source)
        assert input_bytes(source) == len(data)
    bucket["cut.jsonl.gz"] = lines[:-1000]
    items, digest, _ = read("cut.jsonl.gz")
    assert isinstance(items[-1], BadRecord)
    assert items[-1].reason == "truncated_gz"
    assert digest == hashlib.sha256(lines[:-1000]).hexdigest()
    with pytest.raises(FileNotFoundError):
        read("none.jsonl")


def test_an_object_is_read_by_pieces_as_its_records_are_taken(bucket):
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    bucket["big.jsonl"] = line * 12_000
    pieces = []
    records = read_file(Source("big.jsonl", "s3://raw/big.jsonl", "MIT"), lambda piece: pieces.append(len(piece)))
    assert next(records).line == 1
    assert sum(pieces) <= 2**22
    assert sum(1 for _ in records) == 11_999
    assert sum(pieces) == 12_000 * len(line)
    assert max(pieces) <= 2**22
