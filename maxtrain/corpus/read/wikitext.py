"""Wikitext to text: one pass with a stack of open templates, links and tables; time grows with the length alone.

Templates are not expanded, since their definitions are not at hand: those that only dress a text give it, the others
are dropped, as are references, media, categories and galleries. Tables become rows with tabs, formulas stay as they
are written, between dollars.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape

_DROPPED_TAGS = (
    "ref", "gallery", "timeline", "imagemap", "templatedata", "graph", "mapframe", "maplink", "score", "references",
    "templatestyles", "inputbox", "categorytree", "section", "indicator", "style",
)  # fmt: skip
_CODE_TAGS = ("syntaxhighlight", "source", "pre")
_TAG = re.compile(
    rf"<!--|<(/?)({'|'.join((*_DROPPED_TAGS, *_CODE_TAGS, 'nowiki', 'math', 'chem', 'ce'))})\b([^<>]*?)(/?)>",
    re.IGNORECASE,
)
_HTML = re.compile(r"</?[A-Za-z][^<>\n]*>")
_BREAK = re.compile(r"<(?:br|/p|/div|/li|/tr)\b[^<>\n]*>", re.IGNORECASE)
_TOKEN = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|^[ \t:*#]*\{\|[^\n]*|^[ \t]*\|\}(?!\})|^[ \t]*\|-[^\n]*|^[ \t]*(?:\|\+|[|!])|\|\||!!|\|",
    re.MULTILINE,
)
_PARAMETER = re.compile(r"\{\{\{[^{}|]{0,100}(?:\|([^{}]{0,1000}))?\}\}\}")
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:|mailto:|//)[^\s\]]{0,500}[ \t]?([^\]\n]{0,200})\]")
_QUOTES = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^(={1,6})[ \t]?(.{1,300}?)\1[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^([*#:;]+)[ \t]*", re.MULTILINE)
_MAGIC = re.compile(r"__[A-Z]{3,20}__|-\{(?:[^{}|]{0,20}\|)?([^{}]{0,500})\}-")
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_LOOSE_MARKS = re.compile(r"(?<=[(（])[ ,;，；、]{1,8}|[ ,;，；、]{1,8}(?=[)）])| (?=[.,](?:\s|$))")
"""What templates and links that gave nothing leave beside brackets and full stops."""
_EMPTY_BRACKETS = re.compile(r" ?[(（][\s,;，；、:：]*[)）]")
_TRAILING = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)
_SPACES = re.compile(r"(?<=\S) {2,}")
_REDIRECT = re.compile(r"\s*#[^\s\[#]{3,20}[ \t:：]*\[\[", re.IGNORECASE)
_INTERWIKI = re.compile(r"[a-z]{2,3}(?:-[a-z-]{2,10})?")
_ATTRIBUTES = re.compile(r"\s*(?:[\w-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s|\"']+)\s*)+")
_KEPT = re.compile("\ue000([0-9]+)\ue001")
_MARKS = {0xE000: None, 0xE001: None, 1: None}

_FIRST = frozenset(("nowrap", "nobr", "small", "big", "abbr", "quote", "blockquote", "cquote", "em", "strong", "sub",
                    "sup", "underline", "code", "tt", "kbd", "var", "mvar", "math", "nihongo", "formatnum", "center",
                    "smaller", "larger", "circa", "harvnb title", "ill", "interlanguage link", "link-interwiki",
                    "visible anchor", "anchored", "term", "defn", "lang-zh-classical"))  # fmt: skip
_SECOND = frozenset(("lang", "langue", "tl", "transl", "script", "color", "colour", "font color", "lien"))
_FIXED = {"!": "|", "=": "=", "snd": " – ", "spnd": " – ", "ndash": "–", "mdash": "—", "spaced ndash": " – ",
          "nbsp": " ",
          "·": " · ", "•": " • ", "dot": " · ", "'": "'", "\"": '"', "(": "(", ")": ")"}  # fmt: skip


def is_redirect(text: str) -> bool:
    """Whether a page only sends readers to another; the word for it depends on the wiki's language."""
    return _REDIRECT.match(text) is not None and "\n*" not in text[:200]


