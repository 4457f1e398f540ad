"""Charsets of pages."""

import base64
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.html import decode_page, python_codec

_MEANT = {"gb2312": "gb18030", "gbk": "gb18030", "iso-8859-1": "cp1252", "euc-kr": "cp949", "shift_jis": "cp932"}


@pytest.fixture(scope="module")
def rows(shared):
    rows = [json.loads(line) for line in iterate_lines(shared / "html" / "dirty_pages.jsonl.zst")]
    return [(base64.b64decode(row["html_b64"]), row["charset"]) for row in rows]


@pytest.mark.parametrize("case", ["as it is", "nothing stated", "a wrong header"])
def test_pages_in_twelve_charsets(rows, case):
    assert len({charset for _, charset in rows}) == 12
    for data, charset in rows:
        if case == "nothing stated":
            data = re.sub(rb'<meta charset="[^"]*">', b"", data)
        found = decode_page(data, "ISO-8859-1" if case == "a wrong header" else None)
        assert found.text == data.decode(_MEANT.get(charset, charset)), charset
        assert not found.wrong


def test_what_is_stated_is_weighed():
    russian = "<p>Привет, это проверка кодировки.</p>"
    assert decode_page(russian.encode("koi8-r"), "koi8-r").text == russian
    assert decode_page(b"<meta charset=koi8-r>" + russian.encode("koi8-r"), "latin1").text.endswith(russian)
    assert decode_page(russian.encode("utf-16")).text == russian
    assert decode_page(b"\xef\xbb\xbf" + russian.encode(), "koi8-r").text == russian
    assert decode_page(russian.encode(), "windows-1251").text == russian
    assert decode_page(b"<meta charset=utf-16><p>plain").text == "<meta charset=utf-16><p>plain"
    assert decode_page(b"<?xml version='1.0' encoding='windows-1251'?>" + russian.encode("cp1251")).text.endswith(
        russian
    )
    assert decode_page("日本語".encode("iso2022_jp"), "iso-2022-jp").text == "日本語"
    damaged = decode_page("Größe und Straße über Öl".encode().replace("Ö".encode(), b"\xff"), "utf-8")
    assert (damaged.text, damaged.wrong) == ("Größe und Straße über \ufffdl", 1)
    assert decode_page(b"caf\xe9 \x93x\x94 \x81").text == "café “x” \x81"


def test_labels_mean_what_browsers_take_them_for():
    labels = {"GB2312": "gb18030", "latin1": "cp1252", "x-sjis": "cp932", "utf8": "utf-8", "ks_c_5601-1987": "cp949"}
    assert {label: python_codec(label) for label in labels} == labels
    wrong = ("", None, "klingon", "rot13", "zlib", "utf-7", "idna", "base64", "x" * 500, "\0")
    for label in (*wrong, "UNDEFINED", "unicodeescape", "raw_unicode_escape"):
        assert python_codec(label) is None


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200),
    st.none() | st.sampled_from(["utf-8", "big5", "utf-16", "iso-2022-jp"]) | st.text(max_size=10),
)
def test_any_bytes_are_decoded(data, label):
    found = decode_page(data, label)
    found.text.encode()
