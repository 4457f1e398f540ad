"""Web archives: the shared fixtures whole, and damage of every kind in archives made here."""

import gzip
import io
import json
import zlib
from collections import Counter

import pytest
from fastwarc.stream_io import BrotliWriter

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.html import main_text
from maxtrain.corpus.read import BadRecord, Source, read_file

PAGE = "<html><head><title>T</title></head><body><p>Ein Satz über Bäume, lang genug zum Lesen.</p></body></html>"
TEXT = "Ein Satz über Bäume, lang genug zum Lesen."


def record(
    block, kind="response", content_type="application/http; msgtype=response", url="https://a.example/", **extra
):
    head = {
        "WARC-Type": kind,
        "WARC-Target-URI": url,
        "Content-Type": content_type,
        "Content-Length": len(block),
        **extra,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def response(body=PAGE, status="200 OK", **headers):
    body = body.encode() if isinstance(body, str) else body
    head = {"Content_Type": "text/html; charset=utf-8", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items() if value is not None)
    return record(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)


@pytest.fixture(scope="module")
def truth(shared):
    rows = [json.loads(line) for line in iterate_lines(shared / "warc" / "fixture_truth.jsonl.zst")]
    return {row["uri"]: row for row in rows}


def split(path):
    items = list(read_file(Source(path.name, str(path), "unknown")))
    bad = [item for item in items if isinstance(item, BadRecord)]
    return [item for item in items if not isinstance(item, BadRecord)], bad


def test_every_good_response_is_found_with_its_text_and_the_others_by_reason(shared, truth, overlap):
    good, bad = split(shared / "warc" / "fixture.warc.gz")
    wanted = {uri for uri, row in truth.items() if row["keep"]}
    assert {item.url for item in good} == wanted
    assert all(item.line == truth[item.url]["record"] + 1 for item in good)
    scores = [overlap(item.text, truth[item.url]["main_text"]) for item in good]
    assert sum(scores) / len(scores) >= 0.97
    assert sum(score >= 0.8 for score in scores) >= len(scores) - 2
    assert Counter(item.reason for item in bad) == {
        "redirect": 1, "not_found": 1, "http_error": 1, "content_type": 3, "robots_txt": 1, "empty_body": 1,
        "no_content_type": 1, "truncated_body": 1,
    }  # fmt: skip
    assert {item.reason for item in bad if not item.left_out} == {"truncated_body"}


def test_of_the_truncated_archive_all_but_the_last_record_is_kept(shared, truth, overlap):
    good, bad = split(shared / "warc" / "truncated.warc.gz")
    assert len(good) == 3
    assert all(overlap(item.text, truth[item.url]["main_text"]) > 0.95 for item in good)
    assert [(item.input, item.line, item.reason) for item in bad] == [("truncated.warc.gz", 9, "truncated_gz")]


def test_wet_texts_are_the_ones_told(shared, truth):
    good, bad = split(shared / "warc" / "fixture.warc.wet.gz")
    assert not bad
    assert len(good) == 150
    assert all(item.text.split() == truth[item.url]["main_text"].split() for item in good)


def test_bodies_are_decoded_whatever_they_went_through(read):
    data = PAGE.encode()
    raw = zlib.compressobj(wbits=-15)
    brotli = io.BytesIO()
    writer = BrotliWriter(brotli)
    writer.write(data)
    writer.close()
    chunked = b"".join(b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in (data[:30], data[30:])) + b"0\r\n\r\n"
    bodies = [
        response(gzip.compress(data), Content_Encoding="gzip"),
        response(zlib.compress(data), Content_Encoding="deflate"),
        response(raw.compress(data) + raw.flush(), Content_Encoding="deflate"),
        response(brotli.getvalue(), Content_Encoding="br"),
        response(chunked, Transfer_Encoding="chunked"),
        response(data, Transfer_Encoding="chunked"),
        response(data, Content_Encoding="gzip"),
        response(data, Content_Length=10),
        response(PAGE.encode("cp1252"), Content_Type="text/html; charset=iso-8859-1"),
        response(PAGE.encode("cp1252"), Content_Type="TEXT/HTML; Charset='windows-1252'"),
        record(data, "resource", "text/html"),
        record(b"HTTP/1.0 200 OK\nContent-Type: text/html\n\n" + data),
        response(TEXT, Content_Type="text/plain"),
    ]
    good, bad = read("a.warc", b"".join(bodies))
    assert not bad
    assert [item.text for item in good] == [TEXT] * len(bodies)
    assert good[0].url == "https://a.example/"
    assert good[0].title == "T"


def test_damaged_responses_are_told_and_the_next_are_read(read, reasons):
    data = gzip.compress(PAGE.encode() * 50)
    bodies = {
        response(data[:-20], Content_Encoding="gzip"): "damaged_http",
        response(b"\x1f\x8b\x08broken", Content_Encoding="gzip"): "damaged_http",
        response(b"5\r\nabcde\r\nff\r\nshort", Transfer_Encoding="chunked"): "damaged_http",
        response(b"\x1b\x00\x80garbage", Content_Encoding="br"): "damaged_http",
        response(b"\x00\x01\x02", Content_Encoding="snappy"): "content_encoding",
        response(gzip.compress(bytes(10**7)), Content_Encoding="gzip"): "too_long",
        response(bytes(2 * 10**6)): "too_long",
        response(PAGE, Content_Length=10**6): "truncated_body",
        record(b"no http at all"): "damaged_http",
        response("<html><body><nav>x</nav><script>y</script></body></html>"): None,
        record(b"", "klingon"): "damaged_warc",
        response(""): "empty_body",
        response(PAGE, "304 Not Modified"): "redirect",
        response(PAGE, "410 Gone"): "not_found",
        response(PAGE, "206 Partial Content"): "http_error",
        response(PAGE, Content_Type=None): "no_content_type",
        record(b"", "metadata"): None,
        b"garbage in between\r\n\r\n": "damaged_warc",
        b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: many\r\n\r\n": "damaged_warc",
    }
    good, bad = read("a.warc", b"".join(body + response() for body in bodies), max_record_bytes=10**6)
    assert sum(item.text == TEXT for item in good) == len(bodies)
    wanted = [(2 * number + 1, reason) for number, reason in enumerate(bodies.values()) if reason]
    assert reasons(bad) == wanted


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_record_that_ends_early_is_the_one_bad_record(read, reasons, part):
    last = response(PAGE * 20)
    for kind in (last, last.replace(b"WARC-Type: response", b"WARC-Type: metadata")):
        good, bad = read("a.warc", response() + kind[: int(len(kind) * part)])
        assert [item.text for item in good] == [TEXT]
        assert reasons(bad) == [(2, "truncated_warc")]


def test_bytes_that_are_no_archive_are_one_bad_record(read, reasons):
    assert reasons(read("a.warc", b"\x00\x01garbage" * 100_000)[1]) == [(1, "damaged_warc")]
    assert read("a.warc", b"") == ([], [])


def test_the_text_is_that_of_the_main_text(read):
    page = "<html><body><nav><a href=/>Home</a></nav><main><p>A long paragraph of an article.</p></main></body></html>"
    (item,), _ = read("a.warc.gz", gzip.compress(response(page)))
    assert item.text == main_text(page).text == "A long paragraph of an article."
