"""CPU-seconds from the command to the first step's line: with an empty compilation cache, and with a full one.

    python -m maxtrain.corpus build data/recipes/sample.yaml --output datasets/sample
    python tools/bench/startup.py
    python tools/bench/startup.py --config configs/learning/dense.yaml --rounds 3 --json startup.json

Each round takes a new run directory and a new cache and trains twice, once for each figure. User and system time of
the process are read from the system when the line of step 1 appears; then the process is ended. Times include the
imports, the save of step 0 and the first step itself.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.bench.common import add_common_arguments, describe_machine, figures, say_machine, write_results

MARK = "step 1/"
"""What the line of the first step begins with."""


def start_once(config: str, directory: Path, cache: Path, core: int) -> tuple[float, float]:
    """CPU and wall seconds of one start.

    Raises:
        SystemExit: the command ended before its first step; its output is printed.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "maxtrain.train", config, f"run.directory={directory}"]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if MARK in line:
            cpu, wall = process_cpu_seconds(process.pid), time.perf_counter() - start
            process.kill()
            process.wait()
            return cpu, wall
        seen.append(line)
    sys.exit(f"the command ended before its first step:\n{''.join(seen)}")


def process_cpu_seconds(pid: int) -> float:
    """User and system seconds of a process with all its threads, from /proc (see proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Start cold and warm in turn and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/learning/first.yaml")
    parser.add_argument("--rounds", type=int, default=1, help="cold and warm starts")
    add_common_arguments(parser)
    args = parser.parse_args()
    results: dict[str, Any] = {name: {"cpu": [], "wall": []} for name in ("cold", "warm")}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            for name, times in results.items():
                spent = start_once(args.config, Path(scratch, name), Path(scratch, "cache"), args.core)
                times["cpu"].append(spent[0])
                times["wall"].append(spent[1])
    summary = {
        name: {"cpu_seconds": figures(times["cpu"]), "wall_seconds": figures(times["wall"])}
        for name, times in results.items()
    }
    machine = describe_machine(args.core)
    for name, row in summary.items():
        cpu, wall = row["cpu_seconds"], row["wall_seconds"]
        print(f"{name}: {cpu['least']:.1f} CPU-s least, {cpu['median']:.1f} median; {wall['least']:.1f} s wall least")
    print(say_machine(machine))
    if args.json:
        write_results(args.json, {"machine": machine, "config": args.config, "results": summary})


if __name__ == "__main__":
    main()