@dataclass
class _Frame:
    """Something open: its arguments so far, each a list of pieces."""

    kind: str
    arguments: list[list[str]] = field(default_factory=lambda: [[]])
    rows: list[list[str]] = field(default_factory=list)

    def put(self, text: str) -> None:
        self.arguments[-1].append(text)

    def values(self) -> list[str]:
        return ["".join(argument) for argument in self.arguments]


def wikitext_to_text(source: str, no_text: frozenset[str] = frozenset(("file", "image", "category"))) -> str:
    """Text of a page.

    Args:
        source: wikitext.
        no_text: names of namespaces, in lower case, links to which are no text.
    """
    kept: list[str] = []
    text = _without_tags(source.replace("\r\n", "\n").translate(_MARKS), kept)
    text = _PARAMETER.sub(lambda match: match[1] or "", text)
    text = _resolve(text, no_text)
    text = _EXTERNAL.sub(r"\1", text)
    text = _HTML.sub("", _BREAK.sub("\n", text))
    text = _QUOTES.sub("", text)
    text = _MAGIC.sub(lambda match: match[1] or "", text)
    text = unescape(text).replace("\xa0", " ")
    text = _LOOSE_MARKS.sub("", _EMPTY_BRACKETS.sub("", text))
    text = _ITEM.sub(_item, text)
    text = _without_empty_sections(text)
    text = _SPACES.sub(" ", _TRAILING.sub("", text))
    text = _BLANK_LINES.sub("\n\n", text).strip()
    return _KEPT.sub(lambda match: kept[int(match[1])] if int(match[1]) < len(kept) else "", text).strip()


def _item(match: re.Match[str]) -> str:
    marks = match[1]
    return "" if marks[-1] in ":;" else "  " * (len(marks) - 1) + "- "


def _without_tags(source: str, kept: list[str]) -> str:
    """Cut comments, references and the like; put code and formulas aside into `kept`."""
    parts: list[str] = []
    place = 0
    absent: set[str] = set()
    lowered = source.lower()
    lowered = lowered if len(lowered) == len(source) else source
    for match in _TAG.finditer(source):
        if match.start() < place:
            continue
        parts.append(source[place : match.start()])
        place = match.end()
        name = (match[2] or "").lower()
        if match[1] or match[4]:
            continue  # an end without a start, or an empty element
        closing = f"</{name}" if name else "-->"
        end = -1 if closing in absent else lowered.find(closing, place)
        if end < 0:
            absent.add(closing)
            if not name:
                place = len(source)  # a comment that nobody ended hides the rest
            continue
        if name in (*_CODE_TAGS, "nowiki"):
            parts.append(_keep(kept, unescape(source[place:end]), block=name != "nowiki" and "inline" not in match[3]))
        elif name in ("math", "chem", "ce"):
            parts.append(_keep(kept, f"${source[place:end].strip()}$", block=False))
        after = source.find(">", end) if name else end + 2
        place = after + 1 if after >= 0 else len(source)
    parts.append(source[place:])
    return "".join(parts)


def _keep(kept: list[str], text: str, *, block: bool) -> str:
    kept.append(text.strip("\n") if block else text)
    mark = f"\ue000{len(kept) - 1}\ue001"
    return f"\n{mark}\n" if block else mark


def _resolve(source: str, no_text: frozenset[str]) -> str:
    """Replace templates, links and tables by what they give."""
    stack = [_Frame("text")]
    open_kinds = {"template": 0, "link": 0, "table": 0}
    place = 0

    def open_frame(kind: str) -> None:
        stack.append(_Frame(kind))
        open_kinds[kind] += 1

    def close(kind: str, give: Callable[[_Frame], str]) -> None:
        while stack[-1].kind != kind:
            frame = stack.pop()
            open_kinds[frame.kind] -= 1
            stack[-1].put(_given_up(frame))
        frame = stack.pop()
        open_kinds[kind] -= 1
        stack[-1].put(give(frame))

    for match in _TOKEN.finditer(source):
        if match.start() < place:
            continue
        stack[-1].put(source[place : match.start()])
        place = match.end()
        mark = match[0].strip()
        if mark == "{{":
            open_frame("template")
        elif mark == "[[":
            open_frame("link")
        elif mark == "}}":
            if open_kinds["template"]:
                close("template", _template)
        elif mark == "]]":
            if open_kinds["link"]:
                close("link", lambda frame: _link(frame, no_text))
        elif "{|" in mark and match[0].lstrip(" \t:*#").startswith("{|"):
            open_frame("table")
        elif mark == "|}" and open_kinds["table"]:
            close("table", _table)
        else:
            at_start = match.start() == 0 or source[match.start() - 1] == "\n"
            _separator(stack[-1], mark, match[0], at_start)
    stack[-1].put(source[place:])
    while len(stack) > 1:
        frame = stack.pop()
        stack[-1].put(_given_up(frame))
    return "".join(stack[0].values())


