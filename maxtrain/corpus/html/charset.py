"""The charset of bytes: byte order mark, what the server and the page state, then statistics.

Labels mean what browsers take them for (https://encoding.spec.whatwg.org/#names-and-labels): gb2312 is gb18030,
iso-8859-1 is windows-1252 and so on. A statement that the bytes contradict is not believed.
"""

import codecs
import re
from dataclasses import dataclass

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_HEAD_BYTES = 4096
_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w:.-]{2,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_PYTHON = {
    "windows-1252": "cp1252", "gbk": "gb18030", "gb18030": "gb18030", "gb2312": "gb18030", "big5": "big5hkscs",
    "shift_jis": "cp932", "euc-kr": "cp949", "windows-874": "cp874", "iso-8859-8-i": "iso-8859-8",
    "x-mac-cyrillic": "mac-cyrillic", "macintosh": "mac-roman",
}  # fmt: skip
_WIDER = {"euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "iso8859-1": "cp1252",
          "big5": "big5hkscs", "ascii": "cp1252"}  # fmt: skip
_REFUSED = frozenset(
    (
        *("utf-7", "replacement", "x-user-defined", "idna", "punycode", "unicode-escape", "raw-unicode-escape"),
        *("undefined", "mbcs", "oem"),
    )
)
"""No charsets of pages, though Python has codecs of some of these names; with `-`."""
_WRONG_SHARE = 0.001
"""Share of the characters that may be undecodable under a charset that is stated."""
_LATIN = ("cp1252", "iso8859-1", "iso8859-15")
_TAGS = re.compile(rb"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_ASCII = bytes(range(128))
_DENSE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text with what it was decoded by."""

    text: str
    charset: str
    wrong: int
    """Places that were no characters of the charset and are U+FFFD now."""


def python_codec(label: str | None) -> str | None:
    """The codec that a charset's label means, None for one that is unknown or refused."""
    if not label:
        return None
    name = label.strip().strip("\"'").lower()
    name = (map_encoding_to_html5(name, fallback_utf8=False) or name).lower()
    name = _PYTHON.get(name, name)
    if name.replace("_", "-") in _REFUSED:
        return None
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    if info.name in _WIDER:
        return _WIDER[info.name]
    # Codecs such as rot13 and zlib are none between bytes and text.
    return (
        info.name if getattr(info, "_is_text_encoding", True) and info.name.replace("_", "-") not in _REFUSED else None
    )


def stated_charset(data: bytes) -> str | None:
    """What a page states in an XML declaration or a meta element of its first 4 KiB."""
    head = data[:_HEAD_BYTES]
    match = _XML.search(head) or _META.search(head)
    return match[1].decode("ascii", "replace") if match else None


def _decode(data: bytes, codec: str) -> Decoded:
    try:
        text, wrong = data.decode(codec), 0
    except UnicodeDecodeError:
        text = data.decode(codec, "replace")
        wrong = text.count("\ufffd")
    if codec == "cp1252" and wrong:
        # Browsers let the five bytes that windows-1252 leaves open pass as controls.
        text = data.decode("latin-1").translate(_CP1252)
        wrong = 0
    return Decoded(text, codec, wrong)


_CP1252 = {code: bytes([code]).decode("cp1252", "ignore") or chr(code) for code in range(0x80, 0xA0)}


def _few(found: Decoded) -> bool:
    return found.wrong <= _WRONG_SHARE * len(found.text)


def decode_page(data: bytes, header: str | None = None) -> Decoded:
    """Decode a page.

    Args:
        data: its bytes.
        header: charset that the server or the recipe states, where it does.
    """
    for mark, marked in _MARKS:
        if data.startswith(mark):
            return _decode(data[len(mark) :], marked)
    # Text in another charset is hardly ever valid UTF-8 by chance, whatever label it bears.
    try:
        text = data.decode()
    except UnicodeDecodeError:
        pass
    else:
        if not text.isascii() or b"\x1b" not in data:
            return Decoded(text, "utf-8", 0)
    # A server that says latin-1 mostly says its default, so the page's own word goes before it.
    labels = [header, stated_charset(data)]
    labels.sort(key=lambda label: python_codec(label) in _LATIN)
    tried: list[Decoded] = []
    for label in labels:
        codec = python_codec(label)
        # Bytes show that a page is no UTF-16 where its markup can be read byte by byte.
        if codec is None or (codec.startswith(("utf-16", "utf-32")) and b"<" in data[:64] and b"\0" not in data[:64]):
            continue
        found = _decode(data, codec)
        if codec in _LATIN and _is_dense(data) and (other := _by_statistics(data)) is not None:
            return other
        if _few(found):
            return found
        tried.append(found)
    broken = _decode(data, "utf-8")
    if _is_damaged_utf8(broken):
        return min((*tried, broken), key=lambda found: found.wrong)
    if (found_by_statistics := _by_statistics(data)) is not None:
        return found_by_statistics
    return min((*tried, _decode(data, "cp1252")), key=lambda found: found.wrong)


def _is_damaged_utf8(found: Decoded) -> bool:
    """Whether most of what is not ASCII was valid UTF-8, which hardly happens by chance."""
    sound = len(found.text) - found.wrong - len(found.text.encode("ascii", "ignore"))
    return sound >= 2 * found.wrong


def _is_dense(data: bytes) -> bool:
    """Whether so many bytes are not ASCII as in no language that latin-1 was made for."""
    marked = _TAGS.sub(b"", data)
    return len(marked.translate(None, _ASCII)) > _DENSE_SHARE * len(marked)


def _by_statistics(data: bytes) -> Decoded | None:
    """What the bytes look like, where they are sound under it."""
    marked = _TAGS.sub(b" ", data)
    if _is_korean(_decode(marked, "euc_kr")):
        return _decode(data, "cp949")
    codec = python_codec(detect_encoding(marked)) or python_codec(detect_encoding(data))
    if codec is None or codec in (*_LATIN, "utf-8", "ascii"):
        return None
    found = _decode(data, codec)
    return found if _few(found) else None


def _is_korean(found: Decoded) -> bool:
    """Whether text is in Hangul syllables and next to nothing else that is not ASCII; other charsets give a mixture."""
    syllables = sum("\uac00" <= character <= "\ud7a3" for character in found.text)
    others = sum(character >= "\u0100" for character in found.text) - syllables
    return _few(found) and syllables > 20 * others and syllables > 0.05 * len(found.text)
