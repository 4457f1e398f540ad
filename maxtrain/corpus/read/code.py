"""Source trees, as a folder or a tar archive: a record for every file that a person wrote in a known language."""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.core.records import RecordError
from maxtrain.corpus.read import languages
from maxtrain.corpus.read.plain import decode_plain
from maxtrain.corpus.read.records import Form, Item
from maxtrain.corpus.read.source import LeftOutError, Reading
from maxtrain.corpus.read.streams import PieceReader

_MOST_HEADER = 2**20
_TAR_FAILURES = (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError, KeyError, AttributeError)


def read_code(reading: Reading) -> Iterator[Item]:
    """A record for every source of a tree; the files that are left out are told by reason.

    Raises:
        UserError: a URL names no tar archive.
    """
    path = reading.source.path
    if ".tar" in path.lower() or path.lower().endswith(".tgz"):
        yield from _tar(reading)
    elif files.is_remote(path):
        raise UserError(f"{path}: a source tree behind a URL is read as a .tar archive; pack it")
    elif not files.local_path(path).is_dir():
        raise UserError(f"{path}: kind code reads a folder or a .tar archive")
    else:
        yield from _folder(reading, files.local_path(path))


@dataclass
class _Tree:
    """What was seen of a tree: the licence of each folder that has one."""

    licences: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def see_licence(self, name: str, data: bytes) -> None:
        """Note a licence file."""
        folder, _, base = name.rpartition("/")
        spdx = languages.licence_of(data.decode("utf-8", "replace"))
        known = self.licences.get(folder)
        if known is None or (known[1] is None and spdx is not None):
            self.licences[folder] = (f"{folder}/{base}".lstrip("/"), spdx)

    def licence_for(self, name: str) -> tuple[str, str | None] | None:
        """The nearest licence file above a file, and its SPDX name."""
        folder = name
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self.licences:
                return self.licences[folder]
        return None


def _folder(reading: Reading, root: Path) -> Iterator[Item]:
    tree = _Tree()
    for folder, subfolders, names in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        for name in sorted(subfolders):
            reason = "link" if Path(folder, name).is_symlink() else languages.reason_of_folder(name)
            if reason is not None:
                reading.next()
                yield reading.bad(reason, f"{prefix}{name}/", left_out=True)
        subfolders[:] = sorted(
            name
            for name in subfolders
            if languages.reason_of_folder(name) is None and not Path(folder, name).is_symlink()
        )
        # Licences first, so that the files beside them know.
        for name in sorted(names, key=lambda name: (not languages.is_licence(name), name)):
            yield from _one_of_folder(reading, tree, Path(folder, name), prefix + name)


def _one_of_folder(reading: Reading, tree: _Tree, path: Path, name: str) -> Iterator[Item]:
    reading.next()
    try:
        if not path.is_file() or path.is_symlink():
            raise LeftOutError("link", name)
        _check_name(reading, name)
        size = path.stat().st_size
        if size > reading.options.max_record_bytes:
            raise RecordError("too_long", f"{size:,} bytes, over read.max_record_bytes")
        data = path.read_bytes()
        if reading.on_read is not None:
            reading.on_read(f"{name}\0{len(data)}\n".encode("utf-8", "surrogateescape"))
            reading.on_read(data)
        yield from _file(reading, tree, name, data)
    except LeftOutError as error:
        yield reading.bad(error.reason, error.detail, left_out=True)
    except RecordError as error:
        yield reading.bad(error.reason, f"{name}: {error.detail}")


def _check_name(reading: Reading, name: str) -> None:
    """Let only names of licences, code and documents through.

    Raises:
        LeftOutError: the file is none.
    """
    base = name.rpartition("/")[2]
    if languages.is_licence(base):
        return
    for folder in name.split("/")[:-1]:
        if reason := languages.reason_of_folder(folder):
            raise LeftOutError(reason, name)
    if reason := languages.reason_of_name(base):
        raise LeftOutError(reason, name)
    language = languages.language_of_file(base)
    if language is None and languages.form_of_document(base) is None:
        raise LeftOutError("not_code", name)
    if reading.options.languages and language not in reading.options.languages:
        raise LeftOutError("language", f"{language or 'prose'}: {name}")


def _file(reading: Reading, tree: _Tree, name: str, data: bytes) -> Iterator[Item]:
    base = name.rpartition("/")[2]
    if languages.is_licence(base):
        tree.see_licence(name, data)
        raise LeftOutError("licence_file", name)
    if b"\0" in data:
        raise LeftOutError("binary", name)
    text = decode_plain(data, None)
    if reason := languages.reason_of_text(text):
        raise LeftOutError(reason, name)
    if not text.strip():
        raise LeftOutError("empty_text", name)
    language = languages.language_of_file(base)
    nearest = tree.licence_for(name)
    spdx = languages.licence_of_source(text) or (nearest[1] if nearest else None)
    form: Form = "code" if language else cast(Form, languages.form_of_document(base))
    yield reading.record(
        text,
        original_id=name,
        origin=f"{reading.source.name.rstrip('/')}/{name}",
        title=name,
        lang=language,
        category="code" if language else None,
        licence=spdx,
        form=form,
        notes={"licence_file": nearest[0]} if nearest else {},
    )


class _Member(tarfile.TarInfo):
    """A member whose header names stay within bounds; tarfile would read as much as a header asks for."""

    def _proc_member(self, archive: tarfile.TarFile) -> "_Member":
        headers = (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        )
        if self.type in headers and self.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _tar(reading: Reading) -> Iterator[Item]:
    tree = _Tree()
    stream = PieceReader(reading.pieces(), keep_errors=True)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                reading.next()
                yield from _one_of_tar(reading, tree, archive, member)
    except _TAR_FAILURES as error:
        raise stream.error or RecordError("damaged_tar", str(error)[:200] or type(error).__name__) from None
    if stream.error is not None:
        raise stream.error


def _one_of_tar(reading: Reading, tree: _Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[Item]:
    # Names are labels only: nothing is ever written where they point to.
    name = member.name.lstrip("/").removeprefix("./")
    if member.isdir():
        reading.number -= 1
        return
    try:
        if not member.isreg():
            raise LeftOutError("link", name)
        _check_name(reading, name)
        if member.size > reading.options.max_record_bytes:
            raise RecordError("too_long", f"{member.size:,} bytes, over read.max_record_bytes")
        content = archive.extractfile(member)
        data = content.read() if content else b""
        if len(data) < member.size:
            raise RecordError("truncated_tar", "the archive ends within it")
        yield from _file(reading, tree, name, data)
    except LeftOutError as error:
        yield reading.bad(error.reason, error.detail, left_out=True)
    except RecordError as error:
        yield reading.bad(error.reason, f"{name}: {error.detail}")
