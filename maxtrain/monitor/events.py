"""events.jsonl: what happened to a run and why, one durable line an event."""

from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from maxtrain.monitor.jsonl import JsonLines, need, read_json_lines, utc_now
from maxtrain.monitor.schema import encode

EVENT_KINDS: dict[str, str] = {
    "start": "An attempt began; fields tell the model's size, devices, mesh and versions.",
    "stop": "An attempt ended in order; `reason` tells why.",
    "data": "What each stage reads of each domain: shares, epochs, padding, splits.",
    "skip": "A step was skipped; `reason` tells why.",
    "save": "A checkpoint is committed.",
    "save_failed": "A checkpoint could not be written.",
    "restore": "State was read from a checkpoint.",
    "fallback": "A checkpoint was passed over for an older one; `reason` tells why.",
    "evaluate": "Held-out text was evaluated.",
    "repair": "A torn line at the end of a file was cut away.",
    "warning": "Something a person should read.",
}
"""Every kind of event and its meaning."""


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        time: ISO 8601 in UTC.
        attempt: Number of the start of the run that wrote it.
        kind: One of EVENT_KINDS.
        step: Step that it concerns, or None.
        fields: Whatever else belongs to it, as JSON values; non-finite floats are texts.
    """

    time: str
    attempt: int
    kind: str
    step: int | None
    fields: dict[str, Any] = field(default_factory=dict)


class EventLog:
    """Appends the events of one attempt; each is durable when `write` returns."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._lines = JsonLines(path)
        self._attempt = attempt
        if self._lines.removed_bytes:
            self.write("repair", file=path.name, removed_bytes=self._lines.removed_bytes)

    def write(self, kind: str, step: int | None = None, /, **fields: Any) -> None:
        """Append one event.

        Raises:
            ValueError: the kind is not in EVENT_KINDS.
            TypeError: a field is no JSON value.
            OSError: the file cannot be written; it is as before.
        """
        if kind not in EVENT_KINDS:
            raise ValueError(f"event kind {kind!r} is not one of {sorted(EVENT_KINDS)}")
        line = {"time": utc_now(), "attempt": self._attempt, "kind": kind, "step": step, "fields": fields}
        self._lines.append(encode(line))
        self._lines.sync()

    def close(self) -> None:
        """Sync and close."""
        self._lines.close()


def read_events(path: Path) -> list[Event]:
    """Every event in order; an absent file has none.

    Raises:
        DataError: a line is no event.
    """
    if not path.is_file():
        return []
    return list(read_json_lines(path, _event))


def _event(line: dict[str, Any]) -> Event:
    line = {"step": None, "fields": {}, **line}
    return Event(
        need(line, "time", str),
        need(line, "attempt", int),
        need(line, "kind", str),
        need(line, "step", int, NoneType),
        need(line, "fields", dict),
    )
