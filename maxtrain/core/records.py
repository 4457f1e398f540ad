"""Lines of JSON that hold a text: each is a record, or an error with the name of its reason."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from maxtrain.core.lines import iterate_lines

_BOM = b"\xef\xbb\xbf"


class RecordError(Exception):
    """A line is no usable record.

    Attributes:
        reason: name of the reason, under which it is counted.
        detail: what is wrong, for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def record_lines(path: str | Path, on_read: Callable[[bytes], Any] | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines that are to hold a record, each with its number from 1; blank lines are passed over.

    Args:
        path: file of JSON lines, plain or compressed.
        on_read: called with each (compressed) piece of the file as it was read.

    Raises:
        DataError: compressed data is damaged or ends early.
        OSError: the file cannot be read.
    """
    for number, line in enumerate(iterate_lines(path, on_read), 1):
        data = line.removeprefix(_BOM)  # also within a file: where files were joined, one is left before each
        if data.strip():
            yield number, data


def parse_object(line: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RecordError: the line is none.
    """
    try:
        record = json.loads(line.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"byte {error.start} of the line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise RecordError("not_json", str(error)) from None
    if not isinstance(record, dict):
        raise RecordError("not_a_record", f"a JSON {type(record).__name__} where an object is needed")
    return record


def parse_record(line: bytes) -> dict[str, Any]:
    """A JSON object whose `text` is a text that is not blank.

    Raises:
        RecordError: the line is none.
    """
    record = parse_object(line)
    text = record.get("text")
    if text is None:
        raise RecordError("missing_text", "no field text")
    if not isinstance(text, str):
        raise RecordError("bad_text", f"text is a JSON {type(text).__name__}")
    if not text.strip():
        raise RecordError("empty_text", "text is empty or white space")
    check_characters("text", text)
    return record


def check_characters(key: str, value: str) -> None:
    """Half a surrogate pair can be written in JSON, but is no character and has no UTF-8.

    Raises:
        RecordError: the value holds one.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError("lone_surrogate", f"{key} holds half a surrogate pair at character {error.start}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands twice, the parser would silently keep the last."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in record if keys.count(key) > 1)
        raise RecordError("doubled_key", f"the key {doubled[:60]!r} stands twice in an object")
    return record
