"""What all peers share: timing one step after another, and the line of JSON; imports no library of arrays."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def read_case() -> dict[str, Any]:
    """The case, which is the command's argument."""
    return json.loads(sys.argv[1])


def cpu_seconds() -> float:
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def time_steps(start: float, steps: int, next_batch: Callable[[], Any], step: Callable[[Any], float]) -> None:
    """Take one step, which may compile, and then those that are timed; print their CPU-seconds.

    What the first step takes beyond the median of the others is counted as compiling.

    Args:
        start: time of the command, on the clock of `time.perf_counter`.
        steps: timed steps.
        next_batch: makes a batch, outside of the timed part.
        step: trains on a batch and returns its loss when all work is done.
    """
    start_up = time.perf_counter() - start
    cpu, wall, losses = [], [], []
    for _ in range(steps + 1):
        batch = next_batch()
        before, began = cpu_seconds(), time.perf_counter()
        losses.append(step(batch))
        cpu.append(cpu_seconds() - before)
        wall.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {
        "cpu_seconds": cpu[1:],
        "wall_seconds": wall[1:],
        "start_up_seconds": start_up,
        "compile_seconds": max(0.0, wall[0] - statistics.median(wall[1:])),
        "peak_mb": peak,
        "losses": losses,
    }
    print(json.dumps(result))
