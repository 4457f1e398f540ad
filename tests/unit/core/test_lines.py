import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from maxtrain.core import lines
from maxtrain.core.errors import DataError

TEXT = "\n".join(f"line {number} 你好" for number in range(5000)).encode()


def compressed(data, suffix):
    if suffix == ".gz":
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if suffix == ".zst" else data


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_come_out_whole_across_reads_and_frames(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(lines, "_READ_BYTES", 1000)
    path = tmp_path / f"a.jsonl{suffix}"
    half = len(TEXT) // 2
    path.write_bytes(compressed(TEXT[:half], suffix) + compressed(TEXT[half:], suffix))
    read: list[bytes] = []
    assert list(lines.iterate_lines(path, read.append)) == TEXT.split(b"\n")
    assert b"".join(read) == path.read_bytes()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_and_damaged_data_are_told_apart_in_one_line(tmp_path, suffix):
    data = compressed(TEXT, suffix)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"ends early.*truncated") as error:
        list(lines.iterate_lines(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    path.write_bytes(b"no compressed data at all")
    with pytest.raises(DataError, match="damaged"):
        list(lines.iterate_lines(path))


@given(st.lists(st.binary(max_size=5)), st.integers(1, 4))
def test_any_bytes_split_as_by_hand(tmp_path_factory, parts, size):
    path = tmp_path_factory.mktemp("lines") / "a"
    data = b"\n".join(parts)
    path.write_bytes(data)
    expected = data.split(b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_READ_BYTES", size)
        assert list(lines.iterate_lines(path)) == (expected if expected[-1] else expected[:-1])
