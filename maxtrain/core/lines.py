"""Stream plain, gzip or Zstandard files by line."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from maxtrain.core import files
from maxtrain.core.errors import DataError

_READ_BYTES = 2**18


def iterate_lines(path: str | Path, on_read: Callable[[bytes], Any] | None = None) -> Iterator[bytes]:
    r"""Lines of a local file without their `\n`; `.gz` and `.zst` are decompressed.

    Args:
        path: file to read.
        on_read: called with each (compressed) piece of the file as it was read, to count or hash it.

    Raises:
        DataError: compressed data is damaged or ends early.
        OSError: the file cannot be read.
    """
    rest: list[bytes] = []
    for chunk in _decompressed(files.local_path(path), on_read):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    last = b"".join(rest)
    if last:
        yield last


def _new_decompressor(path: Path) -> Any:
    return (
        zlib.decompressobj(16 + zlib.MAX_WBITS)
        if path.suffix == ".gz"
        else zstandard.ZstdDecompressor().decompressobj()
    )


def _decompressed(path: Path, on_read: Callable[[bytes], Any] | None) -> Iterator[bytes]:
    """Decompressed pieces; several frames or members in a row are one stream."""
    plain = path.suffix not in (".gz", ".zst")
    stream: Any = None
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            if on_read is not None:
                on_read(data)
            if plain:
                yield data
                continue
            while data:
                stream = stream or _new_decompressor(path)
                try:
                    yield stream.decompress(data)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise DataError(f"{path}: damaged {path.suffix} data ({error}); replace the file") from None
                data = stream.unused_data if stream.eof else b""
                stream = None if stream.eof else stream
    if stream is not None:
        raise DataError(f"{path}: {path.suffix} data ends early; the file is truncated, replace it")
