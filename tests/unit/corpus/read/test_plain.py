"""Plain text, Markdown, HTML, LaTeX."""

import time
from itertools import pairwise

import pytest

from maxtrain.corpus.read.latex import latex_text

LATEX = r"""\documentclass[11pt]{article}
\usepackage{amsmath} % a comment
\newcommand{\R}{\mathbb{R}}
\newcommand{\say}[2][hello]{#1 to \emph{#2}}
\def\angled#1{<#1>}
\title{On \emph{Things} \& Others}
\author{Somebody}
\begin{document}
\maketitle
\section{Introduction}\label{sec:i}
We show 50\% of~cases \cite{a,b}, see (\ref{x}) and call main(). % drop me
``Quoted'' --- na\"{\i}ve caf\'e Erd\H{o}s. \say{Bob}, \say[bye]{Al}. \angled{bar}
Let $x \in \R$ and $$E=mc^2$$ hold.
\begin{align}
a &= b \\ c &= d
\end{align}
\begin{itemize} \item one \item[two] second \end{itemize}
\begin{verbatim}
 % code $x$
   \foo
\end{verbatim}
\begin{tabular}{ll} a & b \\ c & d \end{tabular}
See \href{http://x.example}{a link}.\footnote{A note.} \verb|a_b%|
\begin{thebibliography}{9}\bibitem{a} Nobody\end{thebibliography}
\end{document} and after"""


def test_latex_becomes_text():
    found = latex_text(LATEX)
    assert found.title == "On Things & Others"
    for part in (
        "Introduction\n\nWe show 50% of cases, see and call main().",
        "“Quoted” — naïve café Erdős. hello to Bob, bye to Al. <bar>",
        r"Let $x \in \mathbb{R}$ and $$E=mc^2$$ hold.",
        "\\begin{align}\na &= b \\\\ c &= d\n\\end{align}",
        "- one\n- two second",
        " % code $x$\n   \\foo",
        "a\tb\nc\td",
        "See a link. (A note.) a_b%",
    ):
        assert part in found.text
    for part in ("drop me", "cite", "usepackage", "Nobody", "Somebody", "after", "label"):
        assert part not in found.text


@pytest.mark.parametrize(
    "seed", ["{", "\\section{", "\\begin{verbatim}", "\\(", "$", "\\item[", "\\verb|", "\\a\n", "%", " "]
)
def test_time_for_latex_grows_with_its_length_alone(seed):
    started = time.process_time()
    latex_text(seed * 20_000)
    assert time.process_time() - started < 3


def test_macros_that_run_away_are_bounded():
    letters = "abcdefghijklmnopqrstuvwxyz"
    bomb = "".join(rf"\newcommand{{\x{b}}}{{\x{a}\x{a}}}" for a, b in pairwise(letters))
    started = time.process_time()
    for body in (r"\xz end", r"$\xz$ end", r"\newcommand{\xa}{\xz}\xz end"):
        assert "end" in latex_text(bomb + r"\newcommand{\xa}{lol}" + body, 10**6).text
    assert "x" in latex_text(r"\def\a{\a}\a x").text
    assert time.process_time() - started < 10


def test_text_is_a_document_a_file_a_paragraph_or_a_part(read, reasons):
    data = "first\r\nline\r\n\r\nsecond 第二\n---\nthird\n"
    (whole,), _ = read("a.txt", data)
    assert whole.text == data.replace("\r\n", "\n")
    assert (whole.line, whole.origin, whole.source) == (1, "a.txt", "a")
    good, bad = read("a.txt", data, documents="paragraphs")
    assert [(record.line, record.text) for record in good] == [(1, "first\nline"), (4, "second 第二\n---\nthird")]
    good, bad = read("a.txt", data, documents="separator", separator="---")
    assert [record.line for record in good] == [1, 6]
    assert not bad
    damaged = b"good\n\nb\xffd " + "第二".encode() + b"\n\n" + b"x" * 99 + b"\n\nlast"
    good, bad = read("a.txt", damaged, documents="paragraphs", max_record_bytes=50)
    assert [record.text for record in good] == ["good", "last"]
    assert reasons(bad) == [(3, "invalid_utf8"), (5, "too_long")]


def test_text_in_another_charset_is_decoded_or_told(read, reasons):
    chinese = "白日依山盡，黃河入海流。欲窮千里目，更上一層樓。" * 4
    for charset in ("gb18030", "big5", "utf-16", "utf-8-sig"):
        (record,), _ = read("a.txt", chinese.encode(charset))
        assert record.text == chinese
    (record,), _ = read("a.txt", "Привет, мир".encode("cp1251"), charset="windows-1251")
    assert record.text == "Привет, мир"
    for data, options, reason in (
        (chinese.encode()[:-1], {}, "invalid_utf8"),
        (b"a\xff", {"charset": "utf-8"}, "invalid_utf8"),
        (b"\0\1\2abc", {}, "binary"),
        (b"  \n", {}, "empty_text"),
        (b"", {}, "empty_text"),
        (b"a", {"charset": "klingon"}, "unknown_charset"),
        (b"a", {"charset": "rot13"}, "unknown_charset"),
        (b"a" * 100, {"max_record_bytes": 10}, "too_long"),
    ):
        assert reasons(read("a.txt", data, **options)[1]) == [(1, reason)]


def test_markdown_keeps_its_marks_and_loses_its_metadata(read):
    (record,), _ = read("a.md", "---\ntitle: 'A B'\ndate: x\n---\n# Head\n\n```\ncode\n```\n")
    assert (record.text, record.title, record.form) == ("# Head\n\n```\ncode\n```\n", "A B", "markdown")
    (record,), _ = read("a.md", "x\n\n# Head #\n")
    assert record.title == "Head"


def test_html_is_read_as_the_recipe_says(read, reasons):
    page = (
        "<html lang=de><head><title>T  t</title><meta charset=iso-8859-1></head><body><nav><a href=/>Heim</a></nav>"
        "<main><p>Größe und mehr Text in diesem Absatz.</p></main></body></html>"
    ).encode("cp1252")
    (record,), _ = read("a.html", page)
    assert (record.text, record.title, record.lang) == ("Größe und mehr Text in diesem Absatz.", "T t", "de")
    (record,), _ = read("a.html", page, html="all")
    assert "Heim" in record.text
    (record,), _ = read("a.html", page, html="markup")
    assert record.form == "html"
    assert record.text.startswith("<html lang=de>")
    (record,), _ = read("a.html", page, html="quality")
    assert "Größe" in record.text
    assert reasons(read("a.html", "<html><script>x</script>")[1]) == [(1, "no_main_text")]
    assert reasons(read("a.html", b"")[1]) == [(1, "empty_text")]


def test_a_latex_file_is_one_record(read):
    (record,), bad = read("paper.tex", LATEX)
    assert not bad
    assert record.title == "On Things & Others"
