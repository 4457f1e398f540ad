"""The checkpoints of one run, for the one process group that writes them."""

import functools
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from maxtrain.checkpoint.arrays import checked_leaves, finish_write, handler, leaf_table, start_write
from maxtrain.checkpoint.commit import FileRecord, read_manifest, seal_files, verify_step, write_commit
from maxtrain.checkpoint.digest import finish_digest, start_digest
from maxtrain.checkpoint.health import Health, Verdict, first_verdict
from maxtrain.checkpoint.housekeeping import OnEvent, apply_retention, move_aside, sweep
from maxtrain.checkpoint.layout import (
    COMMITS,
    FORMAT_VERSION,
    MANIFEST,
    PARTIAL,
    STATE,
    step_directories,
    step_name,
)
from maxtrain.checkpoint.ledger import append, append_health, read_health, was_ever_committed
from maxtrain.checkpoint.restore import DEFAULT_TIMEOUT_SECONDS, checkpoint_group, nothing_left, restore_step, search
from maxtrain.core.errors import CheckpointError, UserError
from maxtrain.core.files import DirectoryLock, fsync_directory, write_atomic
from maxtrain.core.trees import num_bytes

_log = logging.getLogger(__name__)


@dataclass
class _Save:
    """A save on its way; each process has its own."""

    step: int
    record: dict[str, Any]
    table: list[dict[str, Any]]
    num_bytes: int
    digests: dict[str, jax.Array]
    partial: Path
    writer: ocp.PyTreeCheckpointHandler
    futures: list[ocp.future.Future]
    error: Exception | None
    """Why the writing could not even begin."""
    started: float
    stall_seconds: float = 0.0


