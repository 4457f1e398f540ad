"""Tables: Parquet by row groups, Arrow files by batches; rows are decoded one by one, so that one bad row is one."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from maxtrain.core.errors import DataError, UserError
from maxtrain.core.records import RecordError
from maxtrain.corpus.read.options import TAGS
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import Reading
from maxtrain.corpus.read.streams import open_random, state_of

_BATCH_ROWS = 256
_FAILURES = (pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, MemoryError, EOFError)
"""What pyarrow raises for damaged files; OSError, too, but then without a number."""


def read_parquet(reading: Reading) -> Iterator[Item]:
    """A record a row."""
    with open_random(reading.source.path, reading.on_read) as file:
        yield from unchanged(reading, file, parquet_rows(reading, file, reading.source.name))


def read_arrow(reading: Reading) -> Iterator[Item]:
    """A record a row of an Arrow stream or file, as `datasets` keeps them."""
    with open_random(reading.source.path, reading.on_read) as file:
        yield from unchanged(reading, file, arrow_rows(reading, file, reading.source.name))


def unchanged(reading: Reading, file: IO[bytes], items: Iterator[Item]) -> Iterator[Item]:
    """Items of an open file, which nobody may write meanwhile.

    Raises:
        DataError: at the end, where somebody did.
    """
    before = state_of(file)
    yield from items
    if state_of(file) != before:
        raise DataError(
            f"{reading.source.path}: changed while it was read; build again when nothing writes it any more"
        )


def guarded(action: Callable[[], Any], reason: str) -> Any:
    """Do something with a file that may be damaged.

    Raises:
        RecordError: it is.
    """
    try:
        return action()
    except (RecordError, UserError):
        raise
    except _FAILURES as error:
        raise RecordError(reason, _first_line(error)) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise RecordError(reason, _first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def parquet_rows(reading: Reading, file: IO[bytes], name: str) -> Iterator[Item]:
    """Rows of an open Parquet file; a row group that is damaged is one bad record.

    Args:
        reading: counts the rows.
        file: the file.
        name: what messages call it.

    Raises:
        RecordError: it is no Parquet file.
        UserError: it has not the columns that the recipe names.
    """
    table: pq.ParquetFile = guarded(lambda: pq.ParquetFile(file, pre_buffer=False), "damaged_parquet")
    columns = guarded(lambda: _columns(reading, table.schema_arrow, name), "damaged_parquet")
    for group in range(table.num_row_groups):
        rows = guarded(partial(_num_rows, table, group), "damaged_parquet")
        first = reading.number
        batches = table.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False)
        try:
            while (batch := guarded(partial(next, batches, None), "damaged_parquet")) is not None:
                yield from batch_rows(reading, batch)
        except RecordError as error:
            reading.next()
            lost = max(rows - (reading.number - 1 - first), 1)
            yield reading.bad(error.reason, f"row group {group} of {name}, {lost:,} rows lost: {error.detail}")
            reading.number = first + max(rows, 0)


def _num_rows(table: pq.ParquetFile, group: int) -> int:
    return int(table.metadata.row_group(group).num_rows)


def arrow_rows(reading: Reading, file: IO[bytes], name: str) -> Iterator[Item]:
    """Rows of an open Arrow stream or file.

    Args:
        reading: counts the rows.
        file: the file.
        name: what messages call it.

    Raises:
        RecordError: it is none, or ends early.
        UserError: it has not the columns that the recipe names.
    """
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        table = guarded(lambda: pa.ipc.open_file(file), "damaged_arrow")
        batches = (table.get_batch(number) for number in range(table.num_record_batches))
    else:
        table = guarded(lambda: pa.ipc.open_stream(file), "damaged_arrow")
        batches = iter(table)
    columns = guarded(lambda: _columns(reading, table.schema, name), "damaged_arrow")
    while (batch := guarded(lambda: next(batches, None), "damaged_arrow")) is not None:
        guarded(lambda: batch.validate(full=True), "damaged_arrow")
        yield from batch_rows(reading, batch.select(columns))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _columns(reading: Reading, schema: pa.Schema, name: str) -> list[str]:
    """Columns to read.

    Raises:
        UserError: there is no column of texts under the name that the recipe gives.
    """
    options = reading.options
    key = options.text_key
    if schema.names.count(key) != 1:
        found = ", ".join(schema.names[:20]) or "none"
        what = "no column" if key not in schema.names else "more than one column"
        raise UserError(f"{name}: {what} {key}; read.text_key names the column of texts; columns: {found}")
    kind = schema.field(key).type
    if not _is_text(kind):
        texts = [field.name for field in schema if _is_text(field.type)]
        nested = "nested, " if pa.types.is_nested(kind) else ""
        raise UserError(
            f"{name}: column {key} is {nested}{str(kind)[:80]}; read.text_key names a column of strings"
            + (f", such as {', '.join(texts[:10])}" if texts else "; there is none")
        )
    wanted = {
        key,
        options.id_key,
        options.url_key,
        options.title_key,
        options.column("quality_score"),
    }
    wanted |= {options.column(tag) for tag in TAGS}
    return [field.name for field in schema if field.name in wanted and schema.names.count(field.name) == 1]


def batch_rows(reading: Reading, batch: pa.RecordBatch) -> Iterator[Item]:
    """Records of a batch."""
    columns = guarded(lambda: {name: _plain(batch.column(name)) for name in batch.schema.names}, "damaged_table")
    for row in range(batch.num_rows):
        reading.next()
        try:
            fields = {name: _value(name, column[row]) for name, column in columns.items()}
            yield reading.tagged(fields)
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)


def _plain(column: pa.Array) -> pa.Array:
    """A column whose texts are bytes, which need not be UTF-8 to be looked at."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if _is_text(column.type) else column


def _value(name: str, value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"byte {error.start} of {name} is not UTF-8") from None
    except (ValueError, OverflowError) as error:
        raise RecordError("bad_tag", f"{name}: {_first_line(error)}") from None
