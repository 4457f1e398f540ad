"""Readers: one input, of whatever kind, becomes records and bad records in order, tolerantly and in bounded memory.

`read_file` chooses the reader by the kind that the recipe tells or the name does. What is damaged never ends a build:
a bad record names input, line and reason; where compressed data breaks off, what came before stands and the rest is
one bad record. What the recipe asks wrongly (an unknown kind, a missing column) is a `UserError`.
"""

import hashlib
from collections.abc import Iterator

from maxtrain.core import files
from maxtrain.core.records import RecordError
from maxtrain.corpus.read.code import read_code
from maxtrain.corpus.read.forum import read_forum
from maxtrain.corpus.read.huggingface import data_files, file_header, read_huggingface
from maxtrain.corpus.read.jsonl import read_jsonl
from maxtrain.corpus.read.options import FOLDER_KINDS, KINDS, TOKEN_KINDS, Kind, ReadOptions, TokensConfig, kind_of
from maxtrain.corpus.read.plain import read_html, read_latex, read_markdown, read_text
from maxtrain.corpus.read.records import BadRecord, Form, Item, RawRecord, RawTokens
from maxtrain.corpus.read.source import Reader, Reading, Source
from maxtrain.corpus.read.streams import OnRead, raw_pieces, size_of
from maxtrain.corpus.read.tables import read_arrow, read_parquet
from maxtrain.corpus.read.tokens import check_tokenizer, index_path, read_megatron, read_token_array
from maxtrain.corpus.read.warc import read_warc, read_wet
from maxtrain.corpus.read.wiki import read_wiki

_READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "text": read_text,
    "markdown": read_markdown,
    "html": read_html,
    "latex": read_latex,
    "warc": read_warc,
    "wet": read_wet,
    "wiki": read_wiki,
    "forum": read_forum,
    "code": read_code,
    "huggingface": read_huggingface,
    "megatron": read_megatron,
    "token_array": read_token_array,
}


def read_file(source: Source, on_read: OnRead | None = None) -> Iterator[Item]:
    """What is in an input, in order.

    Args:
        source: the input.
        on_read: called with every stored (compressed) byte of the input, in order, by the time the last item is out:
            to hash it and to show progress. For inputs of several files a line with name and size comes before each.

    Raises:
        UserError: the kind is not supported, or the input is not what the recipe says.
        DataError: the input changed while it was read.
        OSError: it cannot be read.
    """
    kind = kind_of(source.name, source.options)
    pending = _Pending(on_read)
    is_whole = kind != "code"
    reading = Reading(source, pending.take if on_read is not None else None)
    try:
        yield from _READERS[kind](reading)
    except RecordError as error:
        reading.next()
        yield reading.bad(error.reason, error.detail)
        is_whole = False
    # Damage, or the end that an archive states, may come before that of the file; the hash is of the whole file.
    if on_read is not None and not is_whole and not is_folder(source) and kind not in _RANDOM_KINDS:
        pending.take_rest(source.path)


_RANDOM_KINDS = ("parquet", "arrow", *TOKEN_KINDS)
"""Kinds whose bytes are all passed on before the first record."""


class _Pending:
    """Passes bytes on, and counts them."""

    def __init__(self, on_read: OnRead | None) -> None:
        self._on_read = on_read
        self._taken = 0

    def take(self, piece: bytes) -> None:
        assert self._on_read is not None
        self._taken += len(piece)
        self._on_read(piece)

    def take_rest(self, path: str) -> None:
        """Pass on what no reader has read."""
        skip = self._taken
        for piece in raw_pieces(path):
            if len(piece) > skip:
                self.take(piece[skip:])
            skip = max(skip - len(piece), 0)


def is_folder(source: Source) -> bool:
    """Whether the input is a folder."""
    return not files.is_remote(source.path) and files.local_path(source.path).is_dir()


def fingerprint(source: Source) -> str:
    """SHA-256, in hex, of what `read_file` passes to `on_read`; of a single file that of the file.

    Raises:
        UserError, OSError: as `read_file`.
    """
    digest = hashlib.sha256()
    kind = kind_of(source.name, source.options)
    if is_folder(source) and kind == "huggingface":
        root = files.local_path(source.path)
        for name in data_files(root, source.options.split, source.name):
            digest.update(file_header(root / name, name))
            for piece in raw_pieces(str(root / name)):
                digest.update(piece)
        return digest.hexdigest()
    if is_folder(source):
        for _ in read_file(source, digest.update):
            pass
        return digest.hexdigest()
    paths = [source.path]
    if kind == "megatron":
        paths.insert(0, index_path(source.path))
    for path in paths:
        for piece in raw_pieces(path):
            digest.update(piece)
    return digest.hexdigest()


def input_bytes(source: Source) -> int:
    """Stored bytes of an input, to show progress and to share out work.

    Raises:
        OSError: it cannot be looked at.
    """
    if not is_folder(source):
        return size_of(source.path)
    root = files.local_path(source.path)
    if kind_of(source.name, source.options) == "huggingface":
        return sum((root / name).stat().st_size for name in data_files(root, source.options.split, source.name))
    return sum((root / name).lstat().st_size for name in files.list_files(root))


__all__ = [
    "FOLDER_KINDS",
    "KINDS",
    "TOKEN_KINDS",
    "BadRecord",
    "Form",
    "Item",
    "Kind",
    "RawRecord",
    "RawTokens",
    "ReadOptions",
    "Source",
    "TokensConfig",
    "check_tokenizer",
    "fingerprint",
    "input_bytes",
    "is_folder",
    "kind_of",
    "read_file",
]
