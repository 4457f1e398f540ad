"""Dumps of wikis and forums."""

import bz2
import time
from xml.sax.saxutils import escape, quoteattr

import pytest

from maxtrain.corpus.read.wikitext import wikitext_to_text

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><sitename>Wikipedia</sitename><base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
    <namespaces><namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace></namespaces></siteinfo>
"""
ARTICLE = """{{Infobox Ort|Name=X|Bild={{nested|a}}}}
'''Foo''' ({{lang-fr|Fou}}, {{IPA|x}}) is a [[bar|Bar]] in [[Paris]]<ref name="a">{{cite web|url=x}}</ref>, \
{{convert|5|km|mi}} long<ref name=b/>.<!-- hidden -->
[[Datei:A.jpg|mini|A [[caption]] here]]
== History ==
* one
** two
# three [http://a.example label] and [http://c.example].
=== Empty ===
== See also ==
{{reflist}}
== Data ==
{| class="wikitable"
|+ Caption
|-
! Name !! Value
|-
| style="color:red" | Alpha || 1
|-
| [[Beta|B]]
| 2 {{nowrap|x y}}
|}
Formula <math>x^2 < y</math>, <nowiki>[[raw]]</nowiki>, AT&amp;T.
<syntaxhighlight lang="python">
def f(x):  return {{x}}
</syntaxhighlight>
[[Kategorie:Foo]] [[fr:Fou]] [[:Kategorie:Seen]] {{Unclosed | text
"""


def page(number, text=ARTICLE, title="Foo Bär", ns=0, extra="", model="wikitext"):
    return (
        f"<page><title>{escape(title)}</title><ns>{ns}</ns><id>{number}</id>{extra}<revision><id>9{number}</id>"
        f"<timestamp>2026-01-01T00:00:00Z</timestamp><model>{model}</model>"
        f'<text bytes="1" xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def dump(*pages, end="</mediawiki>"):
    return (HEAD + "".join(pages) + end).encode()


def test_an_article_becomes_text(read):
    (item,), bad = read("dewiki-pages-articles.xml.bz2", bz2.compress(dump(page(7))))
    assert not bad
    assert (item.original_id, item.title, item.lang, item.line) == ("7", "Foo Bär", "de", 1)
    assert item.url == "https://de.wikipedia.org/wiki/Foo_B%C3%A4r"
    for part in (
        "Foo (Fou) is a Bar in Paris, 5 km long.",
        "History\n\n- one\n  - two\n- three label and.",
        "Data\n\nCaption\nName\tValue\nAlpha\t1\nB\t2 x y",
        "Formula $x^2 < y$, [[raw]], AT&T.",
        "def f(x):  return {{x}}",
        "Kategorie:Seen",
    ):
        assert part in item.text
    for part in ("Infobox", "cite", "caption", "See also", "Empty", "hidden", "Kategorie:Foo", "Fou]]", "wikitable"):
        assert part not in item.text


def test_what_is_no_article_is_told_by_reason(read, reasons):
    pages = [
        page(1), page(2, "#REDIRECT [[Foo]]"), page(3, "#WEITERLEITUNG [[Foo]]"),
        page(4, extra='<redirect title="Foo" />'), page(5, ns=1), page(6, model="json"), page(7, "  "),
        page(8, "{{only}}"), page(9, "x" * 5000), page(10).replace("<ns>", "<ns"), page(11).replace("Foo", "&lol;"),
        page(12),
    ]  # fmt: skip
    good, bad = read("w.xml", dump(*pages), kind="wiki", max_record_bytes=4000)
    assert [item.line for item in good] == [1, 12]
    assert reasons(bad) == [
        (2, "redirect"), (3, "redirect"), (4, "redirect"), (5, "namespace"), (6, "content_model"), (7, "empty_text"),
        (8, "empty_text"), (9, "too_long"), (10, "not_xml"), (11, "not_xml"),
    ]  # fmt: skip
    assert [item.left_out for item in bad] == [True] * 5 + [False] * 5
    good, _ = read("w.xml", dump(page(5, ns=1)), kind="wiki", namespaces=(0, 1))
    assert len(good) == 1


def test_a_truncated_dump_keeps_what_is_whole(read, reasons):
    data = dump(page(1), page(2), page(3))
    for cut, count in ((data[:-200], 2), (data[: -len("</mediawiki>")], 3)):
        good, bad = read("w.xml", cut, kind="wiki")
        assert len(good) == count
        assert reasons(bad) == [(count + 1, "truncated_xml")]
    good, bad = read("w.xml.bz2", bz2.compress(data)[:-10], kind="wiki")
    assert [item.reason for item in bad] == ["truncated_bz2"]


def test_entities_are_never_read(read, reasons):
    bomb = '<?xml version="1.0"?><!DOCTYPE m [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;"><!ENTITY x SYSTEM "file:///etc/passwd">]>'
    data = bomb.encode() + dump(page(1).replace("Foo", "&b;"), page(2).replace("Foo", "&x;"), page(3))
    good, bad = read("w.xml", data, kind="wiki")
    assert [item.line for item in good] == [3]
    assert reasons(bad) == [(1, "not_xml"), (2, "not_xml")]
    inner = page(1).replace("<title>", '<!DOCTYPE a [<!ENTITY a "a">]><title>')
    assert reasons(read("w.xml", dump(inner), kind="wiki")[1]) == [(1, "not_xml")]


@pytest.mark.parametrize(
    "seed",
    [
        "{{",
        "[[",
        "{|\n",
        "|",
        "{{a|",
        "[[a|",
        "<ref>",
        "<!--",
        "<math>",
        "}}",
        "==a==\n",
        "''",
        "[http://a ",
        "{{{a|",
        "-{",
        "(",
        " ",
        "\n ",
    ],
)
def test_time_for_wikitext_grows_with_its_length_alone(seed):
    started = time.process_time()
    wikitext_to_text(seed * 20_000)
    assert time.process_time() - started < 3


def row(**attributes):
    return "  <row " + " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items()) + " />\n"


QUESTION = {"Id": 1, "PostTypeId": 1, "AcceptedAnswerId": 3, "Score": 5, "Title": "How do I sort a list?",
            "Body": "<p>Given <code>a = [2, 1]</code>:</p>\n<pre><code>sort(a)\n  end\n</code></pre>",
            "Tags": "<python><list>", "ContentLicense": "CC BY-SA 4.0"}  # fmt: skip


def posts(*rows, end="</posts>"):
    return ('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(rows) + end).encode("utf-8")


def test_a_question_and_its_answers_are_one_document(read, reasons):
    data = posts(
        row(Id=2, PostTypeId=2, ParentId=1, Score=9, Body="<p>Use sorted &amp; co.</p>"),
        row(**QUESTION),
        row(Id=3, PostTypeId=2, ParentId=1, Score=1, Body="<p>Use <b>sort</b>.</p><ul><li>one</li></ul>"),
        row(Id=4, PostTypeId=2, ParentId=77, Score=1, Body="lost"),
        row(Id=5, PostTypeId=5, Body="wiki"),
        row(Id=6, PostTypeId=1, Title="", Body=""),
        row(Id=1, PostTypeId=1, Title="again", Body="x"),
        row(Id="x", PostTypeId=1, Title="bad", Body="x"),
        row(Title="no id"),
        row(Id=9, PostTypeId=1, Title="Zweite", Body="Größe", Tags="|a|b|"),
        "  <row Id='1' Body=broken />\n",
    )
    good, bad = read("math/Posts.xml", data)
    first, second = good
    assert first.text == (
        "How do I sort a list?\n\nGiven a = [2, 1]:\n\nsort(a)\n  end\n\nUse sort.\n\n- one\n\nUse sorted & co."
    )
    assert (first.original_id, first.title, first.licence, first.line) == ("1", QUESTION["Title"], "CC-BY-SA-4.0", 2)
    assert dict(first.notes) == {"score": "5", "answers": "2", "tags": "python list"}
    assert (second.text, second.notes["tags"]) == ("Zweite\n\nGröße", "a b")
    assert sorted(reasons(bad)) == [
        (4, "no_question"), (5, "post_type"), (6, "empty_text"), (7, "doubled_id"), (8, "bad_field"),
        (9, "missing_field"), (11, "not_xml"),
    ]  # fmt: skip


def test_a_truncated_forum_keeps_what_is_whole(read, reasons):
    for data, count in (
        (posts(row(**QUESTION), row(**QUESTION), end="")[:-60], 1),
        (posts(row(**QUESTION), end=""), 1),
    ):
        good, bad = read("Posts.xml", data)
        assert len(good) == count
        assert bad[-1].reason == "truncated_xml"
        assert bad[-1].line == 2
    assert reasons(read("Posts.xml", b"<posts></posts>")[1]) == [(1, "no_elements")]
