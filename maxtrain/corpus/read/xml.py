"""Elements of large XML files one by one: each is cut out of the stream and parsed alone, within a limit.

Alone, an element sees no document type, so there are no entities to expand and nothing outside is ever loaded; a
damaged element spoils no other.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from maxtrain.core.records import RecordError


@dataclass
class Elements:
    """Cuts elements out of a stream.

    Attributes:
        head: what stands before the first element, at most 1 MiB.
        tail: the last bytes of what stands after the last one.

    Args:
        pieces: the file.
        tag: name of the elements.
        limit: most bytes of one.
        alone: the elements have no content and end with `/>`.
    """

    pieces: Iterator[bytes]
    tag: str
    limit: int
    alone: bool = False
    head: bytes = field(default=b"", init=False)
    tail: bytes = field(default=b"", init=False)

    def __iter__(self) -> Iterator[bytes | None]:
        """Elements, None in place of one over the limit.

        Raises:
            RecordError: the last one is cut.
        """
        start = re.compile(rb"<" + self.tag.encode() + rb"(?=[\s>/])")
        end = b"/>" if self.alone else f"</{self.tag}>".encode()
        buffer = bytearray()
        inside = False
        too_long = False
        searched = 0
        seen = False
        for piece in self.pieces:
            buffer += piece
            while True:
                if not inside:
                    match = start.search(buffer, searched)
                    if match is None:
                        keep = len(self.tag) + 2
                        if not seen:
                            self.head = (self.head + buffer[: len(buffer) - keep])[: 2**20]
                        self.tail = bytes(buffer[-1024:])
                        # The start of a tag may be all that has come of it.
                        del buffer[: max(len(buffer) - keep, 0)]
                        searched = 0
                        break
                    if not seen:
                        self.head = (self.head + buffer[: match.start()])[: 2**20]
                    del buffer[: match.start()]
                    inside, seen, searched, too_long = True, True, 0, False
                place = buffer.find(end, searched)
                if place < 0:
                    if len(buffer) > self.limit:
                        too_long = True
                        del buffer[: len(buffer) - len(end)]
                    searched = max(len(buffer) - len(end), 0)
                    break
                stop = place + len(end)
                yield None if too_long or stop > self.limit else bytes(buffer[:stop])
                del buffer[:stop]
                inside, searched = False, 0
        if inside:
            raise RecordError("truncated_xml", f"the file ends within <{self.tag}>")
        if not seen:
            raise RecordError("no_elements", f"no <{self.tag}> in the file")


class Handlers:
    """What a parser calls; a subclass overrides what it needs."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    def end(self, name: str) -> None:
        """An element ends."""

    def data(self, text: str) -> None:
        """Characters within one."""


def parse_element(data: bytes, handlers: Handlers) -> None:
    """Parse one element.

    Raises:
        RecordError: it is no XML, no UTF-8, or declares or names an entity.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"byte {error.start} of the element is not UTF-8") from None
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = handlers.start
    parser.EndElementHandler = handlers.end
    parser.CharacterDataHandler = handlers.data
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    parser.ExternalEntityRefHandler = _refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise RecordError("not_xml", str(error)) from None


def _refuse(*_: Any) -> int:
    raise RecordError("xml_entity", "declares a document type or an entity, which is never read")
