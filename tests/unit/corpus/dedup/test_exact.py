"""Exact duplicates of texts and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxtrain.corpus.dedup.exact import ExactConfig, normalise_text, normalise_url, text_keys, url_keys


def same(a, b, **options):
    keys = text_keys([a, b], ExactConfig(**options))
    return bool((keys[0] == keys[1]).all())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Hello  World\n", "hello world"),
        ("ﬁne Ｔｅｘｔ", "fine text"),
        ("STRASSE", "straße"),
        ("e\u0301te\u0301", "été"),
        ("中文文本\n在此换行", "中文文本在此换行"),
    ],
)
def test_equal_texts(a, b):
    assert same(a, b)


def test_different_texts():
    assert not same("version 1.2", "version 12")
    assert same("version 1.2", "Version 12!", ignore_punctuation=True)
    assert not same("床前明月光，", "床前明月光。")
    assert same("床前明月光，", "床前明月光。", ignore_punctuation=True)
    assert not same("", "a")


@given(st.text())
def test_normalisation_of_any_text(text):
    for config in (ExactConfig(), ExactConfig(ignore_punctuation=True)):
        once = normalise_text(text, config)
        assert not any(character.isspace() for character in once)
        assert text_keys([text, text + "  \n"], config)[0].tolist() == text_keys([text], config)[0].tolist()


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://WWW.Example.org:443/a/b/?b=2&a=1&utm_source=x#top", "example.org/a/b?a=1&b=2"),
        ("http://example.org", "example.org"),
        ("http://example.org:8080/", "example.org:8080"),
        ("example.org/%7Euser/%e4%b8%ad", "example.org/~user/%E4%B8%AD"),
        ("http://example.org/中", "example.org/%E4%B8%AD"),
        ("http://example.org/?q=&fbclid=1", "example.org?q="),
        ("http://example.org/#!/page", "example.org#!/page"),
        ("http://example.org:99999999/", "http://example.org:99999999/"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_addresses(url, normal):
    assert normalise_url(url) == normal


@given(st.text())
def test_any_address(url):
    normalise_url(url)
    normalise_url("http://example.org/" + url)
    url_keys([url, None, ""])


def test_documents_without_an_address_have_no_key():
    keys, given = url_keys(["http://a.example/x", None, " ", "https://www.a.example/x/"])
    assert given.tolist() == [True, False, False, True]
    assert (keys[0] == keys[3]).all()
