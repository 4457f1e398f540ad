"""The ledger: what became of every document, by which rule, as a table that can be asked.

One row for each thing that a rule did to a document; the last row of a document, `kept` or `dropped`, is its fate. A
document's rows are in the order of what happened.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

KEPT = "kept"
CHANGED = "changed"
DROPPED = "dropped"
SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()),
        ("rule", pa.string()),
        ("action", pa.string()),
        ("reason", pa.string()),
        ("score", pa.float64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("count", pa.int64()),
        ("survivor", pa.string()),
        ("source", pa.string()),
        ("lang", pa.string()),
        ("category", pa.string()),
        ("num_bytes", pa.int64()),
        ("quality_score", pa.float64()),
        ("url", pa.string()),
        ("input", pa.string()),
        ("line", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the ledger.

    Attributes:
        doc_id: the document.
        rule: what acted; empty for `kept`.
        action: changed, dropped or kept.
        reason: of a drop.
        score: what was measured where a limit was passed.
        start, end: characters of the text as it then was that made it so.
        count: places changed.
        survivor: the document that stays instead of a duplicate.
        source, lang, category: tags as they then were.
        num_bytes: UTF-8 bytes of the text as it then was; of a change, after it.
        quality_score: in [0, 1].
        url: where the document came from.
        input, line: where it was read.
    """

    doc_id: str
    rule: str
    action: str
    reason: str | None = None
    score: float | None = None
    start: int | None = None
    end: int | None = None
    count: int | None = None
    survivor: str | None = None
    source: str = ""
    lang: str = ""
    category: str = ""
    num_bytes: int = 0
    quality_score: float | None = None
    url: str | None = None
    input: str = ""
    line: int = 0


_FIELDS = tuple(field.name for field in fields(Entry))
assert tuple(SCHEMA.names) == _FIELDS, "the table is the entry"


def write_entries(path: Path, entries: Sequence[Entry]) -> None:
    """Write rows in the order given."""
    columns: dict[str, list[Any]] = {name: [getattr(entry, name) for entry in entries] for name in _FIELDS}
    write_table(path, pa.Table.from_pydict(columns, schema=SCHEMA))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table of the ledger."""
    pq.write_table(table, path, compression="zstd", compression_level=9, row_group_size=2**17, version="2.6")


def read_entries(paths: Iterable[Path]) -> Iterator[Entry]:
    """Rows of files, in order."""
    for path in paths:
        for row in pq.read_table(path, use_threads=False).to_pylist():
            yield Entry(**row)


def join_parts(path: Path, parts: Sequence[Path]) -> None:
    """Write the rows of several files to one, in order; a file at a time is in memory."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=9, version="2.6") as writer:
        for part in parts:
            table = pq.read_table(part, use_threads=False)
            if table.num_rows:
                writer.write_table(table)
