"""Stages: the tasks of one, those done before left out, the others run, lost workers replaced, progress shown."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.corpus.engine.task import Outcome, Task, find_done, outcome_of, run_told

if TYPE_CHECKING:
    from maxtrain.corpus.engine.runner import Runner

WORKER_BYTES = 700 * 10**6
"""What a worker needs: libraries and models 300 MB, a shard of 32 MB of text and what is made of it."""
SMALL_BYTES = 8 * 10**6
"""A stage with less to work through runs in this process."""
_ATTEMPTS = 4


@dataclass(frozen=True)
class Options:
    """How a build runs; nothing of it changes a byte of the output.

    Attributes:
        runner: native or ray.
        address: of the Ray cluster.
        workers: tasks at once; null for one a core, as many as the memory holds.
        memory: bytes that all local workers may take together.
    """

    runner: str = "native"
    address: str | None = None
    workers: int | None = None
    memory: int = 2 * 10**9

    def num_workers(self) -> int:
        """Tasks at once.

        Raises:
            UserError: the memory does not hold them.
        """
        if self.runner == "ray":
            return self.workers or 2
        room = self.memory // WORKER_BYTES
        wanted = self.workers or max(min(os.cpu_count() or 1, room), 1)
        if wanted > room:
            raise UserError(
                f"--memory: {self.memory / 1e9:.1f} GB hold {room} workers of {WORKER_BYTES / 1e9:.1f} GB, "
                f"{wanted} are wanted; give {wanted * WORKER_BYTES / 1e9:.1f}GB or fewer --workers"
            )
        return wanted


class Engine:
    """Runs stages in a work directory, which it holds locked; use it as a context manager.

    Attributes:
        work: directory of the tasks' outputs.
        cpu_seconds: what the tasks took so far, without those done before.
        peak_bytes: the most that one worker has held.

    Args:
        work: the directory; made where it is absent.
        options: how to run.
    """

    def __init__(self, work: Path, options: Options) -> None:
        self.work = work
        self.cpu_seconds = 0.0
        self.peak_bytes = 0
        self._options = options
        self._workers = options.num_workers()
        self._runner: Runner | None = None

    def __enter__(self) -> Self:
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock = files.DirectoryLock(self.work).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def run(self, tasks: Sequence[Task], title: str) -> list[Outcome]:
        """Run the tasks of a stage that are not done; returns every task's outcome, in order.

        Args:
            tasks: they do not depend on each other.
            title: of the progress bar.

        Raises:
            UserError, OSError: as a task did, or workers die again and again.
        """
        done = {task.key: outcome for task in tasks if (outcome := find_done(self.work, task))}
        total = sum(task.weight for task in tasks)
        before = sum(task.weight for task in tasks if task.key in done)
        weight = {task.folder: task.weight for task in tasks}
        with tqdm(
            total=total, initial=before, desc=title, unit="B", unit_scale=True, delay=1, leave=False, smoothing=0.1
        ) as bar:
            lost = 0
            while pending := [task for task in tasks if task.key not in done]:
                num_before = len(done)
                loss = self._attempt(pending, done, bar, weight)
                if loss is None:
                    continue
                lost = lost + 1 if len(done) == num_before else 1
                if lost == _ATTEMPTS:
                    raise UserError(
                        f"{title}: workers died {lost} times without one task done ({loss}); most often memory ran "
                        "out: give fewer --workers, or look into the system's log"
                    )
        return [done[task.key] for task in tasks]

    def _attempt(self, pending: list[Task], done: dict[str, Outcome], bar: tqdm, weight: dict[str, int]) -> str | None:
        """Run tasks once; the reason where a worker was lost."""
        from maxtrain.corpus.engine.runner import WorkerLostError

        by_folder = {task.folder: task.key for task in pending}
        documents = 0
        try:
            for line in self._lines(pending):
                outcome = outcome_of(line)
                done[by_folder[outcome.folder]] = outcome
                self.cpu_seconds += outcome.cpu_seconds
                self.peak_bytes = max(self.peak_bytes, outcome.peak_bytes)
                documents += int(outcome.facts.get("documents", 0))
                bar.set_postfix_str(self._postfix(bar, documents), refresh=False)
                bar.update(weight[outcome.folder])
        except WorkerLostError as error:
            for task in pending:
                left = None if task.key in done else find_done(self.work, task)
                if left is not None:
                    done[task.key] = left
                    bar.update(task.weight)
            return str(error)
        return None

    def _lines(self, pending: list[Task]) -> Iterator[str]:
        lines = [task.to_json() for task in pending]
        small = len(lines) == 1 or self._workers == 1 or sum(task.weight for task in pending) < SMALL_BYTES
        if small and self._options.runner == "native":
            # Not worth processes, which take seconds to load their libraries.
            return (run_told(str(self.work), line) for line in lines)
        if self._runner is None:
            from maxtrain.corpus.engine.runner import Runner

            self._runner = Runner(self._options.runner, self._workers, self._options.address)
        return self._runner.run(str(self.work.resolve()), lines)

    def _postfix(self, bar: tqdm, documents: int) -> str:
        elapsed = max(bar.format_dict["elapsed"], 1e-9)
        rate = f"{documents / elapsed:,.0f} documents/s, " if documents else ""
        return f"{rate}{self.peak_bytes / 1e6:,.0f} MB a worker"
