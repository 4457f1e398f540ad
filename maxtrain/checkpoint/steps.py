"""The steps of a `checkpoints` directory, judged without JAX."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from maxtrain.checkpoint.commit import read_commit, read_manifest, read_verified_manifest, verify_step
from maxtrain.checkpoint.health import Health, Verdict, first_verdict
from maxtrain.checkpoint.layout import step_directories
from maxtrain.checkpoint.ledger import read_health
from maxtrain.core.errors import CheckpointError


class StepInfo(NamedTuple):
    """One step on disk."""

    step: int
    verified: bool
    """Whether its files are those that were committed."""
    reason: str
    """Why it is not verified; else the reason of its verdict, where it has one."""
    record: dict[str, Any] | None
    """What the run saved beside the arrays; None where the step is not verified."""
    health: Health | None
    """By the last verdict; None where the step is not verified."""
    num_bytes: int
    """Bytes on disk by the commit record; 0 where that is unreadable."""
    path: Path


def judge_step(directory: Path, step: int, *, full: bool = True) -> StepInfo:
    """Judge one step of a `checkpoints` directory; see `list_steps`."""
    return _judge(step, step_directories(directory)[step], read_health(directory).get(step), full)


def _judge(step: int, path: Path, verdict: Verdict | None, full: bool) -> StepInfo:
    num_bytes = 0
    try:
        num_bytes = read_commit(path).num_bytes
        commit = verify_step(path, full=full)
        record = (read_manifest(path) if full else read_verified_manifest(path, commit))["record"]
    except CheckpointError as error:
        return StepInfo(step, False, str(error), None, None, num_bytes, path)
    verdict = verdict or first_verdict(record)
    return StepInfo(step, True, verdict.reason, record, verdict.health, num_bytes, path)


def iterate_steps(directory: Path, *, full: bool = True, newest_first: bool = False) -> Iterator[StepInfo]:
    """Judge step after step; see `list_steps`."""
    health = read_health(directory)
    found = sorted(step_directories(directory).items(), reverse=newest_first)
    yield from (_judge(step, path, health.get(step), full) for step, path in found)


def list_steps(directory: Path, *, full: bool = True) -> list[StepInfo]:
    """Judge every step of a `checkpoints` directory, in ascending order; what was never committed is not listed.

    Args:
        directory: the `checkpoints` directory; one that does not exist has no steps.
        full: check hashes; else only presence and sizes.
    """
    return list(iterate_steps(Path(directory), full=full))


def newest_record(directory: Path) -> dict[str, Any] | None:
    """Record of the step that a restore takes, hashes of arrays apart: the newest whole one that is not unhealthy."""
    steps = iterate_steps(directory, full=False, newest_first=True)
    return next((info.record for info in steps if info.record and info.health != Health.UNHEALTHY), None)
