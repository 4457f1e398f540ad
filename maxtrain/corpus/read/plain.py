"""Files of one document or a few: plain text, Markdown, HTML, LaTeX."""

import re
from collections.abc import Callable, Iterator

from maxtrain.core.records import RecordError
from maxtrain.corpus.html.charset import Decoded, decode_page, python_codec
from maxtrain.corpus.html.extract import extract
from maxtrain.corpus.read.latex import latex_text
from maxtrain.corpus.read.records import Item, RawRecord
from maxtrain.corpus.read.source import Reading
from maxtrain.corpus.read.streams import whole

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


def decode_plain(data: bytes, charset: str | None) -> str:
    """Decode a file that is no page.

    Args:
        data: its bytes.
        charset: its charset, None to find it out.

    Raises:
        RecordError: it is no text under the charset, or is damaged UTF-8.
    """
    codec = python_codec(charset)
    if charset is not None:
        if codec is None:
            raise RecordError("unknown_charset", f"no charset {charset[:40]!r}; correct read.charset")
        return _sound(Decoded(*_strict(data, codec)), data)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        place = error.start
    found = decode_page(data)
    if found.charset == "utf-8":
        raise RecordError("invalid_utf8", f"byte {place} is not UTF-8")
    return _sound(found, data)


def _strict(data: bytes, codec: str) -> tuple[str, str, int]:
    try:
        return data.decode(codec).removeprefix("\ufeff"), codec, 0
    except UnicodeDecodeError as error:
        reason = "invalid_utf8" if codec == "utf-8" else "undecodable"
        raise RecordError(reason, f"byte {error.start} is not {codec}") from None


def _sound(found: Decoded, data: bytes) -> str:
    if found.wrong:
        raise RecordError("undecodable", f"{found.wrong} places are no {found.charset}; name read.charset")
    if b"\0" in data and "\0" in found.text:
        raise RecordError("binary", "holds zero bytes; it is no text")
    return found.text.replace("\r\n", "\n")


def _whole_text(reading: Reading) -> str:
    data = whole(reading.pieces(), reading.options.max_record_bytes)
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise RecordError("binary", "holds zero bytes; it is no text")
    return decode_plain(data, reading.options.charset)


def read_text(reading: Reading) -> Iterator[Item]:
    """Plain text: the file, or its paragraphs, or what stands between separators."""
    options = reading.options
    if options.documents == "file":
        yield from _single(reading, lambda: reading.record(_whole_text(reading), origin=reading.source.name))
        return
    separator = options.separator if options.documents == "separator" else ""
    parts: list[bytes] = []
    size = 0
    start = 1
    for number, line in reading.lines():
        if number == 1 and line is not None:
            line = line.removeprefix(b"\xef\xbb\xbf")
        content = None if line is None else line.rstrip(b"\r")
        if content is not None and (content.strip() == separator.encode()):
            yield from _part(reading, start, parts, size)
            parts, size, start = [], 0, number + 1
            continue
        size += options.max_record_bytes + 1 if content is None else len(content) + 1
        if size <= options.max_record_bytes and content is not None:
            parts.append(content)
        else:
            parts.clear()
    yield from _part(reading, start, parts, size)


def _part(reading: Reading, start: int, parts: list[bytes], size: int) -> Iterator[Item]:
    last, reading.number = reading.number, start
    if size > reading.options.max_record_bytes:
        yield reading.too_long()
    elif any(part.strip() for part in parts):
        try:
            yield reading.record(decode_plain(b"\n".join(parts), reading.options.charset).strip("\n"))
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)
    reading.number = last


def _single(reading: Reading, build: Callable[[], RawRecord]) -> Iterator[Item]:
    """The only record of a file, or why it is none."""
    reading.number = 1
    try:
        yield build()
    except RecordError as error:
        yield reading.bad(error.reason, error.detail)


def read_markdown(reading: Reading) -> Iterator[Item]:
    """Markdown as it is, without the metadata before it; the title is theirs, or the first heading."""
    yield from _single(reading, lambda: _markdown(reading, _whole_text(reading)))


def _markdown(reading: Reading, text: str) -> RawRecord:
    title = None
    if match := _FRONT_MATTER.match(text):
        text = text[match.end() :].lstrip("\n")
        if found := _FRONT_TITLE.search(match[1]):
            title = found[1].strip().strip("\"'")
    if title is None and (heading := _HEADING.search(text)):
        title = heading[1]
    return reading.record(text, title=title, origin=reading.source.name, form="markdown")


def read_latex(reading: Reading) -> Iterator[Item]:
    """The text of a LaTeX file."""

    def build() -> RawRecord:
        found = latex_text(_whole_text(reading), reading.options.max_record_bytes)
        return reading.record(found.text, title=found.title, origin=reading.source.name)

    yield from _single(reading, build)


def read_html(reading: Reading) -> Iterator[Item]:
    """One page."""

    def build() -> RawRecord:
        data = whole(reading.pieces(), reading.options.max_record_bytes)
        return page_record(reading, data, reading.options.charset, url=None, origin=reading.source.name)

    yield from _single(reading, build)


def page_record(
    reading: Reading, data: bytes, charset: str | None, *, url: str | None, origin: str | None = None
) -> RawRecord:
    """The record of a page.

    Raises:
        RecordError: it has no text.
    """
    if not data.strip():
        raise RecordError("empty_text", "the page is empty")
    decoded = decode_page(data, charset)
    notes = {"charset": decoded.charset}
    if decoded.wrong:
        notes["undecodable"] = str(decoded.wrong)
    if reading.options.html == "markup":
        return reading.record(decoded.text, url=url, origin=origin, form="html", notes=notes)
    page = extract(decoded.text, reading.options.html)
    if not page.text:
        raise RecordError("no_main_text", "the page holds no text")
    return reading.record(page.text, url=url, origin=origin, title=page.title, lang=page.lang, notes=notes)
