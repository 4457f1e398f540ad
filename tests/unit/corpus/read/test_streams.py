"""Compression, limits and damage of files of lines."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from functools import partial

import pytest
import zstandard

from maxtrain.core.errors import UserError
from maxtrain.corpus.read import ReadOptions, Source, fingerprint, input_bytes, kind_of, read_file
from maxtrain.corpus.read.source import stem

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": partial(lzma.compress, preset=0),
}
PACKED = [ending for ending in COMPRESS if ending]


def rows(count, start=0):
    return b"".join(
        json.dumps({"text": f"text {hashlib.sha256(str(n).encode()).hexdigest()}", "id": n}).encode() + b"\n"
        for n in range(start, start + count)
    )


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_lines_are_the_plain_ones(read, ending):
    data = COMPRESS[ending](rows(2000)) + COMPRESS[ending](rows(3, 2000))
    digest = hashlib.sha256()
    good, bad = read(f"a.jsonl{ending}", data, digest.update)
    assert not bad
    assert [record.original_id for record in good] == [str(n) for n in range(2003)]
    assert [record.line for record in good] == list(range(1, 2004))
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("ending", PACKED)
def test_of_a_truncated_file_the_good_records_are_kept_and_the_rest_is_one_bad_one(read, ending):
    data = COMPRESS[ending](rows(20_000))
    for cut in (len(data) // 2, len(data) - 5):
        digest = hashlib.sha256()
        good, bad = read(f"a.jsonl{ending}", data[:cut], digest.update)
        assert len(good) > 1000
        assert [record.original_id for record in good] == [str(n) for n in range(len(good))]
        assert [(item.line, item.reason) for item in bad] == [(len(good) + 1, f"truncated_{ending[1:]}")]
        assert digest.hexdigest() == hashlib.sha256(data[:cut]).hexdigest()


@pytest.mark.parametrize("ending", PACKED)
def test_damage_in_the_middle_is_told_and_all_bytes_are_hashed(read, ending):
    data = bytearray(COMPRESS[ending](rows(20_000)))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    digest = hashlib.sha256()
    good, bad = read(f"a.jsonl{ending}", bytes(data), digest.update)
    assert bad
    assert bad[-1].reason == f"damaged_{ending[1:]}"
    assert len(good) < 20_000
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_bomb_is_one_record_over_the_limit(read, tmp_path):
    # 512 MiB of zeros in a line, then a good line.
    bomb = zstandard.ZstdCompressor().compress(bytes(2**27)) * 4 + zstandard.compress(b"\n" + rows(1))
    good, bad = read("a.jsonl.zst", bomb)
    assert len(bomb) < 10**6
    assert [(item.line, item.reason) for item in bad] == [(1, "too_long")]
    assert [record.line for record in good] == [2]


def test_a_bomb_of_one_document_is_refused(read):
    good, bad = read("a.txt.gz", gzip.compress(bytes(2**26)))
    assert not good
    assert [item.reason for item in bad] == ["too_long"]


def test_lines_over_the_limit_are_told_and_passed_over(read):
    data = rows(1) + json.dumps({"text": "x" * 5000}).encode() + b"\n" + rows(2, 1)
    good, bad = read("a.jsonl", data, max_record_bytes=1000)
    assert [record.line for record in good] == [1, 3, 4]
    assert [(item.line, item.reason) for item in bad] == [(2, "too_long")]


def test_bad_lines_are_told_with_line_and_reason(read, reasons):
    lines = [
        b'{"text": "good"}', b'{"text": "bad \xff"}', b"{", b"[1]", b'{"text": 3}', b'{"text": " "}', b'{"x": 1}',
        b'{"text": "\\ud800"}', b'{"text": "a", "text": "b"}', b'{"text": "a", "lang": 3}', b"",
        b'\xef\xbb\xbf{"text": "marked"}', b"[" * 100_000, b'{"text": "a", "quality_score": 1e999}', b"NaN",
    ]  # fmt: skip
    good, bad = read("a.jsonl", b"\n".join(lines))
    assert [record.line for record in good] == [1, 12]
    assert reasons(bad) == [
        (2, "invalid_utf8"), (3, "not_json"), (4, "not_a_record"), (5, "bad_text"), (6, "empty_text"),
        (7, "missing_text"), (8, "lone_surrogate"), (9, "doubled_key"), (10, "bad_tag"), (13, "not_json"),
        (14, "bad_tag"), (15, "not_a_record"),
    ]  # fmt: skip


def test_keys_and_tags_are_read_by_the_names_that_the_recipe_gives(read):
    row = {
        "content": "hello",
        "uid": 7,
        "link": "https://a.example",
        "language": "fr",
        "name": "T",
        "licence": "CC0-1.0",
    }
    good, _ = read(
        "b/web.jsonl",
        json.dumps(row),
        text_key="content",
        id_key="uid",
        url_key="link",
        title_key="name",
        columns={"lang": "language"},
    )
    record = good[0]
    assert (record.text, record.original_id, record.url, record.lang) == ("hello", "7", "https://a.example", "fr")
    assert (record.title, record.licence, record.source, record.category) == ("T", "CC0-1.0", "web", "unknown")


def test_the_kind_is_told_by_name_or_by_the_recipe():
    options = ReadOptions()
    names = {
        "a.jsonl": "jsonl", "A.JSONL.GZ": "jsonl", "x/a.warc.wet.gz": "wet", "a.warc.gz": "warc", "a.htm": "html",
        "zhwiki-20260101-pages-articles.xml.bz2": "wiki", "Posts.xml": "forum", "a.parquet": "parquet",
        "a.md": "markdown",
        "a.tex.zst": "latex", "p.tar.gz": "code", "t.bin": None, "a.pdf": None, "a.xml": None, "a.parquet.gz": None,
        "noending": None,
    }  # fmt: skip
    for name, kind in names.items():
        if kind is None:
            with pytest.raises(UserError, match=rf"^{name}: .*(jsonl, parquet|read\.tokens|parquet)"):
                kind_of(name, options)
        else:
            assert kind_of(name, options) == kind
    assert kind_of("a.pdf", ReadOptions(kind="text")) == "text"
    assert [stem(name) for name in ("a/b.jsonl.zst", "v1.2.txt", "c.warc.wet.gz")] == ["b", "v1.2", "c"]


def test_fingerprint_and_size_are_of_what_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(rows(5))
    source = Source("a.jsonl", str(path), "MIT")
    assert fingerprint(source) == hashlib.sha256(rows(5)).hexdigest()
    assert input_bytes(source) == len(rows(5))
    with pytest.raises(FileNotFoundError):
        list(read_file(Source("n.jsonl", str(tmp_path / "n.jsonl"), "MIT")))
