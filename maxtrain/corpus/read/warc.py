"""Web archives: the responses of a WARC file, the texts of a WET file."""

import io
import re
import zlib
from collections.abc import Iterator

from fastwarc.stream_io import BrotliReader

from maxtrain.core.records import RecordError
from maxtrain.corpus.read.plain import decode_plain, page_record
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import LeftOutError, Reading

_HTML = ("text/html", "application/xhtml+xml")
_STATUS = re.compile(rb"HTTP/[0-9.]+ +([0-9]{3})")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w:.-]+)", re.IGNORECASE)
_HEADER_BYTES = 2**16
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_NEXT = re.compile(rb"\nWARC/[0-9]")
_OTHER_TYPES = ("warcinfo", "request", "response", "resource", "metadata", "revisit", "conversion", "continuation")


def read_warc(reading: Reading) -> Iterator[Item]:
    """A record for every response and resource that holds a page or plain text; the others are told by reason."""
    yield from _records(reading, ("response", "resource"))


def read_wet(reading: Reading) -> Iterator[Item]:
    """A record for every text that was taken out of a page."""
    yield from _records(reading, ("conversion",))


def _records(reading: Reading, wanted: tuple[str, ...]) -> Iterator[Item]:
    # The HTTP header comes on top of the page, which has the limit.
    archive = _Archive(reading.pieces(), reading.options.max_record_bytes + _HEADER_BYTES)
    while archive.more():
        reading.next()
        try:
            headers, block = archive.read(wanted)
            kind = headers.get("warc-type", "").lower()
            if kind in wanted:
                yield reading.too_long() if block is None else _record(reading, kind, headers, block)
            elif kind not in _OTHER_TYPES:
                raise RecordError("damaged_warc", f"unknown WARC-Type {kind[:40]!r}")
        except LeftOutError as error:
            yield reading.bad(error.reason, error.detail, left_out=True)
        except _EndError as error:
            # The stream broke off or ended; what is told of it is told for this record.
            reading.number -= 1
            raise RecordError(error.reason, error.detail) from None
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)


class _EndError(RecordError):
    """Nothing can be read any more."""


class _Archive:
    """Records of a WARC file (ISO 28500), told by their stated lengths; after damage, from the next that begins a line.

    Own code, since fastwarc 2.0 ends at the first damaged record, panics on streams that cannot seek, and passes a
    record that is cut off for a whole one.

    Args:
        pieces: the file, decompressed.
        limit: most bytes of a record's block.
    """

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self._pieces = pieces
        self._limit = limit
        self._buffer = bytearray()

    def _fill(self) -> bool:
        try:
            self._buffer += next(self._pieces)
        except StopIteration:
            return False
        except RecordError as error:
            raise _EndError(error.reason, error.detail) from None
        return True

    def more(self) -> bool:
        """Whether anything but blank lines comes.

        Raises:
            RecordError: the compressed data is damaged.
        """
        while True:
            rest = self._buffer.lstrip(b"\r\n")
            if rest:
                self._buffer = rest
                return True
            self._buffer.clear()
            if not self._fill():
                return False

    def read(self, wanted: tuple[str, ...]) -> tuple[dict[str, str], bytes | None]:
        """Header fields by name in lower case, and the block, None where it is over the limit or of no wanted type.

        Raises:
            RecordError: there is no record here; the next call reads the next one.
        """
        head = self._header()
        headers = _fields(head)
        stated = headers.get("content-length", "")
        if not head.startswith(b"WARC/") or not (stated.isascii() and stated.isdecimal() and len(stated) < 18):
            if not (head.startswith(b"WARC/") and self.more() and self._buffer.startswith(b"WARC/")):
                self._skip_to_next()
            raise RecordError("damaged_warc", "no WARC record where one should be")
        size = int(stated)
        if size > self._limit or headers.get("warc-type", "").lower() not in wanted:
            self._skip(size)
            return headers, None
        while len(self._buffer) < size:
            if not self._fill():
                raise _EndError("truncated_warc", f"the record ends after {len(self._buffer):,} of {size:,} bytes")
        block = bytes(self._buffer[:size])
        del self._buffer[:size]
        return headers, block

    def _header(self) -> bytes:
        while True:
            match = _HEADER_END.search(self._buffer, 0, _HEADER_BYTES)
            if match is not None or len(self._buffer) >= _HEADER_BYTES or not self._fill():
                break
        if match is None:
            if self._buffer.startswith(b"WARC/") and len(self._buffer) < _HEADER_BYTES:
                raise _EndError("truncated_warc", "the file ends within the header of a record")
            return b""
        head = bytes(self._buffer[: match.start()])
        if head.startswith(b"WARC/"):
            del self._buffer[: match.end()]
        return head

    def _skip(self, size: int) -> None:
        left = size
        while left > len(self._buffer):
            left -= len(self._buffer)
            self._buffer.clear()
            if not self._fill():
                raise _EndError("truncated_warc", f"the record ends after {size - left:,} of {size:,} bytes")
        del self._buffer[:left]

    def _skip_to_next(self) -> None:
        while True:
            match = _NEXT.search(self._buffer, 1)
            if match is not None:
                del self._buffer[: match.start() + 1]
                return
            # The mark may have come in part.
            del self._buffer[:-8]
            if not self._fill():
                self._buffer.clear()
                return


