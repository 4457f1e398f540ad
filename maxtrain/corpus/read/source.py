"""One input on its way through a reader: where it is, how it is read, what its records are tagged with."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from maxtrain.core.records import RecordError, check_characters
from maxtrain.corpus.read.options import ReadOptions, kind_by_name, strip_compression
from maxtrain.corpus.read.records import BadRecord, Form, Item, RawRecord
from maxtrain.corpus.read.streams import OnRead, decompress, lines, raw_pieces


class LeftOutError(RecordError):
    """A record is sound, but not wanted."""


@dataclass(frozen=True)
class Source:
    """An input with what its records are tagged with where they have no tags of their own."""

    name: str
    """Name that records and bad records tell, as the recipe writes it."""
    path: str
    """Local path or URL."""
    licence: str
    options: ReadOptions = field(default_factory=ReadOptions)
    source: str | None = None
    """Null: the name without folders and endings."""
    lang: str = "und"
    category: str = "unknown"


@dataclass
class Reading:
    """The reading of one input by one reader.

    Attributes:
        number: line or number of the last record that was begun; an end by damage is told for the one after.
    """

    source: Source
    on_read: OnRead | None = None
    number: int = 0
    default_source: str = field(init=False)

    def __post_init__(self) -> None:
        self.default_source = self.source.source or stem(self.source.name)

    @property
    def options(self) -> ReadOptions:
        """How the input is read."""
        return self.source.options

    def pieces(self) -> Iterator[bytes]:
        """Decompressed pieces of the input, which is one file."""
        return decompress(raw_pieces(self.source.path, self.on_read), strip_compression(self.source.path)[1])

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Decompressed lines with their numbers, None in place of one over the limit; keeps `number`."""
        for number, line in lines(self.pieces(), self.options.max_record_bytes):
            self.number = number
            yield number, line

    def next(self) -> int:
        """Number of the next record."""
        self.number += 1
        return self.number

    def bad(self, reason: str, detail: str, *, left_out: bool = False) -> BadRecord:
        """The record at hand is not usable, or is not wanted."""
        return BadRecord(self.source.name, self.number, reason, detail, left_out)

    def too_long(self) -> BadRecord:
        """The record at hand is over the limit."""
        return self.bad(
            "too_long", f"over the limit of {self.options.max_record_bytes:,} bytes (read.max_record_bytes)"
        )

    def record(
        self,
        text: str,
        *,
        original_id: str | None = None,
        url: str | None = None,
        title: str | None = None,
        origin: str | None = None,
        lang: str | None = None,
        category: str | None = None,
        licence: str | None = None,
        source: str | None = None,
        quality_score: float | None = None,
        form: Form = "text",
        notes: Mapping[str, str] | None = None,
    ) -> RawRecord:
        """The record at hand; tags that it does not have are the input's.

        Raises:
            RecordError: the text is blank, over the limit, or holds half a surrogate pair, as may a tag.
        """
        if not text.strip():
            raise RecordError("empty_text", "text is empty or white space")
        if len(text) > self.options.max_record_bytes:
            raise RecordError("too_long", f"over the limit of {self.options.max_record_bytes:,} bytes a record")
        check_characters("text", text)
        told = {"id": original_id, "url": url, "title": title, "origin": origin, "lang": lang, "category": category}
        for key, value in (*told.items(), ("licence", licence), ("source", source)):
            check_characters(key, value or "")
        return RawRecord(
            input=self.source.name,
            line=self.number,
            text=text,
            source=source or self.default_source,
            lang=lang or self.source.lang,
            category=category or self.source.category,
            licence=licence or self.source.licence,
            original_id=original_id,
            url=url,
            origin=origin or url or original_id or title or "",
            quality_score=quality_score,
            title=title or None,
            form=form,
            notes=notes or {},
        )

    def tagged(self, fields: Mapping[str, Any], *, form: Form = "text") -> RawRecord:
        """A record of named fields, such as a JSON object or a table's row, by the keys that the recipe names.

        Raises:
            RecordError: it has no usable text, or a tag of a wrong type.
        """
        options = self.options
        text = fields.get(options.text_key)
        if text is None:
            raise RecordError("missing_text", f"no field {options.text_key}")
        if not isinstance(text, str):
            raise RecordError("bad_text", f"{options.text_key} is a {type(text).__name__}, not a string")
        source, lang, category, licence, origin = (_string(fields, options.column(tag)) for tag in TAGS)
        return self.record(
            text,
            original_id=_identity(fields, options.id_key),
            url=_string(fields, options.url_key),
            title=_string(fields, options.title_key) if isinstance(fields.get(options.title_key), str) else None,
            quality_score=_score(fields, options.column("quality_score")),
            form=form,
            source=source,
            lang=lang,
            category=category,
            licence=licence,
            origin=origin,
        )


TAGS = ("source", "lang", "category", "licence", "origin")
Reader = Callable[[Reading], Iterator[Item]]


def stem(name: str) -> str:
    """A file's name without folders and without the endings that tell its compression and kind."""
    base = strip_compression(name.rstrip("/").rsplit("/", 1)[-1])[0]
    while (cut := base.rpartition("."))[0] and kind_by_name(base) is not None:
        base = cut[0]
    return base


def _identity(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _string(fields, key)


def _string(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise RecordError("bad_tag", f"{key} is a {type(value).__name__} where a string is needed")
    return value


def _score(fields: Mapping[str, Any], key: str) -> float | None:
    value = fields.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:
        raise RecordError("bad_tag", f"{key} is not a finite number")
    return float(value)
