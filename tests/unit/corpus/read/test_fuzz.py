"""Whatever bytes stand in a file, a reader answers with records, bad records or one clear error."""

import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxtrain.core.errors import UserError
from maxtrain.corpus.read import KINDS, BadRecord, RawRecord, ReadOptions, Source, TokensConfig, read_file

TOKENS = TokensConfig(tokenizer_sha256="a" * 64, vocab_size=1000, eod_id=0)
LIMIT = 20_000


def _table(write):
    sink = pa.BufferOutputStream()
    found = pa.table({"text": [f"text {n} äöü" for n in range(50)], "id": list(range(50))})
    write(found, sink)
    return sink.getvalue().to_pybytes()


def _arrow(found, sink):
    with pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found, max_chunksize=10)


def _npy():
    sink = io.BytesIO()
    np.save(sink, np.array([5, 6, 0, 7, 0], "<u2"))
    return sink.getvalue()


_PAGE = (
    b"<html><head><meta charset=utf-8><title>T</title></head><body><ul><li><a href=x>a</a></ul><p>Text</body></html>"
)
_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(_PAGE)
SEEDS = {
    "jsonl": b'{"text": "a"}\n{"text": "\\u00e4", "id": 3}\n' * 5,
    "parquet": _table(lambda found, sink: pq.write_table(found, sink, row_group_size=10)),
    "arrow": _table(_arrow),
    "text": "Größe\n\n文字\n".encode(),
    "markdown": b"---\ntitle: a\n---\n# b\n",
    "html": _PAGE,
    "latex": rb"\newcommand{\a}[1]{\b{#1}}\begin{document}\a{x} $y$ \[z\] \begin{align}a\end{align}\end{document}",
    "warc": b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
    % (len(_HTTP), _HTTP),
    "wet": b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 4\r\n\r\ntext\r\n\r\n" * 3,
    "wiki": b"<mediawiki><page><title>A</title><ns>0</ns><id>1</id><revision><text>{{a|[[b|c]]}} {|\n|-\n|a||b\n|}"
    b" ''x'' &lt;ref&gt;y&lt;/ref&gt; == z ==</text></revision></page></mediawiki>",
    "forum": b"<posts>\n<row Id='1' PostTypeId='1' Title='t' Body='&lt;p&gt;b' />\n"
    b"<row Id='2' PostTypeId='2' ParentId='1' Body='c' />\n</posts>",
    "megatron": b"\5\0\6\0" * 10,
    "token_array": _npy(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def check(path, kind):
    for options in (ReadOptions(kind=kind, tokens=TOKENS, max_record_bytes=LIMIT),):
        try:
            for item in read_file(Source(path.name, str(path), "MIT", options), lambda piece: None):
                if isinstance(item, BadRecord):
                    assert item.reason
                    assert item.line >= 1
                    json.dumps(item.detail).encode()
                elif isinstance(item, RawRecord):
                    assert item.text.strip()
                    assert len(item.text) <= LIMIT
                    item.text.encode()
        except UserError as found:
            error = str(found)
            assert "\n" not in error


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"code", "huggingface"}))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_and_mutated_bytes(folder, kind, data):
    seed = bytearray(SEEDS[kind])
    how = data.draw(st.sampled_from(["random", "flip", "cut", "splice", "repeat"]))
    if how == "random":
        seed = bytearray(data.draw(st.binary(max_size=300)))
    elif how == "cut":
        seed = seed[: data.draw(st.integers(0, len(seed)))]
    elif how == "flip":
        for place in data.draw(st.lists(st.integers(0, len(seed) - 1), max_size=8)):
            seed[place] = data.draw(st.integers(0, 255))
    elif how == "splice":
        place = data.draw(st.integers(0, len(seed)))
        seed[place:place] = data.draw(st.binary(min_size=1, max_size=50))
    else:
        first = data.draw(st.integers(0, len(seed)))
        last = data.draw(st.integers(first, len(seed)))
        seed[last:last] = seed[first:last] * 5
    ending = (
        data.draw(st.sampled_from(["", ".gz", ".zst", ".bz2", ".xz"]))
        if kind not in ("parquet", "arrow", "megatron", "token_array")
        else ""
    )
    path = folder / f"x{'.bin' if kind == 'megatron' else ''}{ending}"
    path.write_bytes(gzip.compress(bytes(seed)) if ending == ".gz" and how != "random" else bytes(seed))
    if kind == "megatron":
        (folder / "x.idx").write_bytes(bytes(seed))
    check(path, kind)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=2000), name=st.sampled_from(["a.tar", "a.tar.gz", "a.tar.bz2"]))
def test_random_archives(folder, data, name):
    (folder / name).write_bytes(data)
    check(folder / name, "code")


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.binary(max_size=300),
    state=st.text(max_size=30) | st.sampled_from(["{}", "[]", '{"_data_files": [{}]}', '{"_data_files": 3}']),
)
def test_random_folders(folder, data, state):
    root = folder / "hf"
    root.mkdir(exist_ok=True)
    (root / "a.parquet").write_bytes(data)
    (root / "b.py").write_bytes(data)
    (root / "c.jsonl.gz").write_bytes(data)
    (root / "state.json").unlink(missing_ok=True)
    check(root, "huggingface")
    check(root, "code")
    (root / "state.json").write_text(state, errors="replace")
    check(root, "huggingface")
