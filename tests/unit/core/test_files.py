import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from maxtrain.core import files
from maxtrain.core.errors import BusyError, UserError


def test_paths_and_urls_are_told_apart_and_joined():
    assert not files.is_remote("a/b")
    assert not files.is_remote("file:///a/b")
    assert files.is_remote("s3://bucket/a")
    assert files.is_remote("gs://bucket/a")
    assert files.join("s3://bucket/a/", "b", "c") == "s3://bucket/a/b/c"
    assert files.join("a", "b", "c") == "a/b/c"
    assert files.local_path("file:///a%20b/c") == Path("/a b/c")
    with pytest.raises(UserError, match=r"ftp://.*unknown scheme.*s3://"):
        files.is_remote("ftp://host/a")
    with pytest.raises(UserError, match="local path is needed"):
        files.local_path("s3://bucket/a")
    with pytest.raises(UserError, match="names no bucket"):
        files.read_bytes("s3:///a")


def test_ranges_are_exact_or_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    assert files.read_range(path, 10, 5) == bytes(range(10, 15))
    assert files.read_ranges(path, [(0, 1), (99, 1), (50, 0)]) == [b"\0", b"c", b""]
    assert files.read_bytes(path.as_uri()) == bytes(range(100))
    assert files.has_size(path, 100)
    assert not files.has_size(path, 99)
    with pytest.raises(EOFError, match="ends before byte 101"):
        files.read_range(path, 99, 2)
    with pytest.raises(FileNotFoundError):
        files.read_range(tmp_path / "none", 0, 1)


def test_chunks_and_hash_cover_the_file(tmp_path):
    path = tmp_path / "a"
    data = os.urandom(10_000)
    path.write_bytes(data)
    assert b"".join(files.iterate_chunks(path, chunk=4096)) == data
    assert [len(part) for part in files.iterate_chunks(path, chunk=4096)] == [4096, 4096, 1808]
    assert files.sha256_file(path) == files.sha256_bytes(data) == hashlib.sha256(data).hexdigest()


def test_atomic_write_replaces_whole_and_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a"
    files.write_atomic(path, b"old")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_append_closes_a_torn_line(tmp_path):
    path = tmp_path / "a.jsonl"
    files.append_line(path, "one")
    with path.open("ab") as file:
        file.write(b'{"torn')
    files.append_line(path, "two\n")
    assert path.read_text() == 'one\n{"torn\ntwo\n'


def test_second_holder_is_refused_with_the_first_ones_id(tmp_path):
    script = "import sys; from maxtrain.core.files import DirectoryLock\nwith DirectoryLock(sys.argv[1]): print('held')"
    with files.DirectoryLock(tmp_path):
        with pytest.raises(BusyError, match=f"held by process {os.getpid()}"), files.DirectoryLock(tmp_path):
            pass
        other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
        assert other.returncode != 0
        assert f"held by process {os.getpid()}" in other.stderr
    with files.DirectoryLock(tmp_path):
        pass


def test_lock_ends_with_its_process(tmp_path):
    script = (
        "import os, sys; from maxtrain.core.files import DirectoryLock\n"
        "DirectoryLock(sys.argv[1]).__enter__(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == -9
    with files.DirectoryLock(tmp_path):
        pass


def test_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("MAXTRAIN_CACHE", raising=False)
    assert files.user_cache_directory() == Path("/x/maxtrain")
    monkeypatch.setenv("MAXTRAIN_CACHE", "/y")
    assert files.user_cache_directory() == Path("/y")
    monkeypatch.delenv("MAXTRAIN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.user_cache_directory() == Path.home() / ".cache" / "maxtrain"
