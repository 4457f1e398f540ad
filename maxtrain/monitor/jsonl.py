"""Append-only files of JSON lines that survive a kill at any instant."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from maxtrain.core.errors import DataError

Line = TypeVar("Line")

_CHUNK = 1 << 16


def utc_now() -> str:
    """The time as ISO 8601 text in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse(raw: bytes) -> dict[str, Any] | None:
    """The object on a line, or None if the bytes are not one whole JSON object."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):  # UnicodeDecodeError is one too
        return None
    return value if isinstance(value, dict) else None


def _tail(path: Path) -> bytes:
    """What follows the last line end; read backwards, so that a long file costs nothing."""
    tail = b""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0 and b"\n" not in tail:
            start = max(end - _CHUNK, 0)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    return tail.rpartition(b"\n")[2]


def last_line(path: Path) -> dict[str, Any] | None:
    """The newest whole line of a file, or None where the file is absent or empty."""
    if not path.is_file():
        return None
    kept = b""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(end - _CHUNK, 0)
            file.seek(start)
            kept = file.read(end - start) + kept
            end = start
            # The first piece may be the end of a longer line, unless the file starts here.
            for raw in reversed(kept.split(b"\n")[0 if start == 0 else 1 :]):
                if raw.strip() and (line := _parse(raw)) is not None:
                    return line
    return None


def read_json_lines(path: Path, convert: Callable[[dict[str, Any]], Line]) -> Iterator[Line]:
    """Every whole line of a file in order; a torn tail (a write that a kill cut short) is ignored.

    Args:
        path: the file.
        convert: from a line's object to what it stands for; a line that has a JSON object of another kind makes it
            raise KeyError, TypeError or ValueError.

    Raises:
        DataError: a line that was written whole is not a JSON object, or not one of this file.
    """
    cure = "restore the file or delete that line"
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = _parse(raw)
            if line is not None:
                try:
                    found = convert(line)
                except KeyError as error:
                    raise DataError(f"{path} line {number} has no {error.args[0]}; {cure}") from None
                except (TypeError, ValueError) as error:
                    raise DataError(f"{path} line {number}: {error}; {cure}") from None
                yield found
            elif raw.endswith(b"\n"):
                raise DataError(f"{path} line {number} is not a JSON object; {cure}")


def need(line: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """A field of a line, which is there and of one of these types; None only where NoneType is one of them.

    Raises:
        KeyError: there is none.
        TypeError: it is of another type; a whole number over 63 bits is too.
    """
    value = line[name]
    if type(value) not in kinds or (type(value) is int and abs(value) > MOST):
        said = " or ".join(_KINDS[kind] for kind in kinds)
        raise TypeError(f"{name} = {value!r:.60} should be {said}")
    return value


MOST = 2**63 - 1
"""Greatest whole number that becomes an int64."""
_KINDS = {int: "a whole number", float: "a number", str: "a text", dict: "an object", NoneType: "null"}


class JsonLines:
    """The one writer of a file of JSON lines; threads may share it.

    A line reaches the operating system in one write, so that a kill of the process loses none; `sync` makes what was
    written durable. Opening repairs a torn tail: a whole object gets its line end, anything else is cut away.

    Attributes:
        removed_bytes: Length of the torn tail that was cut away on opening; 0 for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.removed_bytes = 0
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        created = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if created:
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        elif tail := _tail(path):
            self._repair(tail)

    def _repair(self, tail: bytes) -> None:
        if _parse(tail) is not None:
            self._write(b"\n")
        else:
            self.removed_bytes = len(tail)
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(tail))
        os.fsync(self._file)

    def _write(self, data: bytes) -> None:
        with self._lock:
            start = os.fstat(self._file).st_size
            done = 0
            try:
                while done < len(data):
                    done += os.write(self._file, data[done:])
            except OSError:
                os.ftruncate(self._file, start)  # a full disk leaves no half line behind
                raise

    def append(self, text: str) -> None:
        """Add one line.

        Raises:
            OSError: the disk is full or the file cannot be written; the file is as before.
        """
        self._write(text.encode() + b"\n")

    def sync(self) -> None:
        """Make every line so far durable."""
        os.fsync(self._file)

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1
