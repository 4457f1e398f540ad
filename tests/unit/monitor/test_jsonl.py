import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from maxtrain.core.errors import DataError
from maxtrain.monitor.jsonl import JsonLines, last_line, read_json_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines.jsonl"


def test_lines_are_appended_in_order_across_openings(path):
    for number in (1, 2):
        lines = JsonLines(path)
        lines.append(f'{{"n":{number}}}')
        lines.close()
    assert path.read_text() == '{"n":1}\n{"n":2}\n'


@pytest.mark.parametrize("tail", [b'{"n":', b'{"t":"\xe6', b"\x00\x00\x00\x00", b"7", b'{"n":3}{'])
def test_a_torn_tail_is_ignored_and_cut_away_on_opening(path, tail):
    path.write_bytes(b'{"n":1}\n' + tail)
    assert list(read_json_lines(path, dict)) == [{"n": 1}]
    lines = JsonLines(path)
    assert lines.removed_bytes == len(tail)
    lines.append('{"n":2}')
    lines.close()
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n'


def test_every_cut_of_a_file_leaves_its_whole_lines(path):
    whole = '{"n":1,"t":"数学"}\n{"n":2,"t":"code"}\n'.encode()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        expected = [{"n": 1, "t": "数学"}, {"n": 2, "t": "code"}][
            : sum(cut >= end for end in (whole.index(b"\n"), len(whole) - 1))
        ]
        assert list(read_json_lines(path, dict)) == expected
        JsonLines(path).close()
        assert list(read_json_lines(path, dict)) == expected
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(expected)])


def test_a_whole_object_without_its_line_end_is_kept(path):
    path.write_bytes(b'{"n":1}\n{"n":2}')
    lines = JsonLines(path)
    assert lines.removed_bytes == 0
    lines.close()
    assert path.read_bytes() == b'{"n":1}\n{"n":2}\n'


def test_damage_before_the_tail_is_told_with_its_line(path):
    path.write_bytes(b'{"n":1}\n{"n":\n{"n":3}\n')
    with pytest.raises(DataError, match=r"lines\.jsonl line 2 is not a JSON object"):
        list(read_json_lines(path, dict))


def test_a_failed_write_leaves_no_half_line(path, monkeypatch):
    lines = JsonLines(path)
    lines.append('{"n":1}')
    real = os.write

    def full(descriptor, data):
        if len(data) > 4:
            return real(descriptor, data[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        lines.append('{"n":2}')
    monkeypatch.undo()
    assert path.read_bytes() == b'{"n":1}\n'
    lines.append('{"n":3}')
    lines.close()
    assert list(read_json_lines(path, dict)) == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize("length", [1, 65_520, 65_536, 200_000])
def test_last_line_of_a_long_file(path, length):
    assert last_line(path) is None
    path.write_text('{"n":1}\n' + '{"n":2,"t":"' + "x" * length + '"}\n' + '{"torn')
    line = last_line(path)
    assert line is not None
    assert line["n"] == 2


def test_threads_do_not_mix_their_lines(path, monkeypatch):
    lines = JsonLines(path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))  # many writes a line
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: lines.append(f'{{"n":{number}}}'), range(200)))
    monkeypatch.undo()
    lines.close()
    assert sorted(line["n"] for line in read_json_lines(path, dict)) == list(range(200))