def _separator(frame: _Frame, mark: str, written: str, at_start: bool) -> None:
    """A bar or exclamation mark, which parts arguments, or cells and rows of a table."""
    if frame.kind in ("template", "link"):
        if mark.startswith("|"):
            frame.arguments += [[] for _ in range(2 if mark == "||" else 1)]
            if mark not in ("|", "||"):
                frame.put(mark[1:])
        else:
            frame.put(written)
        return
    if frame.kind != "table":
        frame.put(written)
        return
    if mark.startswith("|-"):
        frame.rows.append([_cell(value) for value in frame.values()[1:]])
        frame.arguments = [[]]
    elif mark == "|" and not at_start:
        frame.put("\x01")  # between a cell's attributes and its text
    else:
        frame.arguments.append([])


def _cell(value: str) -> str:
    attributes, found, text = value.partition("\x01")
    if found and not _ATTRIBUTES.fullmatch(attributes):
        text = value
    return " ".join((text if found else value).replace("\x01", " ").split())


def _table(frame: _Frame) -> str:
    rows = [*frame.rows, [_cell(value) for value in frame.values()[1:]]]
    lines = ["\t".join(row).rstrip() for row in rows]
    return "\n" + "\n".join(line for line in lines if line.strip()) + "\n"


def _given_up(frame: _Frame) -> str:
    """What is left of something that nobody closed."""
    if frame.kind == "table":
        return _table(frame)
    return "|".join(frame.values())


def _template(frame: _Frame) -> str:
    values = frame.values()
    name = " ".join(values[0].replace("_", " ").split()).lower()
    if name in _FIXED:
        return _FIXED[name]
    if name.startswith("formatnum:"):
        return name.partition(":")[2]
    plain = [value.strip() for value in values[1:] if not re.match(r"\s*[\w -]{1,30}=", value)]
    if name in ("convert", "cvt") and len(plain) >= 2:
        return f"{plain[0]} {plain[1]}"
    if name in ("frac", "sfrac") and len(plain) >= 2:
        return "/".join(plain[-2:])
    if plain and (name in _FIRST or name.startswith("lang-")):
        return plain[0]
    if len(plain) >= 2 and name in _SECOND:
        return plain[1]
    return ""


def _link(frame: _Frame, no_text: frozenset[str]) -> str:
    values = frame.values()
    target = values[0].strip()
    prefix, colon, _ = target.partition(":")
    if colon and prefix:
        space = prefix.strip().lower()
        if space in no_text or (_INTERWIKI.fullmatch(space) and len(values) == 1):
            return ""
    label = values[-1].strip() if len(values) > 1 else target.lstrip(":")
    if len(values) > 1 and not label:
        # The pipe trick: what stands before brackets or a comma, without the namespace.
        label = re.sub(r"\s*[(（,，].*$", "", target.rpartition(":")[2])
    return label


def _without_empty_sections(text: str) -> str:
    """Headings as lines of their own; those with nothing under them go, the deepest first."""
    parts: list[str] = []
    place = 0
    headings: list[tuple[int, str]] = []
    for match in _HEADING.finditer(text):
        body = text[place : match.start()]
        place = match.end()
        _close_section(parts, headings, body)
        level = len(match[1])
        while headings and headings[-1][0] >= level:
            headings.pop()
        headings.append((level, match[2].strip()))
    _close_section(parts, headings, text[place:])
    return "".join(parts)


def _close_section(parts: list[str], headings: list[tuple[int, str]], body: str) -> None:
    """Write a section's body, and before it the headings above it that were not written before."""
    if not body.strip(" \t\n-"):
        return
    for number, (level, title) in enumerate(headings):
        if title:
            parts.append(f"\n\n{title}\n\n")
            headings[number] = (level, "")
    parts.append(body)
