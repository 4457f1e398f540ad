"""Shards of documents between stages: Parquet files of a bounded size, in the order of input files and lines."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from maxtrain.corpus.document import Document

SHARD_BYTES = 32 * 2**20
"""Text in a shard, which bounds the memory of a task. Part of the pipeline's version, never an option: what a task sees
at once must not depend on the machine."""
_GROUP_BYTES = 4 * 2**20
_SCHEMA = pa.schema(
    [
        ("doc_id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("lang", pa.string()),
        ("category", pa.string()),
        ("licence", pa.string()),
        ("input", pa.string()),
        ("line", pa.int64()),
        ("original_id", pa.string()),
        ("url", pa.string()),
        ("origin", pa.string()),
        ("quality_score", pa.float64()),
        ("scores", pa.map_(pa.string(), pa.float64())),
    ]
)
_NAMES = tuple(_SCHEMA.names)


class ShardWriter:
    """Writes documents to `<stem>-00000.parquet` and on; use it as a context manager.

    Attributes:
        shards: what was written: file name, documents, bytes of text.

    Args:
        folder: where.
        limit: bytes of text in a file; a longer document has a file of its own.
    """

    def __init__(self, folder: Path, limit: int = SHARD_BYTES) -> None:
        self.shards: list[dict[str, Any]] = []
        self._folder = folder
        self._limit = limit
        self._rows: dict[str, list[Any]] = {name: [] for name in _NAMES}
        self._group_bytes = 0
        self._file: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close_file()
        elif self._file is not None:
            self._file.close()

    def add(self, document: Document) -> None:
        """Append a document."""
        size = len(document.text.encode())
        if self._file is not None and self.shards[-1]["bytes"] + size > self._limit:
            self._close_file()
        if self._file is None:
            name = f"{len(self.shards):05d}.parquet"
            self._file = pq.ParquetWriter(self._folder / name, _SCHEMA, compression="zstd", compression_level=1)
            self.shards.append({"file": name, "documents": 0, "bytes": 0})
        for name in _NAMES:
            value = getattr(document, name)
            self._rows[name].append(sorted(value.items()) if name == "scores" else value)
        self.shards[-1]["documents"] += 1
        self.shards[-1]["bytes"] += size
        self._group_bytes += size
        if self._group_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._file is not None and self._rows["text"]:
            self._file.write_table(pa.Table.from_pydict(self._rows, schema=_SCHEMA))
        self._rows = {name: [] for name in _NAMES}
        self._group_bytes = 0

    def _close_file(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()
        self._file = None


def read_shard(path: Path) -> Iterator[Document]:
    """Documents of a shard, in order; a row group of 4 MB of text is in memory at once."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            columns = file.read_row_group(number, use_threads=False).to_pydict()
            columns["scores"] = [dict(pairs) for pairs in columns["scores"]]
            for values in zip(*(columns[name] for name in _NAMES), strict=True):
                yield Document(**dict(zip(_NAMES, values, strict=True)))
