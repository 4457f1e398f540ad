import io
import os
import re
from typing import Any

import pytest

from maxtrain.monitor.heldout import HeldOutResult, Score
from maxtrain.monitor.progress import Progress
from maxtrain.monitor.units import human_bytes, human_count, human_seconds


class Stream(io.StringIO):
    """A text stream that may claim to be a terminal and counts its writes."""

    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self.terminal = terminal
        self.codec = encoding
        self.writes: list[str] = []

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.codec

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.writes.append(text)
        text.encode(self.codec)
        return super().write(text)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def run(stream: Stream, make_line: Any, steps: int, seconds: float = 1.0, every: int = 1) -> Progress:
    clock = Clock()
    progress = Progress(100, 51_200, every=every, stream=stream, clock=clock)
    for step in range(1, steps + 1):
        clock.now += seconds
        progress.update(make_line(step))
    return progress


def screen(text: str) -> list[str]:
    """What a terminal shows after the text, line by line."""
    lines, column = [""], 0
    for piece in re.split(r"(\r|\n|\x1b\[K)", text):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + piece + lines[-1][column + len(piece) :]
            column += len(piece)
    return lines


def test_a_log_file_gets_a_line_every_so_many_steps(make_line):
    stream = Stream(terminal=False)
    run(stream, make_line, steps=100, every=30)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["30/100", "60/100", "90/100", "100/100"]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert lines[0] == (
        "step 30/100  loss 0.3000  lr 3.00e-04  grad norm 1.5  tokens 15.4K  5.12K tokens/s  left 1m 10s  "
        "devices 8  MFU 25.0%"
    )


def test_a_skipped_step_always_gets_a_line(make_line):
    stream = Stream(terminal=False)
    progress = Progress(100, 51_200, every=50, stream=stream)
    progress.update(make_line(3, skipped=True, loss=float("nan")))
    assert "step 3/100  loss nan SKIPPED" in stream.getvalue()


def test_a_terminal_has_one_line_that_changes(make_line):
    stream = Stream(terminal=True)
    progress = run(stream, make_line, steps=50)
    progress.close()
    progress.close()
    assert stream.getvalue().count("\n") == 1
    shown = screen(stream.getvalue())
    assert len(shown) == 2
    assert re.match(r"████████········  50%  step 50/100  loss", shown[0])
    assert all(write.startswith("\r") and write.endswith("\x1b[K") for write in stream.writes[:-1])


def test_a_terminal_is_redrawn_at_most_ten_times_a_second(make_line):
    stream = Stream(terminal=True)
    run(stream, make_line, steps=99, seconds=0.01)
    assert len(stream.writes) <= 11


def test_the_last_step_is_always_drawn(make_line):
    stream = Stream(terminal=True)
    run(stream, make_line, steps=100, seconds=0.001)
    assert "step 100/100" in stream.writes[-1]


def test_messages_stay_above_the_line(make_line):
    stream = Stream(terminal=True)
    progress = run(stream, make_line, steps=10)
    score = Score(loss=3.25, bits_per_byte=1.5, tokens=10, bytes=20)
    progress.evaluation(HeldOutResult(10, 5120, {"code": score}, score))
    progress.saved(10, seconds=0.25)
    shown = screen(stream.getvalue())
    assert shown[0] == "step 10  held-out loss 3.2500  1.5000 bits/byte  (code 3.2500)"
    assert shown[1] == "step 10  saved in 0.2s"
    assert "step 10/100" in shown[2]


@pytest.mark.parametrize("width", [8, 20, 40, 60, 80, 120, 200])
def test_a_line_never_wraps(make_line, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Stream(terminal=True)
    run(stream, make_line, steps=20)
    assert all(len(line) < width for line in screen(stream.getvalue()))


def test_a_dumb_terminal_gets_plain_lines(make_line, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream(terminal=True)
    run(stream, make_line, steps=3)
    assert stream.getvalue().count("\n") == 3
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_ascii_stream_gets_ascii(make_line, is_terminal):
    stream = Stream(terminal=is_terminal, encoding="ascii")
    progress = Progress(100, 51_200, every=1, stream=stream)
    progress.update(make_line(50, mfu=None))
    progress.close()
    assert "MFU -" in stream.getvalue()
    assert ("[#######.......]" in stream.getvalue()) == is_terminal


def test_time_left_follows_the_recent_speed(make_line):
    clock = Clock()
    progress = Progress(1000, 512_000, every=1, stream=Stream(terminal=False), clock=clock)
    assert progress.seconds_left() is None
    clock.now = 60.0  # the first step compiles: it is no measure
    progress.update(make_line(1))
    assert progress.seconds_left() is None
    for step in range(2, 202):
        clock.now += 5.0 if step <= 100 else 2.0
        progress.update(make_line(step))
    assert progress.seconds_left() == pytest.approx(799 * 2.0)


def test_a_pipe_without_a_terminal_is_seen_as_such(make_line, tmp_path):
    with (tmp_path / "log").open("w+") as file:
        assert not os.isatty(file.fileno())
        Progress(1, 512, every=1, stream=file).update(make_line(1))
        file.seek(0)
        assert file.read().startswith("step 1/1  loss 9.0000")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (7, "7"), (0.5, "0.5"), (999, "999"), (999.7, "1.00K"), (1000, "1.00K"), (1234567, "1.23M")],
        *[(12_345, "12.3K"), (999_499, "999K"), (999_500, "1.00M"), (1e10, "10.0B"), (1.5e15, "1500T")],
    ],
)
def test_human_count(value, text):
    assert human_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.25, "0.2s"), (9.96, "10s"), (59.6, "1m 00s"), (65, "1m 05s"), (3599.7, "1h 00m"), (3725, "1h 02m")],
        *[(86_399, "1d 00h"), (200_000, "2d 08h"), (float("inf"), "–")],
    ],
)
def test_human_seconds(value, text):
    assert human_seconds(value) == text


def test_human_bytes():
    assert [human_bytes(value) for value in (5, 2048, 3 * 2**30, 2**42)] == ["5 B", "2.0 KiB", "3.0 GiB", "4.0 TiB"]