def _record(reading: Reading, kind: str, headers: dict[str, str], block: bytes) -> Item:
    url = _address(headers.get("warc-target-uri"))
    stated = headers.get("content-type", "")
    if kind == "conversion":
        lang = headers.get("warc-identified-content-language")
        text = decode_plain(block, "utf-8")
        return reading.record(text, url=url, notes={"languages": lang} if lang else {})
    if stated.lower().startswith("application/http"):
        head, body = _split_http(block)
        status = _STATUS.match(head)
        if status is None:
            raise RecordError("damaged_http", "the response has no HTTP status line")
        headers = _fields(head)
        _check_status(int(status[1]), url)
        _check_length(body, headers)
        body = _decode_body(body, headers, reading.options.max_record_bytes)
        stated = headers.get("content-type", "")
    else:
        body = block
    where = url or "no address"
    if not body.strip():
        raise LeftOutError("empty_body", where)
    content = stated.split(";")[0].strip().lower()
    if not content:
        raise LeftOutError("no_content_type", where)
    if url and url.partition("://")[2].partition("/")[2].partition("?")[0] == "robots.txt":
        raise LeftOutError("robots_txt", where)
    charset = match[1] if (match := _CHARSET.search(stated)) else None
    if content in _HTML:
        return page_record(reading, body, charset, url=url)
    if content == "text/plain":
        return reading.record(decode_plain(body, charset), url=url)
    raise LeftOutError("content_type", f"{content[:80]} ({where})")


def _address(url: str | None) -> str | None:
    # WARC 1.0 writers such as wget put it in angle brackets.
    return url.strip().removeprefix("<").removesuffix(">") or None if url else None


def _split_http(block: bytes) -> tuple[bytes, bytes]:
    for end in (b"\r\n\r\n", b"\n\n"):
        head, found, body = block.partition(end)
        if found and len(head) <= _HEADER_BYTES:
            return head, body
    return block[:_HEADER_BYTES], b""


def _fields(head: bytes) -> dict[str, str]:
    """Header fields by name in lower case; of one that stands twice, the first."""
    headers: dict[str, str] = {}
    for line in head.splitlines()[1:]:
        name, found, value = line.decode("utf-8", "replace").partition(":")
        if found:
            headers.setdefault(name.strip().lower(), value.strip())
    return headers


def _check_status(status: int, url: str | None) -> None:
    """Let only whole answers through.

    Raises:
        LeftOutError: the status says that the body is not the page.
    """
    if status in (200, 203):
        return
    reason = "redirect" if 300 <= status < 400 else "not_found" if status in (404, 410) else "http_error"
    raise LeftOutError(reason, f"HTTP status {status} ({url or 'no address'})")


