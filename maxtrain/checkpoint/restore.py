"""Finding the step to restore, reading it onto any mesh, and proving that it is what was saved."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maxtrain.checkpoint.arrays import check_abstract, read_arrays
from maxtrain.checkpoint.commit import read_manifest, verify_step
from maxtrain.checkpoint.digest import finish_digest, start_digest
from maxtrain.checkpoint.health import Health, Verdict, first_verdict
from maxtrain.checkpoint.layout import STATE, quarantine_note, step_directories, step_name
from maxtrain.checkpoint.ledger import read_health
from maxtrain.core.errors import CheckpointError
from maxtrain.core.trees import from_paths
from maxtrain.parallel.agreement import ProcessGroup

DEFAULT_TIMEOUT_SECONDS = 1800.0
"""How long processes wait for each other; the slowest hashes its share of a step in that time."""

_log = logging.getLogger(__name__)


class Passed(NamedTuple):
    """A step that was passed over."""

    step: int
    reason: str
    damaged: bool
    """Its content is wrong; else it is whole but unhealthy."""


class Restored(NamedTuple):
    """What a search came to."""

    step: int
    state: Any
    record: dict[str, Any]


def checkpoint_group(timeout_seconds: float) -> ProcessGroup:
    """All processes, for handling checkpoints; every process must call it."""
    return ProcessGroup(timeout_seconds, "a checkpoint was handled", CheckpointError)


def search(
    directory: Path, abstract: Any, processes: ProcessGroup, *, partial: bool
) -> tuple[Restored | None, list[Passed]]:
    """Restore the newest verified step that is not unhealthy; every process must call it.

    Returns:
        What was restored, or None, and the newer steps passed over, newest first.

    Raises:
        CheckpointError: a good step is not of this model.
    """
    passed: list[Passed] = []
    for step, verdict in _candidates(directory, processes):
        path = directory / step_name(step)
        try:
            verify_together(path, processes)
            manifest = read_manifest(path)
        except CheckpointError as error:
            passed.append(Passed(step, str(error), True))
            continue
        verdict = verdict or first_verdict(manifest["record"])
        if verdict.health == Health.UNHEALTHY:
            passed.append(Passed(step, f"{path.name}: is unhealthy: {verdict.reason or 'no reason given'}", False))
            continue
        check_abstract(abstract, manifest["leaves"], step, partial=partial)
        state, wrong = _read(path, abstract, manifest["leaves"])
        if wrong:
            passed.append(Passed(step, f"{path.name}: {wrong}", True))
            continue
        return Restored(step, state, manifest["record"]), passed
    return None, passed


def restore_step(directory: Path, abstract: Any, step: int, processes: ProcessGroup, *, partial: bool) -> Restored:
    """Restore one step whatever its verdict; every process must call it.

    Raises:
        CheckpointError: it does not exist, is not verified, or is not of this model.
    """
    steps = [found for found, _ in _candidates(directory, processes)]
    if step not in steps:
        known = ", ".join(map(str, sorted(steps))) or "none"
        raise CheckpointError(f"{directory}: step {step} was never committed or is gone; there are: {known}")
    path = directory / step_name(step)
    verify_together(path, processes)
    manifest = read_manifest(path)
    check_abstract(abstract, manifest["leaves"], step, partial=partial)
    state, wrong = _read(path, abstract, manifest["leaves"])
    if wrong:
        raise CheckpointError(f"{path.name}: {wrong}")
    return Restored(step, state, manifest["record"])


def restore_subtree(
    directory: Path,
    abstract: Any,
    *,
    step: int | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> tuple[int, Any, dict[str, Any]]:
    """Restore a part of the state for reading, such as `{"params": …, "expert_bias": …}`; nothing is locked or moved.

    Every process must call it.

    Args:
        directory: the `checkpoints` directory.
        abstract: tree of leaves with shape, dtype and sharding; each path must be one of the saved state's.
        step: the step; None for the newest verified one that is not unhealthy.
        timeout_seconds: how long processes wait for each other.

    Returns:
        (step, tree of arrays, record).

    Raises:
        CheckpointError: there is no such step, or it lacks a leaf of that shape and dtype.
        ValueError: a leaf has no sharding.
    """
    processes = checkpoint_group(timeout_seconds)
    directory = Path(directory).absolute()  # Orbax reads no relative path
    if step is not None:
        return tuple(restore_step(directory, abstract, step, processes, partial=True))
    found, passed = search(directory, abstract, processes, partial=True)
    for item in passed:
        _log.warning("passed over: %s", item.reason)
    if found is None:
        raise nothing_left(directory, passed)
    return tuple(found)


def nothing_left(directory: Path, passed: Sequence[Passed]) -> CheckpointError:
    """The error of a search that found nothing."""
    reasons = "; ".join(item.reason for item in passed[:3]) or "none is left"
    more = f"; and {len(passed) - 3} more" if len(passed) > 3 else ""
    more += f"; {note}" if (note := quarantine_note(directory)) else ""
    return CheckpointError(
        f"{directory}: no verified step is left that is not unhealthy ({reasons}{more}); "
        "bring back a copy of a good step, or start in another run directory"
    )


def verify_together(path: Path, processes: ProcessGroup) -> None:
    """Verify a step, each process a share of its files.

    Raises:
        CheckpointError: on all processes, what the first of them found.
    """
    error = None
    try:
        verify_step(path, share=(processes.index, processes.count))
    except CheckpointError as problem:
        error = str(problem)
    processes.agree(error)


def _candidates(directory: Path, processes: ProcessGroup) -> list[tuple[int, Verdict | None]]:
    """Steps on disk, newest first, with their last verdicts, as process 0 sees them."""
    message = ""
    if processes.is_main:
        health = read_health(directory)
        message = json.dumps([(step, health.get(step)) for step in sorted(step_directories(directory), reverse=True)])
    found = json.loads(processes.from_main(message))
    return [(step, Verdict(Health(verdict[0]), verdict[1]) if verdict else None) for step, verdict in found]


def _read(path: Path, abstract: Any, table: Sequence[Mapping[str, Any]]) -> tuple[Any, str | None]:
    """The restored tree, and what is wrong with it by its digests."""
    leaves = read_arrays(path / STATE, abstract)
    saved = {entry["path"]: entry["digest"] for entry in table}
    digests = finish_digest(start_digest(list(leaves.items())))
    wrong = [name for name, digest in digests.items() if digest != saved[name]]
    if wrong:
        return None, f"{wrong[0]} has another digest than when it was saved ({len(wrong)} of {len(digests)} leaves)"
    return from_paths(abstract, leaves), None
