"""Files, local or remote: byte ranges by URL, durable writes, hashes, locks.

A path is a local path, a `file://` URL, or an `s3://`, `gs://`, `http://` or `https://` URL, which is read through
tensorstore. Credentials come from the environment; `AWS_ENDPOINT_URL` names another S3 server, `AWS_REGION` its region.
A web server must answer requests for ranges.
"""

import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from maxtrain.core.errors import BusyError, UserError

CHUNK_BYTES = 8 * 2**20
"""Bytes read at once where a file is streamed."""

_REMOTE_SCHEMES = ("s3", "gs", "http", "https")
_BEYOND = 2**60
"""A place beyond the end of any file."""
_TOLD_SIZE = re.compile(r"(?:total size|value of size) (\d+)")
_RETRIES = {"max_retries": 5, "initial_delay": "200ms", "max_delay": "2s"}


def _scheme(path: str | Path) -> str:
    text = str(path)
    return text.split("://", 1)[0].lower() if "://" in text else ""


def is_remote(path: str | Path) -> bool:
    """Whether the path is a URL of an object store.

    Raises:
        UserError: the URL's scheme is none that can be read.
    """
    scheme = _scheme(path)
    if scheme not in ("", "file", *_REMOTE_SCHEMES):
        raise UserError(f"{path}: unknown scheme {scheme}://; use a local path, file://, s3://, gs:// or https://")
    return scheme in _REMOTE_SCHEMES


def local_path(path: str | Path) -> Path:
    """The local path behind a path or `file://` URL.

    Raises:
        UserError: the path is remote.
    """
    if is_remote(path):
        raise UserError(f"{path}: a local path is needed here, not a URL")
    return Path(unquote(urlsplit(str(path)).path)) if _scheme(path) == "file" else Path(path)


def join(base: str | Path, *parts: str) -> str:
    """Join path components to a local path or URL."""
    if _scheme(base):
        return "/".join([str(base).rstrip("/"), *(part.strip("/") for part in parts)])
    return str(Path(base, *parts))


@functools.lru_cache(maxsize=64)
def _open_store(scheme: str, bucket: str, endpoint: str | None, region: str) -> Any:
    """The key-value store of a bucket."""
    import tensorstore  # costs 0.3 s, and only remote paths need it

    spec: dict[str, Any] = {"bucket": bucket}
    if scheme in ("http", "https"):
        # Ranges are asked for piece by piece: a cache of what the server said before would only hide a change.
        spec = {"driver": "http", "base_url": f"{scheme}://{bucket}", "context": {"http_request_retries": _RETRIES}}
    elif scheme == "s3":
        spec |= {"driver": "s3", "aws_region": region, "context": {"s3_request_retries": _RETRIES}}
        if endpoint:
            spec["endpoint"] = endpoint
        if "AWS_ACCESS_KEY_ID" in os.environ:
            # The default chain complains on stderr about absent profile files, even when it need not look there.
            spec["aws_credentials"] = {"type": "environment"}
    else:
        spec |= {"driver": "gcs", "context": {"gcs_request_retries": _RETRIES}}
    return tensorstore.KvStore.open(spec).result()


def _store_and_key(path: str | Path) -> tuple[Any, str]:
    url = urlsplit(str(path))
    if not url.netloc:
        raise UserError(f"{path}: the URL names no bucket; expected {url.scheme}://bucket/key")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    key = url.path.lstrip("/")
    if url.scheme.lower() in ("http", "https") and url.query:
        key += f"?{url.query}"
    return _open_store(url.scheme.lower(), url.netloc, endpoint, region), key


def _remote_read(path: str | Path, ranges: Sequence[slice | None]) -> list[bytes]:
    """Byte ranges of one object, requested at once."""
    try:
        store, key = _store_and_key(path)
        results = [future.result() for future in [store.read(key, byte_range=part) for part in ranges]]
    except UserError:
        raise
    except ValueError as error:
        # tensorstore raises ValueError for every failure; only this one has a meaning for callers.
        if "OUT_OF_RANGE" in str(error):
            raise EOFError(f"{path}: shorter than the bytes asked for") from error
        reason = str(error).split(" [", 1)[0].splitlines()[0][:200]
        raise OSError(errno.EIO, f"cannot read: {reason}", str(path)) from None
    if any(result.state == "missing" for result in results):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return [result.value for result in results]


def read_bytes(path: str | Path) -> bytes:
    """A file's whole content.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    if is_remote(path):
        return _remote_read(path, [None])[0]
    return local_path(path).read_bytes()


def read_range(path: str | Path, offset: int, size: int) -> bytes:
    """`size` bytes from `offset` on.

    Raises:
        EOFError: the file ends before.
        OSError: the file is missing or cannot be read.
    """
    return read_ranges(path, [(offset, size)])[0]


def read_ranges(path: str | Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Several (offset, size) ranges of one file; a remote one is asked for all of them at once.

    Raises:
        EOFError: the file ends before a range does.
        OSError: the file is missing or cannot be read.
    """
    if is_remote(path):
        parts = _remote_read(path, [slice(offset, offset + size) for offset, size in ranges])
    else:
        with local_path(path).open("rb") as file:
            parts = [os.pread(file.fileno(), size, offset) for offset, size in ranges]
    for (offset, size), part in zip(ranges, parts, strict=True):
        if len(part) != size:
            raise EOFError(f"{path}: ends before byte {offset + size}")
    return parts


