"""The append-only ledgers of a `checkpoints` directory: every commit ever made, and verdicts on steps."""

import functools
import json
import logging
from pathlib import Path
from typing import Any

from maxtrain.checkpoint.health import Verdict
from maxtrain.checkpoint.layout import COMMITS, HEALTH, QUARANTINE, step_directories
from maxtrain.core.files import append_line

_log = logging.getLogger(__name__)


def _verdicts(path: Path) -> list[tuple[int, Verdict]]:
    """The verdicts of a ledger; another line is told and passed over, as the state on disk decides."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        verdict = Verdict.parse(record) if isinstance(record, dict) and type(record.get("step")) is int else None
        if verdict is None:
            _tell(path, number, line)
        else:
            found.append((record["step"], verdict))
    return found


@functools.cache
def _tell(path: Path, number: int, line: bytes) -> None:
    """Once in a process, though the ledger is read again at every save."""
    _log.warning("%s line %d is no verdict on a step (%.60r); it is passed over", path, number, line)


def append(path: Path, **fields: Any) -> None:
    """Append one durable line of JSON."""
    append_line(path, json.dumps(fields, ensure_ascii=False))


def read_health(directory: Path) -> dict[int, Verdict]:
    """The last verdict on each step."""
    return dict(_verdicts(directory / HEALTH))


def append_health(directory: Path, step: int, verdict: Verdict) -> None:
    """Append a verdict on a step; it replaces earlier ones."""
    append(directory / HEALTH, step=step, health=verdict.health, reason=verdict.reason)


def was_ever_committed(directory: Path) -> bool:
    """Whether any step was ever committed here, even if its directory is gone or in quarantine."""
    ledger = directory / COMMITS
    return bool(
        # A damaged ledger still tells that there was a commit.
        (ledger.exists() and ledger.stat().st_size)
        or step_directories(directory)
        or step_directories(directory / QUARANTINE)
    )
