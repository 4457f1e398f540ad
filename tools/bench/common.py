"""What the benchmarks share: timing, the machine's peak measured in the same run, its description, results on disk.

Every benchmark pins itself to one core before JAX starts (`pin`), times CPU-seconds (user + system, so that a busy
machine spoils them less than wall time), alternates what it compares, and states the least and the median. The speed
of a shared machine drifts: a figure is worth most as a share of the peak measured beside it.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}
"""Environment of a process with one thread of arithmetic."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
PRODUCT_SHAPES = ((1024, 1024, 1024), (4096, 256, 1024))
"""Rows, inner and columns of the products whose best speed is the peak: a square one, and one of a small model."""
COPY_BYTES = 256 * 2**20
"""Bytes of the array whose copy measures the memory's bandwidth: far beyond every cache."""


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """`--core` and `--json`."""
    parser.add_argument("--core", type=int, default=0, help="core to pin to")
    parser.add_argument("--json", metavar="FILE", help="write the results with the machine's description, too")


def pin(core: int) -> None:
    """Keep this process on one core with one thread of arithmetic; call it before JAX is imported."""
    os.sched_setaffinity(0, {core})
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def describe_machine(core: int | None) -> dict[str, Any]:
    """Processor, cores, memory, load and library versions; core is None where the process is not pinned."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "pinned_core": core,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Least and median."""
    return {"least": min(seconds), "median": statistics.median(seconds)}


def time_alternating(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """CPU-seconds of each call, in turn, after one call of each that is not counted.

    Args:
        calls: functions that return only when their work is done.
        repeats: timed calls of each.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            before = time.process_time()
            call()
            if number:
                seconds[name].append(time.process_time() - before)
    return seconds


def peak_calls() -> dict[str, Callable[[], Any]]:
    """Calls that measure the machine: products by dtype and shape, and a copy; `peaks` reads their times."""
    import jax
    import jax.numpy as jnp

    product = jax.jit(lambda pair: jnp.matmul(*pair, preferred_element_type=jnp.float32))
    # A sum keeps the compiler from returning its argument; what is read and written is counted.
    copy = jax.jit(lambda x: x + jnp.float32(1))
    pairs = {
        f"peak_{name}_{number}": (jnp.ones((rows, inner), name), jnp.ones((inner, columns), name))
        for name in ("float32", "bfloat16")
        for number, (rows, inner, columns) in enumerate(PRODUCT_SHAPES)
    }
    flat = jnp.ones(COPY_BYTES // 4, jnp.float32)

    def call(function: Callable[[Any], Any], argument: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(function(argument))

    return {**{name: call(product, pair) for name, pair in pairs.items()}, "peak_copy": call(copy, flat)}


def peaks(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Peaks from the times of `peak_calls`: GFLOP/s of products by dtype, GB/s read and written by a copy."""
    flops = [2 * math.prod(shape) for shape in PRODUCT_SHAPES]
    best = {
        name: max(flop / min(seconds[f"peak_{name}_{number}"]) for number, flop in enumerate(flops))
        for name in ("float32", "bfloat16")
    }
    return {
        "float32_gflops": best["float32"] / 1e9,
        "bfloat16_gflops": best["bfloat16"] / 1e9,
        "memory_gb_per_second": 2 * COPY_BYTES / min(seconds["peak_copy"]) / 1e9,
    }


def say_peaks(found: Mapping[str, float]) -> str:
    """Peaks in a line."""
    return (
        f"peak of one core: {found['float32_gflops']:.0f} GFLOP/s float32, {found['bfloat16_gflops']:.0f} bfloat16, "
        f"memory {found['memory_gb_per_second']:.1f} GB/s"
    )


def say_machine(machine: Mapping[str, Any]) -> str:
    """The machine in a line."""
    return " · ".join(f"{key} {value}" for key, value in machine.items())


def write_results(path: str, results: Mapping[str, Any]) -> None:
    """Write results as JSON, with the command that made them; directories are made."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", *sys.argv])
    file.write_text(json.dumps({"command": command, **results}, indent=1) + "\n", encoding="utf-8")
