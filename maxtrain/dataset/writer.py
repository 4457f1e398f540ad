"""Write a dataset directory: documents in any order in, shards in `doc_id` order out, whole or not at all.

Tokens wait in a file on disk until every document is known; memory holds one row of the index per document (about
100 bytes). The directory grows under a hidden sibling name and is renamed when all of it is durable.
"""

import hashlib
import os
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.dataset.format import (
    ATTACHMENTS,
    DOCUMENTS,
    FORMAT_VERSION,
    LENGTH_BUCKETS,
    MANIFEST,
    TOKENIZER,
    TRAIN_SPLIT,
    DocumentsRecord,
    FileRecord,
    InputRecord,
    Manifest,
    RuleCounts,
    ShardRecord,
    SplitRecord,
    TokenizerRecord,
    Totals,
    token_dtype,
)

_CODED = ("source", "lang", "category", "split", "licence", "input")
_BUFFER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """An encoded document and its tags."""

    doc_id: str
    tokens: Sequence[int] | np.ndarray
    """Ids of the text, without bos and eod."""
    num_bytes: int
    """UTF-8 bytes of the text."""
    source: str
    lang: str
    category: str
    split: str
    quality_score: float | None
    licence: str
    origin: str
    """The record's own origin, url or id; empty for none."""
    input: str
    """Input file that holds the record."""
    line: int
    """Line of the record in it, from 1."""
    url: str | None = None


@dataclass(frozen=True)
class History:
    """How a dataset came to be; copied into its manifest."""

    code_version: str
    build_version: int
    recipe: dict[str, Any]
    inputs: Sequence[InputRecord]
    rules: Mapping[str, RuleCounts]
    split_fractions: Mapping[str, float]
    evaluation_suite: str | None = None


