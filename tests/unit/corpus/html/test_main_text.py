"""Main text of real and of templated pages, beside what must hold for every page."""

import base64
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.clean import RawHtml
from maxtrain.corpus.document import Document
from maxtrain.corpus.html import all_text, decode_page, main_text, quality_text
from maxtrain.corpus.rules import Change, Drop


@pytest.fixture(scope="module")
def pages(shared):
    """Markup and main text of real and of dirty pages."""
    real = [json.loads(line) for line in iterate_lines(shared / "html" / "real_pages.jsonl.zst")]
    dirty = [json.loads(line) for line in iterate_lines(shared / "html" / "dirty_pages.jsonl.zst")]
    for row in dirty:
        row["html"] = decode_page(base64.b64decode(row["html_b64"])).text
    return {"real": real, "dirty": dirty}


@pytest.mark.parametrize(("name", "least", "every"), [("real", 0.96, 0.88), ("dirty", 0.985, 0.97)])
def test_main_text_of_pages(pages, overlap, name, least, every):
    scores: dict[str, list[float]] = {}
    for row in pages[name]:
        key = row["style"] if name == "dirty" else row["source"]
        scores.setdefault(key, []).append(overlap(main_text(row["html"]).text, row["main_text"]))
    found = [score for group in scores.values() for score in group]
    assert sum(found) / len(found) >= least
    assert min(sum(group) / len(group) for group in scores.values()) >= every


def test_no_language_is_worse_off(pages, overlap):
    for row in pages["dirty"]:
        assert overlap(main_text(row["html"]).text, row["main_text"]) >= 0.9, row["id"]


def test_titles_and_languages(pages):
    # Where the truth was made by another program, it may be a heading instead.
    rows = pages["real"][::4]
    found = [main_text(row["html"]) for row in rows]
    same = [" ".join((row["title"] or "").split()) in (page.title or "") for row, page in zip(rows, found, strict=True)]
    assert sum(same) / len(same) > 0.95
    assert sum(page.lang is not None for page in found) > 25


PARTS = [
    "<p>",
    "</p>",
    "<ul>",
    "<li>",
    "<a/href=x>",
    "</div>",
    "<div/class=ad>",
    "x",
    "<table>",
    "<td>",
    "<!--",
    "<script>",
    "\x00",
    "&#0;",
    "&#xd800;",
    "<svg>",
    "<template>",
    "<html/lang='",
    "<body>",
]
PAGE = """<!DOCTYPE html><html lang="en-GB"><head><title>A  title</title><style>p{}</style></head>
<body class="has-sidebar"><header id="top"><a href="/">Home</a> <a href="/login">Log in</a></header>
<nav><ul><li><a href="/1">One</a></li><li><a href="/2">Two</a></li></ul></nav>
<div id="cookie-banner">We use cookies. <button>OK</button></div>
<main><article><header><h1>Heading</h1></header>
<p>A first paragraph with <b>bold</b> and <a href="/x">a link</a>, and&nbsp;more of it.</p>
<div class="ad-slot"><span>Advertisement</span> Buy now</div>
<pre><code>def f(x):
    if x:
        return  1

</code></pre>
<ul><li>one</li><li>two<ul><li>inner</li></ul></li></ul><ol><li>first</li><li>second</li></ol>
<table><tr><th>Name</th><th>Value</th></tr><tr><td>alpha</td><td>1</td></tr></table>
<div class="box"><p>Anzeige</p><p>Jetzt kaufen</p></div>
<p style="display: none">hidden</p><p hidden>hidden too</p>
<aside class="note">A note that belongs here.</aside>
</article></main>
<aside class="sidebar"><h3>Related</h3><a href="/3">Three</a></aside>
<div class="related"><a href="/4">Four</a></div>
<footer>Copyright</footer><script>var x = "<p>script</p>";</script></body></html>"""


def test_what_a_page_is_made_of():
    page = main_text(PAGE)
    assert (page.title, page.lang) == ("A title", "en-GB")
    for part in (
        "Heading\n\nA first paragraph with bold and a link, and\xa0more of it.",
        "def f(x):\n    if x:\n        return  1",
        "- one\n- two\n  - inner",
        "1. first\n2. second",
        "Name\tValue\nalpha\t1",
        "A note that belongs here.",
    ):
        assert part in page.text
    for part in (
        "Home",
        "Log in",
        "One",
        "cookies",
        "Buy",
        "hidden",
        "Related",
        "Three",
        "Four",
        "Copyright",
        "script",
    ):
        assert part not in page.text
    assert "Anzeige" not in page.text
    everything = all_text(PAGE).text
    assert "Home" in everything
    assert "cookies" in everything
    assert "hidden" not in everything


def test_a_name_alone_does_not_cost_a_page_its_text():
    text = "This is the whole text of the page, which stands in a part with an unlucky name. " * 5
    for name in ("sidebar", "cookie", "comments", "footer", "ad", "modal", "share"):
        assert main_text(f"<body><div class='{name}'><p>{text}</p></div></body>").text == text.strip()
    links = "".join(f"<li><a href=/{n}>An entry of the index number {n}</a></li>" for n in range(30))
    assert "number 29" in main_text(f"<body><ul>{links}</ul></body>").text
    posts = "".join(f"<div class='comment'><p>Post {n} of a thread, by somebody.</p></div>" for n in range(20))
    assert "Post 19" in main_text(f"<body><h1>Thread</h1>{posts}</body>").text


def test_text_in_scripts_without_spaces():
    page = "<body><nav><a href=/>首页</a></nav><p>白日依山尽，黄河入海流。</p><div><p>广告</p>限时特惠</div></body>"
    assert main_text(page).text == "白日依山尽，黄河入海流。"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300) | st.lists(st.sampled_from(PARTS), max_size=40).map("".join))  # fmt: skip
def test_any_text_is_a_page(html):
    for function in (main_text, all_text):
        page = function(html)
        page.text.encode()
        assert page.text == page.text.strip()
    assert main_text(html) == main_text(html)


@pytest.mark.parametrize(
    "seed",
    ["<div>", "<p>", "<a href=x>", "<table><td>", "<b>", "x ", "&amp;", "<ul><li>", "</p>", "<!--", "<div class=ad>x"],
)
def test_time_for_a_page_is_bounded(seed):
    started = time.process_time()
    main_text(seed * 20_000)
    assert time.process_time() - started < 10


def document(text, category="web"):
    return Document("0" * 32, text, "s", "en", category, "MIT", "a", 1)


def test_the_rule_takes_text_out_of_markup_and_leaves_the_rest():
    rule = RawHtml()
    assert rule.apply(document(PAGE)) == Change(main_text(PAGE).text)
    assert rule.apply(document("<html><script>x</script></html>")) == Drop("no_main_text")
    for text in ("", "plain", "a < b", "x <html>", "x" * 10**6):
        assert rule.apply(document(text)) is None
    assert rule.apply(document(PAGE, "code")) is None
    changed = RawHtml(mode="quality").apply(document(PAGE))
    assert isinstance(changed, Change)
    assert "first paragraph" in changed.text
    assert "first paragraph" in quality_text(PAGE).text


def test_we_are_no_worse_than_the_library_alone(pages, overlap):
    rows = pages["real"][::10] + pages["dirty"][::10]
    ours = sum(overlap(main_text(row["html"]).text, row["main_text"]) for row in rows)
    theirs = sum(overlap(extract_plain_text(row["html"], main_content=True), row["main_text"]) for row in rows)
    assert ours > theirs
