"""Read tagged records tolerantly: a line that is no usable record is told apart with its reason, never fatal."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from maxtrain.core.records import RecordError, check_characters, parse_record, record_lines
from maxtrain.corpus.inputs import InputFile


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it was read, with its tags filled in."""

    input: str
    line: int
    text: str
    source: str
    lang: str
    category: str
    licence: str
    original_id: str | None
    url: str | None
    origin: str
    quality_score: float | None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no usable record."""

    input: str
    line: int
    reason: str
    """Name of the reason, under which it is counted."""
    detail: str


def read_records(file: InputFile, on_read: Callable[[bytes], Any] | None = None) -> Iterator[RawRecord | BadLine]:
    """Records and bad lines of a file, in order; blank lines are passed over.

    Args:
        file: the file, with the licence and default tags of its records.
        on_read: called with each (compressed) piece of the file as it was read.

    Raises:
        DataError: the file's compressed data is damaged.
        OSError: the file cannot be read.
    """
    default_source = file.entry.tags.source or _stem(file.name)
    for number, line in record_lines(file.path, on_read):
        try:
            record: RawRecord | BadLine = _tagged(file, number, parse_record(line), default_source)
        except RecordError as error:
            record = BadLine(file.name, number, error.reason, error.detail)
        yield record


def _stem(name: str) -> str:
    """A file's name without folders and endings."""
    base = name.rsplit("/", 1)[-1]
    for ending in (".zst", ".gz", ".jsonl"):
        base = base.removesuffix(ending)
    return base


def _tagged(file: InputFile, number: int, record: dict[str, Any], default_source: str) -> RawRecord:
    strings = {key: _string(record, key) for key in ("source", "lang", "category", "licence", "url", "origin")}
    original_id = record.get("id")
    if isinstance(original_id, int) and not isinstance(original_id, bool):
        original_id = str(original_id)
    elif original_id is not None:
        original_id = _string(record, "id")
    for key, value in (("id", original_id), *strings.items()):
        check_characters(key, value or "")
    tags = file.entry.tags
    return RawRecord(
        input=file.name,
        line=number,
        text=record["text"],
        source=strings["source"] or default_source,
        lang=strings["lang"] or tags.lang,
        category=strings["category"] or tags.category,
        licence=strings["licence"] or file.entry.licence,
        original_id=original_id,
        url=strings["url"],
        origin=strings["origin"] or strings["url"] or original_id or "",
        quality_score=_score(record),
    )


def _string(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise RecordError("bad_tag", f"{key} is a JSON {type(value).__name__} where a string is needed")
    return value


def _score(record: dict[str, Any]) -> float | None:
    value = record.get("quality_score")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:
        raise RecordError("bad_tag", "quality_score is not a finite number")
    return float(value)