class _Column:
    """A dictionary-encoded column while it grows; codes follow first appearance until `sorted_codes`."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._codes = array("i")

    def append(self, value: str) -> None:
        self._codes.append(self._code_of.setdefault(value, len(self._code_of)))

    def sorted_codes(self) -> tuple[np.ndarray, list[str]]:
        """Codes [documents] int32 into the sorted names, so that the order of arrival leaves no trace."""
        names = sorted(self._code_of)
        place = np.empty(max(len(names), 1), np.int32)
        for new, name in enumerate(names):
            place[self._code_of[name]] = new
        return place[np.frombuffer(self._codes, np.int32)], names


class _Index:
    """One row per document, in order of arrival."""

    def __init__(self) -> None:
        self.doc_ids = bytearray()
        self.coded = {name: _Column() for name in _CODED}
        self.num_tokens = array("q")
        self.num_bytes = array("q")
        self.quality = array("d")
        self.line = array("q")
        self.origins = bytearray()
        self.origin_ends = array("q")
        self.urls = bytearray()
        self.url_ends = array("q")

    def append(self, document: Document, num_tokens: int) -> None:
        self.doc_ids += bytes.fromhex(document.doc_id)
        for name, column in self.coded.items():
            column.append(getattr(document, name))
        self.num_tokens.append(num_tokens)
        self.num_bytes.append(document.num_bytes)
        self.quality.append(float("nan") if document.quality_score is None else document.quality_score)
        self.line.append(document.line)
        self.origins += document.origin.encode()
        self.origin_ends.append(len(self.origins))
        self.urls += (document.url or "").encode()
        self.url_ends.append(len(self.urls))

    def order(self) -> np.ndarray:
        """Arrival numbers in `doc_id` order.

        Raises:
            DataError: two documents have one id.
        """
        halves = np.frombuffer(self.doc_ids, ">u8").reshape(-1, 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        same = np.flatnonzero((halves[order[1:]] == halves[order[:-1]]).all(axis=1))
        if len(same):
            first, second = sorted((int(order[same[0]]), int(order[same[0] + 1])))
            raise DataError(
                f"{self.place(first)} and {self.place(second)}: two records with one identity "
                f"(doc_id {self.doc_ids[16 * first : 16 * first + 16].hex()}; {len(same)} such in all); "
                "give each record of a source its own id, name the sources apart, or remove the repetition"
            )
        return order

    def place(self, number: int) -> str:
        """Input file and line of a document."""
        codes, names = self.coded["input"].sorted_codes()
        return f"{names[codes[number]]}:{self.line[number]}"


_SHARDS = "shards"


def holds_dataset(output: Path) -> bool:
    """Whether a dataset is there, damaged or not; False where there is nothing, or an empty directory.

    Raises:
        DataError: something else is there, which no dataset replaces.
    """
    if not output.exists() or (output.is_dir() and next(output.iterdir(), None) is None):
        return False
    if not ((output / MANIFEST).is_file() and ((output / DOCUMENTS).is_file() or (output / _SHARDS).is_dir())):
        raise DataError(f"{output}: holds something else than a dataset; choose another output or move it away")
    return True


def check_replaceable(output: Path) -> None:
    """A dataset is replaced as a whole directory: nothing else may lie in it.

    Raises:
        DataError: something else lies there.
    """
    own = {MANIFEST, DOCUMENTS, TOKENIZER, *ATTACHMENTS, _SHARDS}
    foreign = [path for path in output.iterdir() if path.name not in own]
    foreign += [path for path in (output / _SHARDS).glob("*") if path.suffix != ".bin" or not path.stem.isdecimal()]
    if foreign:
        raise DataError(f"{min(foreign)}: is no part of the dataset that would be replaced; move it away first")


class DatasetWriter:
    """Collects documents, then writes the dataset.

    Use it as a context manager: without `finish`, nothing is left behind.

    Attributes:
        partial: the directory while it grows; a caller may write the attachments to it.

    Args:
        output: the dataset's directory.
        tokenizer: its record; `bos_id` is null where no bos is to be written.
        tokenizer_model: bytes of the normalised model that the record describes.
        shard_tokens: most tokens in a shard; a longer document has a shard of its own.
        replace: replace an existing directory.

    Raises:
        DataError: the output exists and is not to be replaced, or is no dataset.
        BusyError: another process is writing the same output.
    """

    def __init__(
        self,
        output: str | Path,
        tokenizer: TokenizerRecord,
        tokenizer_model: bytes,
        *,
        shard_tokens: int,
        replace: bool = False,
    ) -> None:
        self.output = files.local_path(output).absolute()
        if holds_dataset(self.output):
            if not replace:
                raise DataError(f"{output}: exists; choose another output or replace it with --force")
            check_replaceable(self.output)
        self.tokenizer = tokenizer
        self.tokenizer_model = tokenizer_model
        self.shard_tokens = shard_tokens
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.partial = self.output.with_name(f".{self.output.name}.partial")
        self._index = _Index()
        self._stack = ExitStack()
        self._published = False
        self._head = [] if tokenizer.bos_id is None else [tokenizer.bos_id]

    def __enter__(self) -> Self:
        self.partial.mkdir(parents=True, exist_ok=True)
        self._stack.enter_context(files.DirectoryLock(self.partial))
        for entry in self.partial.iterdir():
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        (self.partial / _SHARDS).mkdir()
        self._spill_path = self.partial / "spill.bin"
        self._spill: BinaryIO = self._stack.enter_context(self._spill_path.open("wb", buffering=_BUFFER_BYTES))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published:
            shutil.rmtree(self.partial)
        self._stack.close()

    def add(self, document: Document) -> None:
        """Take one document.

        Raises:
            DataError: a token id is outside the vocabulary.
        """
        ids = np.asarray(document.tokens, np.int64)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.tokenizer.vocab_size:
            bad = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
            raise DataError(
                f"{document.input}:{document.line}: token id {bad} is outside the vocabulary of "
                f"{self.tokenizer.vocab_size}"
            )
        whole = np.concatenate([self._head, ids, [self.tokenizer.eod_id]]).astype(self.dtype)
        self._spill.write(whole.tobytes())
        self._index.append(document, len(whole))

    def finish(self, history: History) -> Manifest:
        """Write everything and move the dataset to its place.

        Args:
            history: what the manifest tells beside the data.

        Raises:
            DataError: there is no document, or two have one id.
        """
        if not self._index.num_tokens:
            raise DataError(f"{self.output}: no document is left to write; an empty dataset is of no use")
        self._spill.close()
        order = self._index.order()
        shards, places = self._write_shards(order)
        self._spill_path.unlink()
        table = _document_table(self._index, order, places)
        pq.write_table(
            table,
            self.partial / DOCUMENTS,
            compression="zstd",
            compression_level=9,
            row_group_size=2**17,
            version="2.6",
        )
        (self.partial / TOKENIZER).write_bytes(self.tokenizer_model)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            code_version=history.code_version,
            build_version=history.build_version,
            dtype="uint16" if self.dtype.itemsize == 2 else "uint32",
            tokenizer=self.tokenizer,
            documents=DocumentsRecord(count=len(order), sha256=files.sha256_file(self.partial / DOCUMENTS)),
            shards=tuple(shards),
            attachments=tuple(_file_records(self.partial, ATTACHMENTS)),
            totals=_totals(self._index, slice(None)),
            splits=_split_records(self._index, history.split_fractions),
            licences={name: _totals(self._index, mask) for name, mask in _groups(self._index, "licence")},
            rules=dict(history.rules),
            inputs=tuple(history.inputs),
            recipe=history.recipe,
            evaluation_suite=history.evaluation_suite,
        )
        (self.partial / MANIFEST).write_bytes(manifest.to_bytes())
        self._publish()
        return manifest

    def _write_shards(self, order: np.ndarray) -> tuple[list[ShardRecord], np.ndarray]:
        """Write the shards; also returns (shard, offset) [documents, 2] int64 in `doc_id` order."""
        lengths = np.frombuffer(self._index.num_tokens, np.int64)
        starts = np.cumsum(lengths) - lengths
        spill = np.memmap(self._spill_path, self.dtype, "r")
        places = np.empty((len(order), 2), np.int64)
        shards: list[ShardRecord] = []
        bounds = list(_shard_bounds(lengths[order], self.shard_tokens))
        for first, stop in tqdm(bounds, desc="write shards", delay=1, leave=False):
            numbers = order[first:stop]
            ends = np.cumsum(lengths[numbers])
            places[first:stop, 0] = len(shards)
            places[first:stop, 1] = ends - lengths[numbers]
            name = f"shards/{len(shards):05d}.bin"
            digest = hashlib.sha256()
            with (self.partial / name).open("wb", buffering=_BUFFER_BYTES) as file:
                for start, length in zip(starts[numbers], lengths[numbers], strict=True):
                    data = spill[start : start + length].tobytes()
                    digest.update(data)
                    file.write(data)
            num_tokens = int(ends[-1])
            shards.append(
                ShardRecord(
                    file=name,
                    num_tokens=num_tokens,
                    num_bytes=num_tokens * self.dtype.itemsize,
                    sha256=digest.hexdigest(),
                )
            )
        return shards, places

    def _publish(self) -> None:
        """Make every file durable, then rename the directory; a replaced one is set aside first."""
        (self.partial / ".lock").unlink()
        for folder, _, names in os.walk(self.partial):
            for name in names:
                with Path(folder, name).open("rb") as file:
                    os.fsync(file.fileno())
            files.fsync_directory(folder)
        aside = self.output.with_name(f".{self.output.name}.replaced")
        if self.output.exists():
            if aside.exists():
                shutil.rmtree(aside)
            self.output.replace(aside)
        self.partial.replace(self.output)
        self._published = True
        files.fsync_directory(self.output.parent)
        if aside.exists():
            shutil.rmtree(aside)


def _file_records(folder: Path, names: Sequence[str]) -> Iterator[FileRecord]:
    for name in names:
        if (path := folder / name).exists():
            yield FileRecord(file=name, num_bytes=files.size(path), sha256=files.sha256_file(path))


def _shard_bounds(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Cut documents into runs of at most `limit` tokens; a longer document stands alone."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, before + limit, side="right")), first + 1)
        yield first, stop
        first = stop


def _totals(index: _Index, where: np.ndarray | slice) -> Totals:
    num_tokens = np.frombuffer(index.num_tokens, np.int64)[where]
    num_bytes = np.frombuffer(index.num_bytes, np.int64)[where]
    return Totals(documents=len(num_tokens), tokens=int(num_tokens.sum()), bytes=int(num_bytes.sum()))


def _groups(index: _Index, column: str) -> Iterator[tuple[str, np.ndarray]]:
    codes, names = index.coded[column].sorted_codes()
    for code, name in enumerate(names):
        yield name, codes == code


def _split_records(index: _Index, fractions: Mapping[str, float]) -> dict[str, SplitRecord]:
    masks = dict(_groups(index, "split"))
    nothing = np.zeros(len(index.num_tokens), bool)
    return {
        name: SplitRecord(fraction=fractions.get(name), **_totals(index, masks.get(name, nothing)).model_dump())
        for name in (TRAIN_SPLIT, *fractions)
    }


def _bucket_names() -> list[str]:
    return [*(f"<={bound}" for bound in LENGTH_BUCKETS), f">{LENGTH_BUCKETS[-1]}"]


def _document_table(index: _Index, order: np.ndarray, places: np.ndarray) -> pa.Table:
    """The document table in `doc_id` order; one dictionary per tag, sorted by name."""

    def coded(name: str) -> pa.Array:
        codes, names = index.coded[name].sorted_codes()
        return pa.DictionaryArray.from_arrays(pa.array(codes[order]), pa.array(names, pa.string()))

    def texts(data: bytearray, ends: array) -> list[str]:
        bounds = np.concatenate([[0], np.frombuffer(ends, np.int64)])
        return [data[bounds[n] : bounds[n + 1]].decode() for n in order]

    ids = index.doc_ids.hex()
    num_tokens = np.frombuffer(index.num_tokens, np.int64)[order]
    quality = np.frombuffer(index.quality, np.float64)[order]
    columns = {
        "doc_id": pa.array([ids[32 * number : 32 * number + 32] for number in order], pa.string()),
        "shard": pa.array(places[:, 0].astype(np.int32)),
        "offset": pa.array(places[:, 1]),
        "num_tokens": pa.array(num_tokens),
        "num_bytes": pa.array(np.frombuffer(index.num_bytes, np.int64)[order]),
        **{name: coded(name) for name in ("source", "lang", "category", "split")},
        "quality_score": pa.array(quality, mask=np.isnan(quality)),
        "licence": coded("licence"),
        "length_bucket": pa.DictionaryArray.from_arrays(
            pa.array(np.searchsorted(LENGTH_BUCKETS, num_tokens).astype(np.int32)), pa.array(_bucket_names())
        ),
        "origin": pa.array(texts(index.origins, index.origin_ends), pa.string()),
        "url": pa.array(texts(index.urls, index.url_ends), pa.string()),
        "input": coded("input"),
        "line": pa.array(np.frombuffer(index.line, np.int64)[order]),
    }
    return pa.table(columns)
