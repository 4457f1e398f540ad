"""Workers behind Daft: processes of this machine, or of a Ray cluster, by the same code.

Daft's interface moves between versions, so nothing else of the project names it: here a frame has one column of tasks,
and a user-defined function turns each into its outcome.
"""

import os
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from maxtrain.core.errors import UserError
from maxtrain.corpus.engine.task import run_told

# Before the import: no telemetry, no bars beside ours.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
import daft

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class WorkerLostError(Exception):
    """A worker died; which tasks were done is seen from their folders."""


class _Tasks:
    """The user-defined function, made once in each worker."""

    def __init__(self, work: str) -> None:
        self._run = partial(run_told, work)

    @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)
    def run(self, lines: daft.Series) -> list[str]:
        return [self._run(line) for line in lines.to_pylist()]


class Runner:
    """Runs tasks in parallel.

    Args:
        kind: native (this machine) or ray.
        workers: tasks at once.
        address: host:port of the Ray cluster.

    Raises:
        UserError: Ray is not installed, or no cluster answers there.
    """

    def __init__(self, kind: str, workers: int, address: str | None = None) -> None:
        self.kind = kind
        self.workers = workers
        _choose(kind, address)

    def run(self, work: str, lines: Sequence[str]) -> Iterator[str]:
        """Outcomes of tasks (`task.run_told`), as they come.

        Raises:
            WorkerLostError: a worker died.
        """
        tasks = daft.cls(_Tasks, max_concurrency=self.workers, use_process=self.kind == "native")(work)
        frame = daft.from_pydict({"task": list(lines)})
        frame = frame.into_partitions(len(lines)) if self.kind == "ray" else frame.into_batches(1)
        rows = iter(frame.select(tasks.run(daft.col("task")).alias("outcome")).iter_rows())
        while True:
            try:
                row = next(rows, None)
            except Exception as error:
                raise WorkerLostError(str(error).strip().splitlines()[-1][:300]) from error
            if row is None:
                return
            yield row["outcome"]


@cache
def _choose(kind: str, address: str | None) -> None:
    """Set Daft's runner, which a process can do once."""
    if kind == "ray":
        _connect(address)
    else:
        daft.set_runner_native()


def _connect(address: str | None) -> None:
    if address is None:
        raise UserError("--runner ray: needs --address HOST:PORT of a running cluster (ray start --head)")
    host = address.rpartition(":")[0]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if host in _LOOPBACK:
        # Ray would look for a loopback cluster under the machine's outer address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError:
        raise UserError("--runner ray: Ray is not installed; pip install 'maxtrain[corpus-ray]'") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise UserError(f"--address {address}: no Ray cluster answers there ({first})") from None
    daft.set_runner_ray(address=address)
