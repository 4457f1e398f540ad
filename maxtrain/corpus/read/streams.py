"""Bytes of local and remote files piece by piece: decompressed within bounds, cut into lines, or spooled to disk.

Damage of compressed data is a `RecordError`: what came before it stands, the reader makes one bad record of the rest.
"""

import bz2
import io
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.core.records import RecordError

OnRead = Callable[[bytes], Any]
_LOCAL_BYTES = 2**18
_REMOTE_BYTES = 2**22
_OUTPUT_BYTES = 2**20
"""Most bytes that one step of a decompressor gives, whatever the data asks for."""
_ZSTD_FEED = 512
"""Bytes that zstd is given at once, since it cannot be told how much to give: 4 of them may become 128 KiB."""
_LZMA_MEMORY = 2**28


def size_of(path: str) -> int:
    """Bytes of a local or remote file."""
    return files.remote_size(path) if files.is_remote(path) else files.size(path)


def raw_pieces(path: str, on_read: OnRead | None = None) -> Iterator[bytes]:
    """A file's bytes as they are stored.

    Args:
        path: local path or URL.
        on_read: called with each piece.

    Raises:
        DataError: the file got shorter while it was read.
        OSError: it cannot be read.
    """
    if files.is_remote(path):
        try:
            for piece in files.iterate_chunks(path, files.remote_size(path), _REMOTE_BYTES):
                if on_read is not None:
                    on_read(piece)
                yield piece
        except EOFError:
            raise DataError(f"{path}: changed while it was read; build again when nothing writes it") from None
        return
    with files.local_path(path).open("rb") as file:
        while piece := file.read(_LOCAL_BYTES):
            if on_read is not None:
                on_read(piece)
            yield piece


def decompress(pieces: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Decompressed pieces of at most 1 MiB (16 for zstd); members or frames in a row are one stream.

    Args:
        pieces: stored bytes.
        compression: `.gz`, `.zst`, `.bz2`, `.xz`, or nothing.

    Raises:
        RecordError: the data is damaged or ends early; everything before was yielded.
    """
    if not compression:
        return pieces
    if compression == ".zst":
        return _decompress_zstd(pieces)
    return _decompress_members(pieces, compression)


def _new_member(compression: str) -> Any:
    if compression == ".gz":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    return bz2.BZ2Decompressor() if compression == ".bz2" else lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)


def _decompress_members(pieces: Iterator[bytes], compression: str) -> Iterator[bytes]:
    name = compression[1:]
    member: Any = None
    members = 0
    for piece in pieces:
        data = piece
        while data or (member is not None and compression != ".gz" and not member.needs_input):
            if member is None:
                data = data.lstrip(b"\0") if members else data  # archives are padded with zeros to whole blocks
                if not data:
                    break
                member = _new_member(compression)
            try:
                output = member.decompress(data, _OUTPUT_BYTES)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                raise RecordError(f"damaged_{name}", f"{compression} data is damaged ({error})") from None
            if output:
                yield output
            if member.eof:
                data, member, members = member.unused_data, None, members + 1
            else:
                data = member.unconsumed_tail if compression == ".gz" else b""
    if member is not None:
        raise RecordError(f"truncated_{name}", f"{compression} data ends early; the file is truncated")


def _decompress_zstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    frame: Any = None
    for piece in pieces:
        for start in range(0, len(piece), _ZSTD_FEED):
            data = piece[start : start + _ZSTD_FEED]
            while data:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    output = frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise RecordError("damaged_zst", f".zst data is damaged ({error})") from None
                if output:
                    yield output
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    if frame is not None:
        raise RecordError("truncated_zst", ".zst data ends early; the file is truncated")


class PieceReader(io.RawIOBase):
    """A readable file over pieces of bytes.

    Attributes:
        error: what stopped the pieces, where `keep_errors` lets the reader see an early end instead.

    Args:
        pieces: bytes in order.
        keep_errors: keep a RecordError in `error` and end, since the reader cannot let one through.
    """

    def __init__(self, pieces: Iterator[bytes], *, keep_errors: bool = False) -> None:
        self.error: RecordError | None = None
        self._pieces = pieces
        self._keep_errors = keep_errors
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as one piece does."""
        try:
            while not self._rest:
                self._rest = memoryview(next(self._pieces))
        except StopIteration:
            return 0
        except RecordError as error:
            if not self._keep_errors:
                raise
            self.error = error
            return 0
        target = memoryview(buffer)
        size = min(len(self._rest), len(target))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def lines(pieces: Iterator[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    r"""Lines without their `\n`, each with its number from 1; None in place of one that is longer than the limit."""
    parts: list[bytes] = []
    size = 0
    number = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        size += len(first)
        if size <= limit:
            parts.append(first)
        else:
            parts.clear()
        if not others:
            continue
        number += 1
        yield number, b"".join(parts) if size <= limit else None
        for line in others[:-1]:
            number += 1
            yield number, line if len(line) <= limit else None
        parts, size = [others[-1]], len(others[-1])
    if size:
        yield number + 1, b"".join(parts) if size <= limit else None


def whole(pieces: Iterator[bytes], limit: int) -> bytes:
    """All bytes.

    Raises:
        RecordError: they are more than the limit, or damaged.
    """
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise RecordError("too_long", f"over the limit of {limit:,} bytes a record (read.max_record_bytes)")
        found.append(piece)
    return b"".join(found)


def open_random(path: str, on_read: OnRead | None = None) -> IO[bytes]:
    """A file for reading at random places, after one pass over all its bytes; a remote one is spooled to disk.

    Args:
        path: local path or URL.
        on_read: called with each piece of the pass.

    Raises:
        OSError: it cannot be read, or there is no room for it.
    """
    if files.is_remote(path):
        spool = tempfile.TemporaryFile(prefix="maxtrain-")  # noqa: SIM115, the caller closes it
        for piece in raw_pieces(path, on_read):
            spool.write(piece)
        spool.seek(0)
        return spool
    file = files.local_path(path).open("rb")
    if on_read is not None:
        while piece := file.read(_LOCAL_BYTES):
            on_read(piece)
        file.seek(0)
    return file


def state_of(file: IO[bytes]) -> tuple[int, int]:
    """Size and time of change of an open file, to tell afterwards that nobody wrote it."""
    told = os.fstat(file.fileno())
    return told.st_size, told.st_mtime_ns


def beside(path: str, name: str) -> str:
    """The path of a file in the same folder."""
    return f"{path.rsplit('/', 1)[0]}/{name}" if files.is_remote(path) else str(Path(path).parent / name)
