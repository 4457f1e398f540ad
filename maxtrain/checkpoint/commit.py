"""The commit record: every file of a step with its size and SHA-256. A step without one does not exist.

No module on the way here imports JAX, so that a run can be checked where JAX is not installed.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from maxtrain.checkpoint.layout import COMMIT, FORMAT_VERSION, MANIFEST, step_name
from maxtrain.core.errors import CheckpointError
from maxtrain.core.files import fsync_directory, sha256_bytes, sha256_file, write_atomic

_HASH_THREADS = min(8, os.cpu_count() or 1)


class FileRecord(NamedTuple):
    """One file of a step."""

    path: str
    """Relative to the step's directory, with `/`."""
    size: int
    """Bytes."""
    sha256: str
    """Hex."""


class Commit(NamedTuple):
    """A parsed commit record."""

    step: int
    files: tuple[FileRecord, ...]
    sha256: str
    """Of the record itself."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and without blanks, so that equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _relative_files(directory: Path) -> list[str]:
    paths = [Path(root, name) for root, _, names in os.walk(directory) for name in names]
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def _seal(path: Path, name: str) -> FileRecord:
    """Make one file durable, then hash what can be read back of it."""
    with (path / name).open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(name, file.tell(), digest)


def seal_files(directory: Path, names: Iterable[str] | None = None, *, skip: Collection[str] = ()) -> list[FileRecord]:
    """Fsync and hash files of a directory tree: the named ones, else all but the commit record and those to skip.

    Raises:
        OSError: a file cannot be read or synced.
    """
    if names is None:
        names = [name for name in _relative_files(directory) if name != COMMIT and name not in skip]
    with ThreadPoolExecutor(_HASH_THREADS, "checkpoint-hash") as pool:
        return list(pool.map(lambda name: _seal(directory, name), names))


def write_commit(directory: Path, step: int, files: Sequence[FileRecord]) -> Commit:
    """Write the commit record of sealed files and make every directory of the step durable.

    Raises:
        CheckpointError: the files on disk are not the sealed ones.
        OSError: the record cannot be written.
    """
    found = [(name, (directory / name).stat().st_size) for name in _relative_files(directory) if name != COMMIT]
    if found != [(file.path, file.size) for file in sorted(files)]:
        raise CheckpointError(f"{directory}: its files changed while step {step} was being committed; save it again")
    for root, _, _ in os.walk(directory):
        fsync_directory(root)
    body = {"format_version": FORMAT_VERSION, "step": step, "files": [file._asdict() for file in sorted(files)]}
    checksum = sha256_bytes(canonical_json(body))
    write_atomic(directory / COMMIT, canonical_json(body | {"checksum": checksum}))
    return Commit(step, tuple(sorted(files)), checksum)


def read_commit(directory: Path) -> Commit:
    """Read a step's commit record; see `parse_commit`.

    Raises:
        CheckpointError: it is missing, unreadable, damaged, of another version, or of another step.
    """
    try:
        data = (directory / COMMIT).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{directory.name}: has no {COMMIT}: its save never finished") from None
    except OSError as error:
        raise CheckpointError(f"{directory.name}: {COMMIT} cannot be read: {error.strerror}") from None
    return parse_commit(data, directory.name)


def parse_commit(data: bytes, name: str) -> Commit:
    """Parse a commit record; any changed bit of it is noticed.

    Args:
        data: content of the file.
        name: the directory that it lies in.

    Raises:
        CheckpointError: it is damaged, of another version, or of another step.
    """
    try:
        record = json.loads(data)
        checksum = record.pop("checksum")
        if canonical_json(record | {"checksum": checksum}) != data or sha256_bytes(canonical_json(record)) != checksum:
            raise ValueError
        version, step = record["format_version"], record["step"]
        files = tuple(FileRecord(**file) for file in record["files"]) if version == FORMAT_VERSION else ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{name}: {COMMIT} is damaged") from None
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{name}: has format {version}, this code reads {FORMAT_VERSION}")
    if name != step_name(step):
        raise CheckpointError(f"{name}: its {COMMIT} belongs to {step_name(step)}")
    return Commit(step, files, checksum)


def _problem(directory: Path, file: FileRecord, full: bool) -> str | None:
    path = directory / file.path
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"{file.path} has {size} bytes, committed were {file.size}"
        if full and sha256_file(path) != file.sha256:
            return f"{file.path} has another SHA-256 than when it was committed"
    except FileNotFoundError:
        return f"{file.path} is missing"
    except (OSError, EOFError) as error:
        return f"{file.path} cannot be read: {error}"
    return None


def verify_step(path: Path, *, full: bool = True, share: tuple[int, int] = (0, 1)) -> Commit:
    """Hold a step's files against its commit record.

    Args:
        path: the step's directory.
        full: check hashes; else only presence and sizes.
        share: (index, count): check every count-th file from the index-th on, so that processes can divide the work.

    Raises:
        CheckpointError: one line naming the step, the first bad file and how many are bad.
    """
    path = Path(path)
    commit = read_commit(path)
    mine = commit.files[share[0] :: share[1]]
    with ThreadPoolExecutor(_HASH_THREADS, "checkpoint-verify") as pool:
        problems = [problem for problem in pool.map(lambda file: _problem(path, file, full), mine) if problem]
    if problems:
        more = f" ({len(problems)} bad files of {len(mine)})" if len(problems) > 1 else ""
        raise CheckpointError(f"{path.name}: {problems[0]}{more}")
    return commit


def read_manifest(directory: Path) -> dict[str, Any]:
    """A step's manifest: `record` as given by the run, and the table of leaves. Verify the step before.

    Raises:
        CheckpointError: it is missing or no JSON object.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if not isinstance(manifest["record"], dict) or not isinstance(manifest["leaves"], list):
            raise ValueError
    except OSError as error:
        raise CheckpointError(f"{directory.name}: {MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{directory.name}: {MANIFEST} is damaged") from None
    return manifest


def read_verified_manifest(directory: Path, commit: Commit) -> dict[str, Any]:
    """A step's manifest, held against its commit record alone; cheap where the arrays are not wanted.

    Raises:
        CheckpointError: it is missing, or not the one that was committed.
    """
    for file in commit.files:
        if file.path == MANIFEST and (problem := _problem(directory, file, full=True)):
            raise CheckpointError(f"{directory.name}: {problem}")
    return read_manifest(directory)
