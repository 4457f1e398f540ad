"""The append-only ledgers of a `checkpoints` directory: every commit ever made, and verdicts on steps."""

import json
from pathlib import Path
from typing import Any

from maxtrain.checkpoint.health import Verdict
from maxtrain.checkpoint.layout import COMMITS, HEALTH, QUARANTINE, step_directories
from maxtrain.core.files import append_line


def _lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a ledger; a torn or damaged line is passed over, as the state on disk decides."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def append(path: Path, **fields: Any) -> None:
    """Append one durable line of JSON."""
    append_line(path, json.dumps(fields, ensure_ascii=False))


def read_health(directory: Path) -> dict[int, Verdict]:
    """The last verdict on each step."""
    verdicts = [(record["step"], Verdict.parse(record)) for record in _lines(directory / HEALTH)]
    return {step: verdict for step, verdict in verdicts if verdict is not None}


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
