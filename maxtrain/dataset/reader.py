"""Open a dataset, local or by URL, verify it, and read documents and tokens at random."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import ValidationError

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.dataset.filter import Filter, matches
from maxtrain.dataset.format import DOCUMENTS, FORMAT_VERSION, MANIFEST, Manifest
from maxtrain.dataset.table import DocumentTable, read_table
from maxtrain.dataset.verify import verify_files, verify_table

Verify = Literal["full", "size", "none"]

_OPEN_SHARDS = 256
"""Shards mapped at once: each costs a file descriptor."""


def read_manifest(location: str) -> tuple[Manifest, str]:
    """Read a dataset's manifest.

    Returns:
        The manifest, and the SHA-256 of its bytes in hex: the dataset's identity.

    Raises:
        DataError: there is no dataset, or its manifest is damaged, empty or of another format version.
    """
    path = files.join(location, MANIFEST)
    try:
        data = files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{location}: no dataset here ({MANIFEST} is missing); build one: python -m maxtrain.corpus build RECIPE"
        ) from None
    try:
        content = json.loads(data)
    except ValueError as error:
        raise DataError(f"{path}: damaged, not valid JSON ({error}); build the dataset again") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {version} where this code reads {FORMAT_VERSION}; build the dataset again"
        )
    if not content.get("shards") or not (content.get("documents") or {}).get("count"):
        raise DataError(f"{location}: the dataset is empty; build it from inputs that keep at least one document")
    try:
        return Manifest.model_validate(content), files.sha256_bytes(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: damaged at {where}: {first['msg']}; build the dataset again") from None


class Dataset:
    """An immutable dataset; `open` makes one.

    Attributes:
        location: directory or URL.
        manifest: its manifest.
        manifest_hash: SHA-256 of the manifest's bytes, hex.
        documents: the document table in `doc_id` order.
    """

    def __init__(self, location: str, manifest: Manifest, manifest_hash: str, documents: DocumentTable) -> None:
        self.location = location
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self.documents = documents
        self.dtype: np.dtype[Any] = np.dtype(manifest.dtype).newbyteorder("<")
        self._remote = files.is_remote(location)
        self._maps: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, location: str, *, verify: Verify = "full", progress: bool = True) -> Self:
        """Open and verify a dataset.

        Args:
            location: local directory, or s3:// or gs:// URL.
            verify: `full` checks every file's hash and every token id; `size` the files' sizes and the document
                table's hash; `none` reads the manifest and the table alone.
            progress: show a bar on stderr where verification takes long.

        Raises:
            DataError: a file is missing, damaged, truncated or not the expected one, or the dataset is empty.
            OSError: the storage cannot be reached.
        """
        location = str(location)
        manifest, manifest_hash = read_manifest(location)
        if verify != "none":
            verify_files(location, manifest, full=verify == "full", progress=progress)
        documents = read_table(files.join(location, DOCUMENTS), manifest)
        dataset = cls(location, manifest, manifest_hash, documents)
        if verify != "none":
            verify_table(location, manifest, documents)
        return dataset

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the normalised tokenizer model."""
        return self.manifest.tokenizer.sha256

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.manifest.tokenizer.vocab_size

    @property
    def bos_id(self) -> int | None:
        """Id before each document; None where none was written."""
        return self.manifest.tokenizer.bos_id

    @property
    def eod_id(self) -> int:
        """Id after each document."""
        return self.manifest.tokenizer.eod_id

    @property
    def pad_id(self) -> int:
        """Id for padding; no document holds it."""
        return self.manifest.tokenizer.pad_id

    def tokenizer_model(self) -> bytes:
        """The normalised tokenizer model, checked against its hash; `Tokenizer.load` takes it.

        Raises:
            DataError: the file is missing or not the one that wrote the tokens.
        """
        path = files.join(self.location, self.manifest.tokenizer.file)
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            raise DataError(f"{path}: missing; restore the file or build the dataset again") from None
        if files.sha256_bytes(data) != self.tokenizer_hash:
            raise DataError(f"{path}: not the tokenizer that wrote the tokens (hash differs); restore the file")
        return data

    def select(self, filter: Filter) -> np.ndarray:  # noqa: A002
        """Documents that match a tag filter.

        Returns:
            Ascending document numbers, [matches] int64.
        """
        return np.flatnonzero(matches(self.documents, filter))

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens [start, stop) of one document, bos and eod included; read-only, 1-D, `dtype`.

        Raises:
            DataError: the shard ends before, or is missing.
            IndexError: no such document or range.
        """
        length = int(self.documents.num_tokens[document])
        return self.tokens_many([document], [start], [length if stop is None else stop])[0]

    def tokens_many(self, documents: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> list[np.ndarray]:
        """Tokens [start, stop) of several documents; remote ranges of one shard are requested at once.

        Raises:
            DataError: a shard ends before, or is missing.
            IndexError: no such document or range.
        """
        table = self.documents
        wanted: dict[int, list[tuple[int, int, int]]] = {}
        for number, (document, start, stop) in enumerate(zip(documents, starts, stops, strict=True)):
            if not 0 <= start <= stop <= table.num_tokens[document]:
                raise IndexError(
                    f"tokens [{start}, {stop}) of document {document}, which has {table.num_tokens[document]}"
                )
            offset = int(table.offset[document])
            wanted.setdefault(int(table.shard[document]), []).append((number, offset + start, offset + stop))
        result: list[np.ndarray] = [np.empty(0, self.dtype)] * len(documents)
        for shard, parts in wanted.items():
            for (number, _, _), tokens in zip(parts, self._read_shard(shard, parts), strict=True):
                result[number] = tokens
        return result

    def _read_shard(self, shard: int, parts: list[tuple[int, int, int]]) -> list[np.ndarray]:
        if not self._remote:
            tokens = self._map(shard)
            return [tokens[first:stop] for _, first, stop in parts]
        path, item = self._shard_path(shard), self.dtype.itemsize
        try:
            data = files.read_ranges(path, [(first * item, (stop - first) * item) for _, first, stop in parts])
        except (FileNotFoundError, EOFError):
            raise DataError(f"{path}: missing or truncated; restore the file or build the dataset again") from None
        return [np.frombuffer(part, self.dtype) for part in data]

    def _shard_path(self, shard: int) -> str:
        return files.join(self.location, self.manifest.shards[shard].file)

    def _map(self, shard: int) -> np.ndarray:
        with self._lock:
            tokens = self._maps.get(shard)
            if tokens is None:
                path, record = self._shard_path(shard), self.manifest.shards[shard]
                try:
                    tokens = np.asarray(np.memmap(files.local_path(path), self.dtype, "r", shape=(record.num_tokens,)))
                except (FileNotFoundError, ValueError):
                    raise DataError(
                        f"{path}: missing or truncated; restore the file or build the dataset again"
                    ) from None
                self._maps[shard] = tokens
                if len(self._maps) > _OPEN_SHARDS:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(shard)
            return tokens
