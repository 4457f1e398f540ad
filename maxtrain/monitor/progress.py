"""The progress line: one updating line with a bar on a terminal, plain lines in a log file."""

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from maxtrain.monitor.heldout import HeldOutResult
from maxtrain.monitor.units import human_count, human_seconds

_REDRAW_SECONDS = 0.1
_MEAN_STEPS = 64
_BAR_CELLS = 16
_MIN_BAR_CELLS = 8


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def _speaks_unicode(stream: TextIO) -> bool:
    try:
        "█▏·".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _bar(done: float, cells: int, unicode: bool) -> str:
    """A bar of `cells` characters, filled to the share `done` (0 to 1)."""
    if not unicode:
        return "[" + "#" * int(done * cells) + "." * (cells - int(done * cells)) + "]"
    eighths = int(done * cells * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else ""
    return ("█" * (eighths // 8) + partial).ljust(cells, "·")


class Progress:
    """Shows how a run goes.

    On a terminal one line is redrawn in place, at most ten times a second and in a single write, so it does not
    flicker; lines such as evaluations appear above it. Elsewhere every `every`-th step gets a line of its own.
    Threads may share it.
    """

    def __init__(
        self,
        num_steps: int,
        num_tokens: int,
        *,
        every: int,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up; nothing is written before the first update.

        Args:
            num_steps: Steps of the whole run.
            num_tokens: Tokens of the whole run, padding included.
            every: Steps between lines where the stream is no terminal.
            stream: Where to write, as a rule `sys.stderr`.
            clock: Seconds from any start.
        """
        self._num_steps = num_steps
        self._num_tokens = num_tokens
        self._every = every
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._terminal = _is_terminal(stream)
        self._unicode = _speaks_unicode(stream)
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MEAN_STEPS + 1)
        self._drawn_at = float("-inf")
        self._current = ""

    def update(self, line: Mapping[str, Any]) -> None:
        """Take a line of the metrics schema."""
        now = self._clock()
        self._marks.append((now, line["tokens_seen"]))
        step, last = line["step"], line["step"] >= self._num_steps
        with self._lock:
            if self._terminal:
                self._current = self._fit(self._parts(line), step / self._num_steps)
                if last or now - self._drawn_at >= _REDRAW_SECONDS:
                    self._draw(now)
            elif last or step % self._every == 0 or line["skipped"]:
                self._stream.write("  ".join(self._parts(line)) + "\n")
                self._stream.flush()

    def seconds_left(self) -> float | None:
        """Time to the end by the mean speed of the last steps, stalls included; None before two updates."""
        if len(self._marks) < 2:
            return None
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        if end <= start or after <= before:
            return None
        return (self._num_tokens - after) * (end - start) / (after - before)

    def message(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            if self._terminal and self._current:
                self._stream.write(f"\r\x1b[K{text}\n{self._current}")
            else:
                self._stream.write(text + "\n")
            self._stream.flush()

    def evaluation(self, result: HeldOutResult) -> None:
        """Write the held-out result: the loss over all domains, then every domain's."""
        per_byte = result.total.bits_per_byte
        text = f"step {result.step}  held-out loss {result.total.loss:.4f}"
        if per_byte is not None:
            text += f"  {per_byte:.4f} bits/byte"
        domains = ", ".join(f"{name} {score.loss:.4f}" for name, score in result.by_domain.items())
        self.message(f"{text}  ({domains})" if domains else text)

    def saved(self, step: int, seconds: float) -> None:
        """Write that a checkpoint is committed.

        Args:
            step: The step that it holds.
            seconds: From the start of the save to its commit.
        """
        self.message(f"step {step}  saved in {human_seconds(seconds)}")

    def close(self) -> None:
        """Draw the last state and end the line; a second call does nothing."""
        with self._lock:
            if self._terminal and self._current:
                self._draw(self._clock())
                self._stream.write("\n")
                self._stream.flush()
                self._current = ""

    def _parts(self, line: Mapping[str, Any]) -> list[str]:
        """The fields in the order of their worth; a narrow terminal loses the last ones."""
        left = self.seconds_left()
        parts = [
            f"step {line['step']}/{self._num_steps}",
            f"loss {line['loss']:.4f}" + (" SKIPPED" if line["skipped"] else ""),
            f"lr {line['lr']:.2e}",
            f"grad norm {line['grad_norm']:.3g}",
            f"tokens {human_count(line['tokens_seen'])}",
            f"{human_count(line['tokens_per_second'])} tokens/s",
            f"left {human_seconds(left) if left is not None else '–'}",
            f"devices {line['num_devices']}",
            f"MFU {line['mfu']:.1%}" if line["mfu"] is not None else "MFU –",
        ]
        return parts if self._unicode else [part.replace("–", "-") for part in parts]

    def _fit(self, parts: list[str], done: float) -> str:
        """As many fields as the terminal is wide, and a bar in what is left."""
        width = max(shutil.get_terminal_size().columns - 1, 1)
        kept = parts[0][:width]
        for part in parts[1:]:
            if len(kept) + 2 + len(part) > width:
                break
            kept += f"  {part}"
        cells = min(width - len(kept) - len(" 100%  "), _BAR_CELLS)
        if cells < _MIN_BAR_CELLS:
            return kept
        cells -= 0 if self._unicode else 2
        return f"{_bar(done, cells, self._unicode)} {done:4.0%}  {kept}"

    def _draw(self, now: float) -> None:
        self._drawn_at = now
        self._stream.write(f"\r{self._current}\x1b[K")
        self._stream.flush()