def _check_length(body: bytes, headers: dict[str, str]) -> None:
    """Refuse a body that is shorter than the server said: the crawler lost its end.

    Raises:
        RecordError: it is. (A longer one was stored decompressed.)
    """
    stated = headers.get("content-length", "")
    if "transfer-encoding" not in headers and stated.isdecimal() and len(stated) < 18 and int(stated) > len(body):
        raise RecordError("truncated_body", f"the body ends after {len(body):,} of {int(stated):,} bytes")


def _decode_body(body: bytes, headers: dict[str, str], limit: int) -> bytes:
    """Undo chunked transfer and compression.

    Raises:
        RecordError: the body is damaged, over the limit, or compressed by something unknown.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _join_chunks(body)
    for coding in reversed(headers.get("content-encoding", "").lower().replace(" ", "").split(",")):
        if coding in ("", "identity", "none"):
            continue
        # Crawlers that store decoded bodies often leave the header.
        if coding in ("gzip", "x-gzip"):
            body = _inflate(body, (16 + zlib.MAX_WBITS,), limit) if body.startswith(b"\x1f\x8b") else body
        elif coding == "deflate":
            body = _inflate(body, (zlib.MAX_WBITS, -zlib.MAX_WBITS), limit)
        elif coding == "br" and not _is_text(body):
            body = _unbrotli(body, limit)
        elif not _is_text(body):
            raise RecordError("content_encoding", f"content encoding {coding[:40]} is not known")
    if len(body) > limit:
        raise RecordError("too_long", f"over the limit of {limit:,} bytes (read.max_record_bytes)")
    return body


def _is_text(body: bytes) -> bool:
    return body[:256].lstrip().startswith(b"<") and b"\0" not in body[:256]


def _join_chunks(body: bytes) -> bytes:
    """The body of a chunked transfer; one that is not chunked, whatever the header says, stays as it is.

    Raises:
        RecordError: a chunk is cut.
    """
    parts: list[bytes] = []
    place = 0
    while True:
        end = body.find(b"\n", place, place + 1024)
        digits = body[place:end].split(b";")[0].strip() if end >= 0 else b""
        try:
            size = int(digits, 16) if digits and digits.isalnum() else -1
        except ValueError:
            size = -1
        if size < 0:
            if not parts:
                return body
            raise RecordError("damaged_http", f"chunked body is cut after {place} bytes")
        if size == 0:
            return b"".join(parts)
        part = body[end + 1 : end + 1 + size]
        if len(part) < size:
            raise RecordError("damaged_http", f"chunked body ends within a chunk, after {len(body)} bytes")
        parts.append(part)
        place = end + 1 + size
        place += 2 if body[place : place + 2] == b"\r\n" else 1


def _inflate(body: bytes, formats: tuple[int, ...], limit: int) -> bytes:
    """Decompress; deflate means zlib's format by the standard and raw deflate by the habit of some servers."""
    error = ""
    for window in formats:
        inflater = zlib.decompressobj(window)
        try:
            found = inflater.decompress(body, limit + 1)
        except zlib.error as failure:
            error = str(failure)
            continue
        if len(found) > limit:
            raise RecordError("too_long", f"over the limit of {limit:,} bytes decompressed (read.max_record_bytes)")
        if not inflater.eof:
            raise RecordError("damaged_http", "the compressed body ends early")
        return found
    raise RecordError("damaged_http", f"the compressed body is damaged ({error})")


def _unbrotli(body: bytes, limit: int) -> bytes:

    try:
        found = BrotliReader(io.BytesIO(body)).read(limit + 1)
    except (OSError, ValueError) as error:
        raise RecordError("damaged_http", f"the compressed body is damaged ({error})") from None
    if len(found) > limit:
        raise RecordError("too_long", f"over the limit of {limit:,} bytes decompressed (read.max_record_bytes)")
    return bytes(found)
