"""The document table: one row per document as numpy columns, long text columns read when asked for."""

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.dataset.format import Manifest

_NUMBERS = {"shard": np.int32, "offset": np.int64, "num_tokens": np.int64, "num_bytes": np.int64}
_CODED = ("source", "lang", "category", "split")


@dataclass(frozen=True)
class Coded:
    """A dictionary-encoded column.

    Attributes:
        codes: [documents] int32 into `names`.
        names: distinct values, sorted.
    """

    codes: np.ndarray
    names: tuple[str, ...]

    def __getitem__(self, document: int) -> str:
        return self.names[self.codes[document]]

    def __len__(self) -> int:
        return len(self.codes)

    def isin(self, values: tuple[str, ...] | list[str]) -> np.ndarray:
        """Mask [documents] bool of rows whose value is one of these."""
        matches = np.array([name in values for name in self.names], bool)
        return matches[self.codes] if len(self.names) else np.zeros(len(self.codes), bool)


class DocumentTable:
    """Columns of `documents.parquet`, in `doc_id` order, which is the order of tokens over all shards.

    Attributes:
        doc_id: [N] S32, hex.
        shard: [N] int32.
        offset: [N] int64, tokens inside the shard.
        num_tokens: [N] int64, bos and eod included.
        num_bytes: [N] int64, UTF-8 bytes of the text.
        source, lang, category, split: dictionary-encoded tags.
        quality_score: [N] float64, NaN for none.
    """

    def __init__(self, path: str, columns: dict[str, Any]) -> None:
        self._path = path
        self.doc_id: np.ndarray = columns["doc_id"]
        self.shard: np.ndarray = columns["shard"]
        self.offset: np.ndarray = columns["offset"]
        self.num_tokens: np.ndarray = columns["num_tokens"]
        self.num_bytes: np.ndarray = columns["num_bytes"]
        self.source: Coded = columns["source"]
        self.lang: Coded = columns["lang"]
        self.category: Coded = columns["category"]
        self.split: Coded = columns["split"]
        self.quality_score: np.ndarray = columns["quality_score"]

    def __len__(self) -> int:
        return len(self.doc_id)

    @cached_property
    def _texts(self) -> pa.Table:
        names = ["licence", "origin", "input", "line"]
        return pq.read_table(self._source(), columns=names, use_threads=False).combine_chunks()

    def _source(self) -> Any:
        return io.BytesIO(files.read_bytes(self._path)) if files.is_remote(self._path) else files.local_path(self._path)

    def licence(self, document: int) -> str:
        """Licence of a document."""
        return str(self._texts["licence"][document].as_py())

    def origin(self, document: int) -> str:
        """The record's own origin, url or id; empty for none."""
        return str(self._texts["origin"][document].as_py())

    def place(self, document: int) -> str:
        """Input file and line that the document was read from."""
        return f"{self._texts['input'][document].as_py()}:{self._texts['line'][document].as_py()}"


def read_table(path: str, manifest: Manifest) -> DocumentTable:
    """Read the columns that the loader needs.

    Raises:
        DataError: the file is missing or damaged, or its rows are not those of the manifest.
    """
    names = ["doc_id", *_NUMBERS, *_CODED, "quality_score"]
    try:
        source = io.BytesIO(files.read_bytes(path)) if files.is_remote(path) else files.local_path(path)
        table = pq.read_table(source, columns=names, use_threads=False).combine_chunks()
        ids = table["doc_id"].cast(pa.binary()).cast(pa.binary(32)).combine_chunks()
    except FileNotFoundError:
        raise DataError(f"{path}: missing; restore the file or build the dataset again") from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path}: damaged ({str(error).splitlines()[0]}); build the dataset again") from None
    if table.num_rows != manifest.documents.count:
        raise DataError(
            f"{path}: {table.num_rows} documents where the manifest has {manifest.documents.count}; build it again"
        )
    columns: dict[str, Any] = {
        name: table[name].to_numpy().astype(dtype, copy=False) for name, dtype in _NUMBERS.items()
    }
    columns["doc_id"] = np.frombuffer(ids.buffers()[1], "S32")[ids.offset : ids.offset + len(ids)]
    columns["quality_score"] = table["quality_score"].cast(pa.float64()).to_numpy()
    for name in _CODED:
        column = table[name].dictionary_encode().combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        columns[name] = Coded(
            column.indices.to_numpy().astype(np.int32), tuple(str(value) for value in column.dictionary.to_pylist())
        )
    return DocumentTable(path, columns)
