"""The main text of a page: parts that are not of it are cut out of the tree, then what is left is written as text.

What is cut: what is never read (scripts, forms, hidden parts), what says of itself that it is navigation, an
advertisement, a cookie banner and the like (elements, ARIA roles, words of classes and ids), and blocks that are mostly
links. A part that holds much of the page's text is spared whatever it calls itself, and where all this leaves next to
nothing the page is cut less.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

_NEVER = (
    "script,style,noscript,template,iframe,svg,canvas,object,embed,button,select,datalist,input,dialog,audio,video,"
    "[hidden],[aria-hidden=true],annotation,annotation-xml,rt,rp"
)
_NOT_MAIN = (
    "nav,footer,menu,[role=navigation],[role=banner],[role=contentinfo],[role=dialog],[role=alertdialog],[role=search],"
    "[role=complementary],[role=menu],[role=menubar],[role=toolbar],[role=tablist]"
)
_MAYBE = "header,aside,form"
_ROOTS = (
    "main,[role=main],article,[itemprop=articleBody],#content,#main,#main-content,#bodyContent,#mw-content-text,"
    ".mw-parser-output,.entry-content,.post-content,.article-body,.article-content,.markdown-body,.main-content"
)
_BLOCKS = frozenset(("ul", "ol", "dl", "table", "td", "p", "div", "section", "h2", "h3", "h4"))
_SPARED_SHARE = 0.4
"""Share of the page's text from which on no name makes a part boilerplate."""
_ROOT_SHARE = 0.5
_LINKED_SHARE = 0.66
"""Share of a block's characters inside links from which on it is navigation."""
_MOST_WEIGHING = 30
"""Characters that may be looked at for each character of markup; pages stay far below."""
_LEAST_SHARE = 0.08
"""Share of the page's text that must be left, else the page is cut less."""

_WORDS = re.compile(
    r"(?:^|[\s_-])(?:"
    r"ad|ads|adv|advert\w*|adsense|adsbygoogle|adslot|adbox|sponsor\w*|promo(?:tion|ted|box)?s?|banner|"
    r"cookies?|gdpr|consent|ccpa|newsletter|subscri(?:be|ption)|paywall|popup|pop-up|modal|overlay|lightbox|"
    r"nav|navi|navbar|navigation|navheader|navfooter|menu|submenu|topbar|toolbar|sidebar|side-bar|breadcrumbs?|crumbs?|"
    r"pagination|pager|paginator|footer|foot|masthead|skip-?link|skip|jump(?:-to-nav)?|"
    r"share|sharing|social|sharebar|addthis|follow-us|likes?|"
    r"related|recommend\w*|more-stories|most-read|trending|popular|outbrain|taboola|tags|tagcloud|tag-list|"
    r"login|log-in|signin|sign-in|signup|sign-up|register|userbar|search|searchbox|search-form|"
    r"disclaimer|copyright|legal|printfooter|editsection|mw-editsection|catlinks|noprint|metadata|hatnote|"
    r"sr-only|visually-hidden|screen-reader(?:-text)?|hidden|"
    r"prev-next|prevnext|widget|language(?:s|-list|-switcher)|lang-(?:list|switch\w*)"
    r")(?=$|[\s_-])|(?:^|\s)(?:(?:post|user|forum|author)?[_-]?sig(?:nature)?)(?=$|\s)",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"(?:^|[\s_-])(?:comments?|disqus\w*|replies|respond)(?=$|[\s_-])", re.IGNORECASE)
