"""HTML left in what came as text: entities and tags, told from texts about HTML and from code."""

import html
import re
from html.entities import html5
from typing import ClassVar

from resiliparse.extract.html2text import extract_plain_text

from maxtrain.corpus.clean.features import ENTITY, TAG, features, is_verbatim
from maxtrain.corpus.document import Document
from maxtrain.corpus.html import Mode, extract
from maxtrain.corpus.rules import Change, Drop, Rule

_ENTITY = re.compile(r"&(?:#(?:\d{1,7}|[xX][0-9A-Fa-f]{1,6})|[A-Za-z][A-Za-z0-9]{1,31});")
_DOUBLE = re.compile(r"&amp;(?:#\d{1,7}|[A-Za-z][A-Za-z0-9]{1,31});")
_SURE = frozenset(("amp", "lt", "gt", "quot", "apos", "nbsp"))
_ABOUT = re.compile(
    r"\b(?:[XDS]?HTML?\d?|XML|SGML|CSS|markup|entit(?:y|ies)|escap(?:e|ed|ing)|unescape\w*|tags?|elements?|attributes?)\b"
    r"|实体|實體|转义|轉義|标签|標籤|标记|標記|エンティティ|タグ|실체|태그|сущност|тег",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^([ \t]*)(```+|~~~+)[^\n]*\n.*?^\1?[ \t]*\2[ \t]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_NAMES = (
    "a|abbr|article|aside|b|blockquote|body|br|button|caption|center|cite|code|col|dd|del|div|dl|dt|em|embed|figcaption|"
    "figure|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|label|li|link|main|map|meta|nav|noscript|"
    "object|ol|option|p|picture|pre|s|script|section|select|small|source|span|strike|strong|style|sub|sup|svg|table|"
    "tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|video"
)
_TAG = re.compile(rf"<(/?)({_NAMES})((?:\s[^<>]*)?)(/?)>", re.IGNORECASE)
_SIGNS = ("</", "<br", "<BR", "<p>", "<P>", "<p ", "<P ", "<hr", "<HR", "<li", "<LI")
"""One of these stands in every text with tags left in it."""
_BLOCK = frozenset(
    [
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "caption",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "ul",
    ]
)
_VOID = frozenset(["br", "hr", "img", "input", "link", "meta", "source", "col", "embed"])
_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = re.compile(r"<(script|style)\b[^>]*>.*?</\1\s*>|<!--.*?-->|<!doctype[^>]*>", re.IGNORECASE | re.DOTALL)
_ROUNDS = 4
_QUOTES = "\"'`“”‘’「」"
"""Between quotes a text speaks of the entity itself."""


def decode_entities(text: str) -> tuple[str, int]:
    """Entities decoded where they are left over from HTML; how many.

    A text about HTML, or code, keeps those that stand by themselves; inside words and between them they are always left
    over.
    """
    count = 0
    for _ in range(_ROUNDS):
        found = list(_ENTITY.finditer(text))
        if not found:
            break
        every = _all_left_over(text, found)
        parts = []
        done = 0
        for match in found:
            told = _told(text, match, every)
            if told is not None:
                parts += [text[done : match.start()], told]
                done = match.end()
        if not parts:
            break
        count += len(parts) // 2
        text = "".join([*parts, text[done:]])
    return text, count


def _all_left_over(text: str, found: list[re.Match[str]]) -> bool:
    """Whether every entity of a text is left over: it was escaped twice, is full of them, or is not about HTML."""
    if len(_DOUBLE.findall(text)) >= 3:
        return True
    running = sum(_touches_words(text, match) for match in found)
    if len(found) >= 10 and running > 0.5 * len(found):
        return True
    return not _ABOUT.search(_ENTITY.sub(" ", text))


def _touches_words(text: str, match: re.Match[str]) -> bool:
    before = text[match.start() - 1 : match.start()] if match.start() else ""
    after = text[match.end() : match.end() + 1]
    return before.isalnum() or after.isalnum()


def _told(text: str, match: re.Match[str], every: bool) -> str | None:
    """What an entity stands for, or None if it stays."""
    name = match[0][1:-1]
    before = text[match.start() - 1 : match.start()] if match.start() else ""
    after = text[match.end() : match.end() + 1]
    if name[0] != "#" and name + ";" not in html5:
        return None
    if name[0] != "#" and name not in _SURE:
        # In C, &sum; is the address of a variable.
        head = text[max(match.start() - 3, 0) : match.start()].rstrip()
        if head[-1:] in ("=", "(", ",", "*") or not (before.isalpha() or after.isalpha() or every):
            return None
    if before in _QUOTES and after in _QUOTES and before and after:
        return None
    if not every and not (before.isalnum() and after.isalnum()):
        return None
    if name == "nbsp":
        return " "
    told = html.unescape(match[0])
    return None if told == match[0] or "\ufffd" in told or "\0" in told else told


def to_text(text: str, mode: Mode = "main") -> str | None:
    """The text of what is a page's HTML, or of prose with tags left in it; None where it is neither.

    Args:
        text: what may be markup.
        mode: how the text of a whole page is taken out; a page without any gives an empty text.
    """
    if _PAGE.match(text):
        return extract(text, mode).text
    if not any(sign in text for sign in _SIGNS):
        return None
    bare = _FENCE.sub(" ", text)
    tags = [(match[1], match[2].lower(), match[3]) for match in _TAG.finditer(bare)]
    if not tags:
        return None
    pairs = _count_pairs(tags)
    breaks = sum(name in ("br", "hr") or (name == "p" and not close) for close, name, _ in tags)
    marked = sum(bool(attributes) for _, _, attributes in tags)
    # Templates, e-mail addresses and placeholders have <a> and <p> too, but do not close them.
    if pairs + (breaks if pairs or breaks > 2 else 0) < 1 or pairs * 2 + breaks + marked < 0.5 * len(tags):
        return None
    visible = _HIDDEN.sub(" ", bare)
    if _ABOUT.search(_TAG.sub(" ", visible)) or bare != text:
        # A text about HTML shows its tags; one that consists of them is a page all the same.
        size = sum(match.end() - match.start() for match in _TAG.finditer(bare))
        if size < 0.35 * len(bare) or pairs < 10 or bare != text:
            return None
    if sum(name in _BLOCK for close, name, _ in tags if not close) >= 3 and text.count("\n\n") < 2:
        return str(extract_plain_text(text, main_content=False, alt_texts=False, links=False, form_fields=False))
    return _drop_tags(text)


def _count_pairs(tags: list[tuple[str, str, str]]) -> int:
    """Tags that are opened and closed after."""
    open_tags: list[str] = []
    pairs = 0
    for close, name, _ in tags:
        if name in _VOID:
            continue
        if not close:
            open_tags.append(name)
        elif name in open_tags:
            while open_tags.pop() != name:
                pass
            pairs += 1
    return pairs


def _drop_tags(text: str) -> str:
    def told(match: re.Match[str]) -> str:
        name = match[2].lower()
        if name in ("td", "th"):
            return "" if match[1] else " "
        return "\n" if name in _BLOCK and (match[1] or name in ("br", "hr", "p", "li", "tr")) else ""

    return _TAG.sub(told, _HIDDEN.sub("", text)).strip("\n")


class RawHtml(Rule):
    """HTML that came as text becomes text, a whole page its main text; texts about HTML and code stay."""

    name: ClassVar[str] = "raw_html"

    mode: Mode = "main"
    """What is taken out of a whole page: main text, the same by trafilatura (quality), or all text."""

    def apply(self, document: Document) -> Change | Drop | None:
        """Convert what is markup; a page without text is left out."""
        text = document.text
        if is_verbatim(document) or not features(text).has(TAG):
            return None
        told = to_text(text, self.mode)
        if told is None or told == text:
            return None
        return Change(told) if told else Drop("no_main_text")


class HtmlEntities(Rule):
    """Entities left over from HTML are decoded."""

    name: ClassVar[str] = "html_entities"

    def apply(self, document: Document) -> Change | None:
        """Decode them."""
        text = document.text
        if is_verbatim(document) or not features(text).has(ENTITY):
            return None
        told, count = decode_entities(text)
        return Change(told, count) if count else None
