"""What is moved aside, and what is removed."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from maxtrain.checkpoint.commit import verify_step
from maxtrain.checkpoint.health import Health
from maxtrain.checkpoint.layout import PARTIAL, QUARANTINE, REASONS, REMOVED, leftovers, step_directories, step_of
from maxtrain.checkpoint.ledger import append
from maxtrain.checkpoint.steps import list_steps
from maxtrain.core.errors import CheckpointError
from maxtrain.core.files import fsync_directory

OnEvent = Callable[[str, int | None, dict[str, Any]], None]
"""Called with an event's kind (save, save_failed, restore, fallback or warning), its step and its fields (JSON)."""


def steps_to_remove(
    health: Mapping[int, Health], *, keep: int, keep_every: int | None, protected: Collection[int] = ()
) -> list[int]:
    """Which committed steps retention gives up, ascending.

    Kept are the newest `keep` steps, every multiple of `keep_every`, the newest healthy step, and protected ones. Of
    the provisional steps after the newest healthy one the newest and the oldest are kept: the first to restore, and the
    next to be proven. So a proven step comes about, however soon steps are saved one after another.

    Args:
        health: for each verified step, its health.
        keep: how many of the newest steps stay.
        keep_every: steps of which every multiple stays; None for none.
        protected: steps that stay in any case.
    """
    newest_first = sorted(health, reverse=True)
    newest_healthy = max((step for step in health if health[step] == Health.HEALTHY), default=-1)
    provisional = [step for step in newest_first if health[step] == Health.PROVISIONAL and step > newest_healthy]
    kept = {*newest_first[:keep], newest_healthy, *provisional[:1], *provisional[-1:], *protected}
    if keep_every:
        kept.update(step for step in newest_first if step % keep_every == 0)
    return sorted(set(health) - kept)


def move_aside(path: Path, reason: str) -> Path:
    """Move a step's directory to the quarantine under its own name, numbered if taken, and note why.

    Returns:
        Where it is now.

    Raises:
        OSError: it cannot be moved.
    """
    quarantine = path.parent / QUARANTINE
    quarantine.mkdir(exist_ok=True)
    target, number = quarantine / path.name, 0
    while target.exists():
        number += 1
        target = quarantine / f"{path.name}.{number}"
    path.rename(target)
    fsync_directory(quarantine)
    fsync_directory(path.parent)
    append(quarantine / REASONS, name=target.name, reason=reason)
    return target


def remove_step(path: Path) -> None:
    """Remove a committed step; renamed first, so that a kill in between leaves no half step under its name."""
    doomed = path.with_name(path.name + REMOVED)
    path.rename(doomed)
    fsync_directory(path.parent)
    shutil.rmtree(doomed)


def sweep(directory: Path, on_event: OnEvent) -> None:
    """Clear what killed saves and removals left.

    A partial step goes to the quarantine, where it replaces older partial ones: nothing committed is lost, and a run
    that is killed often does not fill the disk.
    """
    for path in leftovers(directory, REMOVED):
        shutil.rmtree(path)
    for path in leftovers(directory, PARTIAL):
        number = step_of(path)
        for older in sorted((directory / QUARANTINE).glob(f"step_*{PARTIAL}*")):
            shutil.rmtree(older)
            on_event("warning", number, {"removed": str(older), "reason": "a newer unfinished save takes its place"})
        moved = move_aside(path, "its save never finished")
        on_event("warning", number, {"moved_to": str(moved), "reason": "its save never finished"})


def apply_retention(directory: Path, *, committed: Sequence[int], keep: int, keep_every: int | None) -> list[int]:
    """Remove steps that are no longer kept, after a commit and while nothing is in flight.

    Args:
        directory: the `checkpoints` directory.
        committed: the steps that this attempt committed, their hashes taken from what lay on disk; the last one stays.
        keep: see `steps_to_remove`.
        keep_every: see `steps_to_remove`.

    Returns:
        The steps removed. A step that is not verified is neither counted nor removed.
    """
    infos = {info.step: info for info in list_steps(directory, full=False) if info.verified}
    doomed: list[int] = []
    while infos:
        health = {step: info.health for step, info in infos.items() if info.health is not None}
        doomed = steps_to_remove(health, keep=keep, keep_every=keep_every, protected=committed[-1:])
        newest_healthy = max((step for step in health if health[step] == Health.HEALTHY), default=committed[-1])
        if not doomed or newest_healthy in committed or _is_good(infos[newest_healthy].path):
            break
        # Its size is right but its content is not: it must not stand in for an older one that is whole.
        del infos[newest_healthy]
    paths = step_directories(directory)
    for step in doomed:
        remove_step(paths[step])
    return doomed


def _is_good(path: Path) -> bool:
    try:
        verify_step(path)
    except CheckpointError:
        return False
    return True
