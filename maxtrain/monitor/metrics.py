"""metrics.jsonl: one line a step, and what a resumed run makes of it."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from maxtrain.monitor.jsonl import JsonLines, last_line, need, read_json_lines, utc_now
from maxtrain.monitor.schema import check_line, check_readable, decode, encode


def next_attempt(*paths: Path) -> int:
    """Number of the coming start of a run, from 1: one more than the newest in metrics.jsonl and events.jsonl.

    Give both files: a start that died before its first step left a line in events.jsonl alone.
    """
    newest = [last_line(path) for path in paths]
    known = [line.get("attempt") for line in newest if line is not None]
    return 1 + max((number for number in known if type(number) is int), default=0)


class MetricsWriter:
    """Appends the lines of one attempt; every line is held against the schema.

    Attributes:
        removed_bytes: Length of the torn line that opening cut away; 0 for none.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self._lines = JsonLines(path)
        self._attempt = attempt
        self.removed_bytes = self._lines.removed_bytes

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append the line of one step.

        Args:
            values: Every field of the schema but `attempt` and `time`, as plain Python values.

        Returns:
            The whole line.

        Raises:
            ValueError: the values do not fit the schema.
            OSError: the file cannot be written; it is as before.
        """
        line = {"attempt": self._attempt, "time": utc_now(), **values}
        check_line(line)
        self._lines.append(encode(line))
        return line

    def flush(self) -> None:
        """Make every line so far durable; call it before a step commits."""
        self._lines.sync()

    def close(self) -> None:
        """Flush and close."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Every line in the order of writing, floats restored; a step that was computed twice appears twice.

    Raises:
        DataError: a line is not of a step.
    """
    return read_json_lines(path, _line)


def _line(line: dict[str, Any]) -> dict[str, Any]:
    for name in ("attempt", "step", "tokens_seen"):
        need(line, name, int)
    decode(line)
    check_readable(line)
    return line


def forget_from(step: int, by_step: dict[int, Any]) -> None:
    """Drop what was written of a step and later ones, as an attempt that begins with this step goes its own way."""
    for later in [written for written in by_step if written >= step]:
        del by_step[later]


def read_metrics(path: Path, fields: Collection[str] | None = None) -> list[dict[str, Any]]:
    """The lines that count, in the order of steps.

    Of each step the last line written counts, and of an attempt only those before the first step of a later one: what
    it computed beyond the checkpoint that the later one began with is of a way that was left.

    Args:
        path: metrics.jsonl; an absent file has no lines.
        fields: Names to keep, to save memory; None for all.
    """
    if not path.is_file():
        return []
    by_step: dict[int, dict[str, Any]] = {}
    attempt = None
    for line in iterate_metrics(path):
        if line["attempt"] != attempt:
            attempt = line["attempt"]
            forget_from(line["step"], by_step)
        by_step[line["step"]] = line if fields is None else {name: line[name] for name in fields if name in line}
    return [by_step[step] for step in sorted(by_step)]