class CheckpointStore:
    """Saves, verifies, restores and retires the checkpoints of a run. Every process makes every call, in one order.

    Args:
        directory: the run's `checkpoints` directory; created if absent, and held by a kernel lock until `close`.
        keep: newest verified steps that retention keeps, beside the newest healthy one and those that may follow it.
        keep_every: steps of which every multiple is kept; None for none.
        asynchronous: write, hash and commit in a background thread.
        on_event: told of saves, failed saves, restores, fallbacks and warnings as they happen, on process 0, also
            from the background thread.
        timeout_seconds: how long processes wait for each other.

    Raises:
        BusyError: another run holds the directory.
        CheckpointError: it cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        keep_every: int | None = None,
        asynchronous: bool = True,
        on_event: OnEvent | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self.directory = Path(directory).absolute()
        self._keep, self._keep_every, self._asynchronous = keep, keep_every, asynchronous
        self._on_event = on_event
        self._processes = checkpoint_group(timeout_seconds)
        self._lock = ExitStack()
        self._thread: threading.Thread | None = None
        self._failure: UserError | None = None
        self._committed: list[int] = []
        self._on_main(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, step: int, state: Any, record: dict[str, Any]) -> float:
        """Save a state; its arrays may be donated as soon as this returns.

        A save that is on its way is waited for first. What an unfinished save of this step left is moved aside. A
        step that is already committed with equal arrays is left as it is.

        Args:
            step: batches consumed.
            state: pytree of JAX arrays (typed PRNG keys among them).
            record: JSON values that `restore` gives back and `manifest.json` shows; by `finite` goes the first verdict.

        Returns:
            Seconds for which the caller was held up.

        Raises:
            CheckpointError: an earlier save failed, the step is committed with other arrays, or it cannot be written
                (where asynchronous, a later failure is raised by the next call).
            ValueError: a leaf is no JAX array.
            TypeError: the record is not JSON.
        """
        started = time.monotonic()
        self.wait()
        # A snapshot, as the caller may change its record while the save is on its way.
        record = json.loads(json.dumps(record))
        leaves = checked_leaves(state)
        digests = start_digest(leaves)
        try:
            if self._on_main(lambda: self._prepare(step, digests)) == "unchanged":
                return time.monotonic() - started
        except UserError as error:
            self._emit("save_failed", step, reason=str(error))
            raise
        partial = self.directory / (step_name(step) + PARTIAL)
        save = _Save(step, record, leaf_table(leaves), num_bytes(state), digests, partial, handler(), [], None, started)
        try:
            save.futures = start_write(save.writer, partial / STATE, leaves)
        except Exception as error:  # whatever it is, the other processes must hear of it
            save.error = error
        save.stall_seconds = time.monotonic() - started
        self._thread = threading.Thread(target=self._finish, args=(save,), name=f"checkpoint-{step}")
        self._thread.start()
        if not self._asynchronous:
            self.wait()
        return time.monotonic() - started

    def wait(self) -> None:
        """Wait for the save on its way.

        Raises:
            CheckpointError: it failed; told once.
        """
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait for the save on its way and let go of the directory.

        Raises:
            CheckpointError: a save failed and nobody was told.
        """
        try:
            self.wait()
        finally:
            self._lock.close()

    def restore(self, abstract_state: Any, *, step: int | None = None) -> tuple[int, Any, dict[str, Any]] | None:
        """Restore onto the mesh of `abstract_state`, every file verified before and every leaf's digest after.

        Where no step is named, damaged steps go to the quarantine and unhealthy ones newer than the restored one too,
        as the run takes another way from there.

        Args:
            abstract_state: tree of leaves with shape, dtype and sharding (ShapeDtypeStruct).
            step: the step, whatever its verdict; None for the newest verified one that is not unhealthy.

        Returns:
            (step, state, record), or None where nothing was ever committed.

        Raises:
            CheckpointError: nothing that was committed is good, or what is good is not of this model.
            ValueError: a leaf has no sharding.
        """
        self._join()
        if step is not None:
            found = restore_step(self.directory, abstract_state, step, self._processes, partial=False)
        else:
            result, passed = search(self.directory, abstract_state, self._processes, partial=False)
            for item in passed:
                if item.damaged or result is not None:
                    self._on_main(functools.partial(self._move_step, item.step, item.reason, "fallback"))
                else:
                    self._emit("fallback", item.step, reason=item.reason)
            if result is None:
                if not passed and not self._on_main(lambda: "yes" if was_ever_committed(self.directory) else ""):
                    return None
                raise nothing_left(self.directory, passed)
            found = result
        self._emit("restore", found.step, passed_over=[] if step is not None else [item.step for item in passed])
        return tuple(found)

    def judge(self, verdict: Callable[[int], Verdict]) -> bool:
        """Append the verdicts on provisional steps that are no longer provisional; process 0 does it, and none waits.

        Nothing is done while a save is on its way, whose first verdict and retention must not come between. A verdict
        that cannot be written is a warning: the step stays provisional.

        Args:
            verdict: what is thought of a step now.

        Returns:
            Whether it was done.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._processes.is_main:
            try:
                steps = step_directories(self.directory)
                for step, known in read_health(self.directory).items():
                    if step in steps and known.health == Health.PROVISIONAL:
                        found = verdict(step)
                        if found.health != Health.PROVISIONAL:
                            append_health(self.directory, step, found)
            except OSError as error:
                self._emit("warning", None, reason=f"verdicts on checkpoints cannot be written: {_reason(error)}")
        return True

    def quarantine_after(self, step: int, reason: str) -> None:
        """Move every step later than this one aside, as a rollback does before it goes another way.

        Raises:
            CheckpointError: one cannot be moved.
        """
        self._join()

        def move() -> None:
            for later in [found for found in step_directories(self.directory) if found > step]:
                self._move_step(later, reason)

        self._on_main(move)

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(DirectoryLock(self.directory))
        try:
            sweep(self.directory, self._emit_event)
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self, step: int, digests: dict[str, jax.Array]) -> str:
        """Clear the way for a step: "write", or "unchanged" where it is committed with these arrays."""
        sweep(self.directory, self._emit_event)
        path = self.directory / step_name(step)
        if path.exists():
            try:
                verify_step(path)
                saved = {entry["path"]: entry["digest"] for entry in read_manifest(path)["leaves"]}
            except CheckpointError as error:
                self._move_step(step, str(error))
            else:
                if saved == finish_digest(digests):
                    return "unchanged"
                raise CheckpointError(
                    f"{path}: step {step} is already committed with other arrays; "
                    "move it away, or save in another run directory"
                )
        (self.directory / (step_name(step) + PARTIAL) / STATE).mkdir(parents=True)
        return "write"

    def _finish(self, save: _Save) -> None:
        """Wait for the writing and commit; runs in the background thread and never raises."""
        try:
            facts = self._commit_together(save)
        except Exception as error:  # told to the caller by the next call
            self._failure = _as_checkpoint_error(error, f"step {save.step} could not be saved")
            self._failure.__cause__ = None if self._failure is error else error
            self._emit("save_failed", save.step, reason=str(self._failure))
        else:
            self._emit("save", save.step, **facts)

    def _commit_together(self, save: _Save) -> dict[str, Any]:
        """Seal this process's files, and on process 0 commit those of all."""
        error, files = save.error, []
        if error is None:
            try:
                for future in save.futures:
                    future.result()
                if not self._processes.is_main:
                    files = seal_files(save.partial, _own_files(save.partial, self._processes.index))
            except Exception as problem:  # whatever it is, the other processes must hear of it
                error = problem
        message = json.dumps({"error": _reason(error) if error else None, "files": files})
        answers = [json.loads(answer) for answer in self._processes.exchange(message)]
        for index, answer in enumerate(answers):
            if answer["error"]:
                where = f"process {index}: " if self._processes.count > 1 else ""
                raise CheckpointError(f"step {save.step} could not be saved: {where}{answer['error']}") from error
        sealed = [FileRecord(*file) for answer in answers for file in answer["files"]]
        what = f"step {save.step} could not be saved"
        return json.loads(self._on_main(lambda: json.dumps(self._commit(save, sealed)), what))

    def _commit(self, save: _Save, sealed: list[FileRecord]) -> dict[str, Any]:
        """Write manifest and commit record, give the step its name, then retire old steps; on process 0."""
        finish_write(save.writer, save.partial / STATE)
        digests = finish_digest(save.digests)
        manifest = {
            "format_version": FORMAT_VERSION,
            "step": save.step,
            "num_bytes": save.num_bytes,
            "record": save.record,
            "leaves": [entry | {"digest": digests[entry["path"]]} for entry in save.table],
        }
        write_atomic(save.partial / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
        done = {file.path for file in sealed}
        commit = write_commit(save.partial, save.step, [*sealed, *seal_files(save.partial, skip=done)])
        # The verdict comes first: one of a step of this number that was moved aside must never meet the new one.
        append_health(self.directory, save.step, first_verdict(save.record))
        save.partial.rename(self.directory / step_name(save.step))
        fsync_directory(self.directory)
        append(self.directory / COMMITS, step=save.step, commit=commit.sha256, num_bytes=commit.num_bytes)
        return {
            "num_bytes": commit.num_bytes,
            "num_files": len(commit.files),
            "stall_seconds": round(save.stall_seconds, 6),
            "seconds": round(time.monotonic() - save.started, 6),
            "removed": self._retire(save.step),
        }

    def _retire(self, committed: int) -> list[int]:
        """Apply retention; the commit stands even if an old step cannot be removed, so that is a warning."""
        self._committed.append(committed)
        try:
            return apply_retention(
                self.directory, committed=self._committed, keep=self._keep, keep_every=self._keep_every
            )
        except OSError as error:
            self._emit("warning", committed, reason=f"old checkpoints cannot be removed: {_reason(error)}")
            return []

    def _move_step(self, step: int, reason: str, kind: str = "warning") -> None:
        """Move a step to the quarantine and tell it, by one event: it is not met again."""
        moved = move_aside(self.directory / step_name(step), reason)
        self._emit(kind, step, moved_to=str(moved), reason=reason)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _on_main(self, action: Callable[[], str | None], what: str | None = None) -> str:
        """Do something on process 0 and give its result (None as ""), or its failure, to all; `what` names it.

        Raises:
            CheckpointError: it failed (on process 0: a UserError as it was).
        """

        def act() -> str:
            try:
                return action() or ""
            except UserError:
                raise
            except Exception as error:
                raise _as_checkpoint_error(error, what or f"{self.directory}: cannot be written") from error

        return self._processes.text_from_main(act)

    def _emit(self, kind: str, step: int | None, **fields: Any) -> None:
        self._emit_event(kind, step, fields)

    def _emit_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        """Tell of something; that it cannot be recorded (on a full disk) undoes nothing of what happened."""
        if not self._processes.is_main:
            return
        if self._on_event is None:
            if "reason" in fields:
                _log.warning("%s of step %s: %s", kind, step, fields["reason"])
            return
        try:
            self._on_event(kind, step, fields)
        except Exception as error:  # it is the listener's, and only process 0 has one
            _log.error("%s of step %s could not be recorded: %s", kind, step, _reason(error))


def _own_files(partial: Path, process: int) -> list[str]:
    """What Orbax wrote for one process alone."""
    own = partial / STATE / f"ocdbt.process_{process}"
    return [path.relative_to(partial).as_posix() for path in sorted(own.rglob("*")) if path.is_file()]


def _reason(error: Exception) -> str:
    """One line of an exception."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def _as_checkpoint_error(error: Exception, what: str) -> UserError:
    """The error itself where it is a UserError, else a CheckpointError of one line."""
    return error if isinstance(error, UserError) else CheckpointError(f"{what}: {_reason(error)}")