_STATE = re.compile(r"(?:^|[\s_-])(?:has|with|no|is|without|js)-[\w-]+", re.IGNORECASE)
_CONTENT = re.compile(
    r"(?:^|[\s_-])(?:content|article|post|entry|body|main|note|tip|warning|admonition)", re.IGNORECASE
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_LABELS = (
    "advertisements?|sponsored(?: content)?|anzeige|werbung|publicit[éàa]|publicidad|publicidade|pubblicità|реклама|"
    "广告|廣告|広告|광고|reklam[aey]?|annons|advertentie|إعلان"
)
_LABEL = re2.compile(f"(?i){_LABELS}")
_LABELLED = re.compile(rf"(?:{_LABELS})(?![\w-])", re.IGNORECASE)
_ADVERTISEMENT_CHARACTERS = 200
_CELLS = re.compile(r"\t{2,}")
_ITEM = re.compile(r"^( {2,})(•|\d+\.) ", re.MULTILINE)
_SPACED_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says."""

    text: str
    title: str | None
    lang: str | None
    """Language that the page states."""


@lru_cache(maxsize=65536)
def _names_boilerplate(names: str) -> bool:
    return _WORDS.search(_STATE.sub(" ", names)) is not None


@lru_cache(maxsize=65536)
def _names_comments(names: str) -> bool:
    return _COMMENTS.search(_STATE.sub(" ", names)) is not None


class _TangledError(Exception):
    """A page is nested so deeply that weighing its parts would take forever."""


class _Scale:
    """Weighs parts of a page, as long as that is in proportion to the page.

    Args:
        size: characters of the page's markup.
    """

    def __init__(self, size: int) -> None:
        self._left = _MOST_WEIGHING * size + 10**6

    def length(self, element: Any) -> int:
        """Characters of an element's text without white space, which markup puts anywhere.

        Raises:
            _TangledError: too much has been weighed.
        """
        text = element.text_content or ""
        self._left -= len(text) + 100
        if self._left < 0:
            raise _TangledError
        return len(text) - text.count(" ") - text.count("\n") - text.count("\t")


def parse_page(html: str) -> Any:
    """The tree of a page; what is not well-formed is repaired as browsers do."""
    return HTMLTree.parse(html.replace("\0", ""))


def title_of(tree: Any) -> str | None:
    """The page's title, its white space collapsed."""
    return " ".join((tree.title or "").split()) or None


def language_of(tree: Any) -> str | None:
    """The language that the page states in `lang` or in a meta element."""
    document = tree.document
    for selector, key in (
        ("html[lang]", "lang"),
        ("html", "xml:lang"),
        ("meta[http-equiv=content-language]", "content"),
    ):
        element = document.query_selector(selector)
        value = element.getattr(key) if element is not None else None
        if value and re.fullmatch(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*", value.strip()):
            return str(value.strip().replace("_", "-"))
    return None


def _decompose(elements: Iterable[Any]) -> None:
    for element in elements:
        # A part of one that was cut before has no parent any more.
        if element.parent is not None:
            element.decompose()


def main_text(html: str) -> Page:
    """The main text of a page.

    Args:
        html: markup.
    """
    body, title, lang = _open(html)
    if body is None:
        return Page("", title, lang)
    scale = _Scale(len(html))
    try:
        total = scale.length(body)
        _cut_boilerplate(body, total, scale)
        root = _root(body, scale)
        _cut_advertisements(root)
        _cut_links(root, scale)
        if scale.length(root) < _LEAST_SHARE * total:
            return all_text(html)
    except _TangledError:
        return all_text(html)
    return Page(_write(root.html), title, lang)


def all_text(html: str) -> Page:
    """All text of a page that a reader sees."""
    body, title, lang = _open(html)
    return Page("" if body is None else _write(body.html), title, lang)


def _open(html: str) -> tuple[Any, str | None, str | None]:
    """Body of a page without what no reader sees (null where there is none), title and language."""
    tree = parse_page(html)
    if tree.body is not None:
        _cut_never(tree.body)
    return tree.body, title_of(tree), language_of(tree)


def _cut_never(body: Any) -> None:
    _decompose(body.query_selector_all(_NEVER).values())
    _decompose(
        element
        for element in body.query_selector_all("[style]").values()
        if _HIDDEN.search(element.getattr("style") or "")
    )


def _cut_boilerplate(body: Any, total: int, scale: _Scale) -> None:
    limit = _SPARED_SHARE * total
    doomed = [element for element in body.query_selector_all(_NOT_MAIN).values() if scale.length(element) < limit]
    for element in body.query_selector_all(_MAYBE).values():
        if scale.length(element) < limit and not _is_content(element):
            doomed.append(element)
    comments = []
    for element in body.query_selector_all("[class],[id]").values():
        names = f"{element.class_name or ''} {element.id or ''}"
        if _names_boilerplate(names):
            if scale.length(element) < limit and element.tag not in ("html", "body", "main", "article", "code", "pre"):
                doomed.append(element)
        elif _names_comments(names):
            comments.append(element)
    _decompose(doomed)
    outer = [element for element in comments if element.parent is not None]
    if outer and sum(scale.length(element) for element in outer) < limit:
        _decompose(outer)


def _is_content(element: Any) -> bool:
    """Whether a header or aside belongs to the text: the head of an article, a note in a manual."""
    if element.tag == "header":
        return element.query_selector("h1") is not None and element.query_selector("nav,form,ul") is None
    if element.tag == "aside":
        return _CONTENT.search(element.class_name or "") is not None
    return False


def _root(body: Any, scale: _Scale) -> Any:
    total = scale.length(body)
    best, size = body, total
    for element in body.query_selector_all(_ROOTS).values():
        length = scale.length(element)
        if _ROOT_SHARE * total <= length < size:
            best, size = element, length
    return best


def _cut_advertisements(root: Any) -> None:
    """Cut short blocks that begin with a word that labels advertisements; the innermost, since all hold it."""
    if not _LABEL.search(root.text_content or ""):
        return
    for block in root.query_selector_all("td,div,section,aside,p,li").values():
        if block.parent is None:
            continue
        text = (block.text_content or "").strip()
        if len(text) < _ADVERTISEMENT_CHARACTERS and (_LABELLED.match(text) or _begins_with_label(block)):
            block.decompose()


def _begins_with_label(block: Any) -> bool:
    """Whether the first part of a block is nothing but a label."""
    node = block.first_child
    while node is not None:
        if text := (node.text_content or "").strip():
            return _LABELLED.fullmatch(text.rstrip(":")) is not None
        node = node.next_sibling
    return False


def _cut_links(root: Any, scale: _Scale) -> None:
    """Cut blocks that are mostly links."""
    direct: dict[Any, list[int]] = {}
    for anchor in root.query_selector_all("a[href]").values():
        direct.setdefault(anchor.parent, []).append(scale.length(anchor))
    linked: dict[Any, int] = {}
    counts: dict[Any, int] = {}
    for parent, lengths in direct.items():
        node = parent
        while node is not None and node != root:
            if node.tag in _BLOCKS:
                linked[node] = linked.get(node, 0) + sum(lengths)
                counts[node] = counts.get(node, 0) + len(lengths)
            node = node.parent
    for block, length in linked.items():
        least = 4 if block.tag in ("td", "p") else 2
        if counts[block] >= least and block.parent is not None and length > _LINKED_SHARE * scale.length(block):
            block.decompose()


def _write(html: str) -> str:
    text = extract_plain_text(html, preserve_formatting=True, main_content=False, alt_texts=False)
    if "\t\t" in text:
        text = _CELLS.sub("\t", text)
    if "<li" in html:
        text = _ITEM.sub(_plain_item, text)
    return _SPACED_LINES.sub("\n\n", text).strip()


def _plain_item(match: re.Match[str]) -> str:
    """A list item as in plain text: a dash or its number, items of inner lists indented by two."""
    return f"{' ' * (len(match[1]) - 2)}{'-' if match[2] == '•' else match[2]} "
