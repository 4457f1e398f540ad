"""Dumps of MediaWiki (https://www.mediawiki.org/xml/export-0.11.xsd): a record for every article."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from html import unescape
from urllib.parse import quote

from maxtrain.core.records import RecordError
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import LeftOutError, Reading
from maxtrain.corpus.read.wikitext import is_redirect, wikitext_to_text
from maxtrain.corpus.read.xml import Elements, Handlers, parse_element

_LANG = re.compile(r"<mediawiki[^>]*?xml:lang=\"([A-Za-z-]{2,20})\"")
_BASE = re.compile(r"<base>([^<]{1,500})</base>")
_NAMESPACE = re.compile(r"<namespace key=\"(-?[0-9]+)\"[^>]*>([^<]*)</namespace>")
_MEDIA, _CATEGORY = 6, 14


def read_wiki(reading: Reading) -> Iterator[Item]:
    """A record for every page of the wanted namespaces that is no redirect; the others are told by reason."""
    elements = Elements(reading.pieces(), "page", reading.options.max_record_bytes)
    site: _Site | None = None
    for element in elements:
        site = site or _Site.of(elements.head)
        reading.next()
        if element is None:
            yield reading.too_long()
            continue
        try:
            yield _article(reading, element, site)
        except LeftOutError as error:
            yield reading.bad(error.reason, error.detail, left_out=True)
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)
    if b"</mediawiki>" not in elements.tail:
        raise RecordError("truncated_xml", "the file ends before </mediawiki>")


@dataclass(frozen=True)
class _Site:
    """What the dump says of the wiki."""

    lang: str | None
    address: str | None
    """Address of pages, without their title."""
    no_text: frozenset[str]
    """Names of the namespaces of media and categories, in lower case; links to them are no text."""

    @classmethod
    def of(cls, head: bytes) -> "_Site":
        return _site(head)


@lru_cache(maxsize=4)
def _site(head: bytes) -> _Site:
    text = head.decode("utf-8", "replace")
    lang = match[1] if (match := _LANG.search(text)) else None
    address = None
    if match := _BASE.search(text):
        address = unescape(match[1]).rpartition("/")[0] + "/"
    names = {unescape(name).lower() for key, name in _NAMESPACE.findall(text) if int(key) in (_MEDIA, _CATEGORY)}
    return _Site(lang, address, frozenset(names | {"file", "image", "media", "category"}))


@dataclass
class _Page(Handlers):
    """One page; of several revisions the last."""

    fields: dict[str, str] = field(default_factory=dict)
    redirect: bool = False
    path: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.path.append(name)
        self.parts = []
        if name == "redirect":
            self.redirect = True

    def data(self, text: str) -> None:
        self.parts.append(text)

    def end(self, name: str) -> None:
        place = "/".join(self.path[1:])
        if place in ("title", "ns", "id", "revision/text", "revision/model", "revision/timestamp"):
            self.fields[place] = "".join(self.parts)
        self.path.pop()
        self.parts = []


def _article(reading: Reading, element: bytes, site: _Site) -> Item:
    page = _Page()
    parse_element(element, page)
    fields = page.fields
    title = fields.get("title", "").strip()
    number = fields.get("ns", "0").strip()
    text = fields.get("revision/text", "")
    if page.redirect or is_redirect(text):
        raise LeftOutError("redirect", title)
    if number not in {str(wanted) for wanted in reading.options.namespaces}:
        raise LeftOutError("namespace", f"namespace {number}: {title}")
    model = fields.get("revision/model", "wikitext")
    if model != "wikitext":
        raise LeftOutError("content_model", f"{model[:40]}: {title}")
    if not text.strip():
        raise RecordError("empty_text", f"no text: {title}")
    url = site.address + quote(title.replace(" ", "_"), safe="/:()',!*;@&=") if site.address and title else None
    notes = {"timestamp": fields["revision/timestamp"]} if "revision/timestamp" in fields else {}
    return reading.record(
        wikitext_to_text(text, site.no_text),
        original_id=fields.get("id", "").strip() or None,
        url=url,
        title=title or None,
        lang=site.lang,
        notes=notes,
    )
