"""Names in a run's `checkpoints` directory.

step_00000012/            a committed step: state/, manifest.json, commit.json
step_00000012.partial/    a step being written, or what a killed save left
quarantine/               what was moved aside, with reasons.jsonl
commits.jsonl             every commit ever made
health.jsonl              verdicts on steps: provisional, healthy or unhealthy; the last of a step counts
"""

import re
from pathlib import Path

from maxtrain.core.errors import UserError

FORMAT_VERSION = 1
STATE = "state"
MANIFEST = "manifest.json"
COMMIT = "commit.json"
COMMITS = "commits.jsonl"
HEALTH = "health.jsonl"
QUARANTINE = "quarantine"
REASONS = "reasons.jsonl"
PARTIAL = ".partial"
REMOVED = ".removed"

_STEP = re.compile(r"step_(\d{8,})")


def step_name(step: int) -> str:
    """Directory name of a step."""
    return f"step_{step:08d}"


def step_directories(directory: Path) -> dict[int, Path]:
    """Directories with the final name of a step, by step in ascending order; partial ones are not among them."""
    if not directory.is_dir():
        return {}
    matches = [(_STEP.fullmatch(path.name), path) for path in directory.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in matches if match and path.is_dir()))


def step_of(path: Path) -> int | None:
    """Step whose directory, or what was left of it, has this name."""
    match = _STEP.match(path.name)
    return int(match[1]) if match else None


def leftovers(directory: Path, suffix: str) -> list[Path]:
    """What killed saves (PARTIAL) or killed removals (REMOVED) left, sorted by name."""
    return sorted(path for path in directory.glob(f"step_*{suffix}") if path.is_dir())


def quarantine_note(directory: Path) -> str:
    """Where what was moved aside lies, for a message about steps that are gone; empty where nothing was."""
    place = directory / QUARANTINE
    return f"what was moved aside, and why, is in {place}" if place.is_dir() else ""


def find_checkpoints(run: Path) -> Path:
    """The `checkpoints` directory of a run directory, or the path itself where it is one.

    Raises:
        UserError: there is none.
    """
    if (run / "checkpoints").is_dir():
        return run / "checkpoints"
    if run.is_dir() and (run.name == "checkpoints" or (run / COMMITS).exists() or step_directories(run)):
        return run
    raise UserError(f"{run}: holds no checkpoints; give a run directory or its checkpoints directory")
