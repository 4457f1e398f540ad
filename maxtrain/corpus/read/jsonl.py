"""JSON lines."""

from collections.abc import Iterator

from maxtrain.core.records import RecordError, parse_object
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import Reading

_BOM = b"\xef\xbb\xbf"


def read_jsonl(reading: Reading) -> Iterator[Item]:
    """A record a line; blank lines are passed over."""
    for _, line in reading.lines():
        yield from json_record(reading, line)


def json_record(reading: Reading, line: bytes | None) -> Iterator[Item]:
    """The record of a line, nothing where it is blank.

    Args:
        reading: stands at the line.
        line: None where it is over the limit.
    """
    if line is None:
        yield reading.too_long()
        return
    data = line.removeprefix(_BOM)  # also within a file: where files were joined, one is left before each
    if not data.strip():
        return
    try:
        yield reading.tagged(parse_object(data))
    except RecordError as error:
        yield reading.bad(error.reason, error.detail)