def exists(path: str | Path) -> bool:
    """Whether a file (not a directory, where remote) is there.

    Raises:
        OSError: the object store cannot be asked.
    """
    if not is_remote(path):
        return local_path(path).exists()
    try:
        _remote_read(path, [slice(0, 0)])
    except FileNotFoundError:
        return False
    return True


def list_files(base: str | Path) -> list[str]:
    """Every file below a local directory or URL, relative to it with `/`, in order.

    Raises:
        OSError: the directory or the bucket cannot be listed.
    """
    if not is_remote(base):
        root = local_path(base)
        found = [Path(folder, name) for folder, _, names in os.walk(root, onerror=_raise) for name in names]
        return sorted(path.relative_to(root).as_posix() for path in found)
    store, key = _store_and_key(base)
    prefix = f"{key.rstrip('/')}/".lstrip("/")
    try:
        keys = store.list(store.KeyRange(prefix, f"{prefix[:-1]}0" if prefix else "")).result()  # `0` comes after `/`
    except ValueError as error:
        reason = str(error).split(" [", 1)[0].splitlines()[0][:200]
        raise OSError(errno.EIO, f"cannot list: {reason}", str(base)) from None
    # A key that ends with `/` is a folder that a console made.
    names = [name.decode()[len(prefix) :] for name in keys if not name.endswith(b"/")]
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error


def size(path: str | Path) -> int:
    """Bytes of a local file; for a remote one ask `has_size` or `remote_size`."""
    return local_path(path).stat().st_size


def remote_size(path: str | Path) -> int:
    """Bytes of a remote file.

    Raises:
        OSError: the file is missing, cannot be read, or its store does not tell its size.
    """
    try:
        _remote_read(path, [slice(0, _BEYOND)])
    except EOFError as error:
        # No request of the store asks for a size alone, but its refusal of a range beyond the end states it.
        if match := _TOLD_SIZE.search(str(error.__cause__)):
            return int(match[1])
        if _is_empty(path):
            return 0
    raise OSError(errno.EIO, "cannot tell the size of the object", str(path))


def _is_empty(path: str | Path) -> bool:
    try:
        read_range(path, 0, 1)
    except EOFError:
        return True
    return False


def has_size(path: str | Path, expected: int) -> bool:
    """Whether a file has exactly this many bytes; a remote one is probed at both sides of its end.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    if not is_remote(path):
        return size(path) == expected
    try:
        read_range(path, max(expected - 1, 0), min(expected, 1))
    except EOFError:
        return False
    try:
        read_range(path, expected, 1)
    except EOFError:
        return True
    return False


def iterate_chunks(path: str | Path, num_bytes: int | None = None, chunk: int = CHUNK_BYTES) -> Iterator[bytes]:
    """A file's content in chunks of a fixed size, the last one shorter.

    Args:
        path: file to read.
        num_bytes: its size, which a remote file needs.
        chunk: bytes a chunk.

    Raises:
        EOFError: the file ends before `num_bytes`.
        OSError: the file is missing or cannot be read.
    """
    total = size(path) if num_bytes is None else num_bytes
    for offset in range(0, total, chunk):
        yield read_range(path, offset, min(chunk, total - offset))


def sha256_bytes(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path, num_bytes: int | None = None) -> str:
    """SHA-256 of a file in hex, read in chunks; a remote file needs its size."""
    digest = hashlib.sha256()
    for part in iterate_chunks(path, num_bytes):
        digest.update(part)
    return digest.hexdigest()


def fsync_directory(path: str | Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a local file whole or not at all: temporary sibling, fsync, rename, fsync of the directory."""
    target = local_path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(target.parent)


def append_line(path: str | Path, line: str) -> None:
    """Append one line durably; a torn tail left by a crash is closed first, so that it spoils no other line."""
    target = local_path(path)
    created = not target.exists()
    with target.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line.rstrip("\n").encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if created:
        fsync_directory(target.parent)


class DirectoryLock:
    """An exclusive hold on a directory for as long as the process lives, by a kernel lock on `.lock` in it.

    Raises:
        BusyError: another process holds it; the message names its id.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = local_path(directory)
        self._file: Any = None

    def __enter__(self) -> Self:
        file = (self.directory / ".lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise BusyError(
                f"{self.directory}: held by process {holder}; wait for it to end or use another directory"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._file = None


def user_cache_directory() -> Path:
    """Where caches live: MAXTRAIN_CACHE, else XDG_CACHE_HOME/maxtrain, else ~/.cache/maxtrain."""
    if own := os.environ.get("MAXTRAIN_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "maxtrain"
