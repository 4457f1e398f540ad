"""Read tagged records tolerantly: a line that is no usable record is told apart with its reason, never fatal."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.recipe import InputConfig

_BOM = b"\xef\xbb\xbf"


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


class _RecordError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def read_records(
    name: str, path: Path, entry: InputConfig, on_read: Callable[[int], Any] | None = None
) -> Iterator[RawRecord | BadLine]:
    """Records and bad lines of a file, in order; blank lines are passed over.

    Args:
        name: the file's name in the dataset's history.
        path: where it is.
        entry: its licence and default tags.
        on_read: called with the bytes of each piece read.

    Raises:
        DataError: the file's compressed data is damaged.
        OSError: the file cannot be read.
    """
    default_source = entry.tags.source or _stem(name)
    for number, line in enumerate(iterate_lines(path, on_read), 1):
        data = line.removeprefix(_BOM)  # also within a file: where files were joined, one is left before each
        if not data.strip():
            continue
        try:
            yield _parse(name, number, data, entry, default_source)
        except _RecordError as error:
            yield BadLine(name, number, error.reason, error.detail)


def _stem(name: str) -> str:
    """A file's name without folders and endings."""
    base = name.rsplit("/", 1)[-1]
    for ending in (".zst", ".gz", ".jsonl"):
        base = base.removesuffix(ending)
    return base


def _parse(name: str, number: int, line: bytes, entry: InputConfig, default_source: str) -> RawRecord:
    try:
        record = json.loads(line.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise _RecordError("invalid_utf8", f"byte {error.start} of the line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _RecordError("not_json", str(error)) from None
    if not isinstance(record, dict):
        raise _RecordError("not_a_record", f"a JSON {type(record).__name__} where an object is needed")
    text = record.get("text")
    if text is None:
        raise _RecordError("missing_text", "no field text")
    if not isinstance(text, str):
        raise _RecordError("bad_text", f"text is a JSON {type(text).__name__}")
    if not text.strip():
        raise _RecordError("empty_text", "text is empty or white space")
    strings = {key: _string(record, key) for key in ("source", "lang", "category", "licence", "url", "origin")}
    original_id = record.get("id")
    if isinstance(original_id, int) and not isinstance(original_id, bool):
        original_id = str(original_id)
    elif original_id is not None:
        original_id = _string(record, "id")
    for key, value in (("text", text), ("id", original_id), *strings.items()):
        _check_characters(key, value)
    return RawRecord(
        input=name,
        line=number,
        text=text,
        source=strings["source"] or default_source,
        lang=strings["lang"] or entry.tags.lang,
        category=strings["category"] or entry.tags.category,
        licence=strings["licence"] or entry.licence,
        original_id=original_id,
        url=strings["url"],
        origin=strings["origin"] or strings["url"] or original_id or "",
        quality_score=_score(record),
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands twice, the parser would silently keep the last."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in record if keys.count(key) > 1)
        raise _RecordError("doubled_key", f"the key {doubled[:60]!r} stands twice in an object")
    return record


def _string(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise _RecordError("bad_tag", f"{key} is a JSON {type(value).__name__} where a string is needed")
    return value


def _score(record: dict[str, Any]) -> float | None:
    value = record.get("quality_score")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _RecordError("bad_tag", "quality_score is not a finite number")
    return float(value)


def _check_characters(key: str, value: str | None) -> None:
    """Half a surrogate pair can be written in JSON, but is no character and has no UTF-8."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise _RecordError("lone_surrogate", f"{key} holds half a surrogate pair at character {error.start}") from None
