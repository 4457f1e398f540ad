"""Time one training step: CPU-seconds, share of the machine's peak, compile and start-up time, peak memory.

Each case runs in processes of its own, pinned to one core, in turn with the peer where one is given, so that a ratio
holds when the machine's speed drifts. CPU-seconds are user + system time of the process; of several steps the least
and the median are printed. The products that measure the peak take turns with the steps; the share is that of the
model's FLOPs, without recomputation, in the least of the times.

    python tools/bench/train_step.py
    python tools/bench/train_step.py --case moe-fp32 --rounds 3 --peer PATH/TO/python

The peer is transformers, litgpt or levanter: make an environment with that library, and torch for the first two, and
give its interpreter; --peer-compile runs a peer in torch by torch.compile, which needs a C++ compiler. In bfloat16 the
parameters and updates of a peer in torch are bfloat16 too, where ours and levanter's are float32. Versions of levanter
up to 1.1 don't work with this JAX: take the extra bench-levanter.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.bench.common import (
    ONE_THREAD,
    add_common_arguments,
    describe_machine,
    peak_calls,
    peaks,
    pin,
    say_machine,
    say_peaks,
    write_results,
)

_START = time.perf_counter()

WIDTH, LAYERS, HEADS, LENGTH, ROWS, VOCABULARY = 256, 4, 8, 512, 8, 8192

CASES: dict[str, dict[str, Any]] = {
    "dense-fp32": {"experts": 0, "hidden": 1024, "precision": "float32", "remat": "none"},
    "dense-fp32-remat": {"experts": 0, "hidden": 1024, "precision": "float32", "remat": "full"},
    "dense-bf16": {"experts": 0, "hidden": 1024, "precision": "bfloat16", "remat": "none"},
    "moe-fp32": {"experts": 8, "hidden": 512, "precision": "float32", "remat": "none"},
    "moe-fp32-remat": {"experts": 8, "hidden": 512, "precision": "float32", "remat": "full"},
    "moe-bf16": {"experts": 8, "hidden": 512, "precision": "bfloat16", "remat": "none"},
    "dense-bf16-remat": {"experts": 0, "hidden": 1024, "precision": "bfloat16", "remat": "full"},
    "moe1024-fp32": {"experts": 8, "hidden": 1024, "precision": "float32", "remat": "none"},
    "moe1024-bf16": {"experts": 8, "hidden": 1024, "precision": "bfloat16", "remat": "none"},
}

LIBRARIES = ("transformers", "litgpt", "levanter")
"""Peers: each has a script in `peers`."""


def make_config(case: dict[str, Any], steps: int) -> Any:
    """The config of a case: a synthetic source, AdamW, clipping."""
    from maxtrain.config.schema import Config

    moe = {"num_experts": case["experts"], "top_k": 2, "d_expert": case["hidden"], "balance_weight": 0.01}
    return Config.model_validate(
        {
            "run": {"directory": "unused"},
            "data": {"source": "synthetic", "sequence_length": LENGTH},
            "batch": {"global_batch_tokens": ROWS * LENGTH, "micro_batch": ROWS},
            "model": {
                "vocab_size": VOCABULARY,
                "num_layers": LAYERS,
                "d_model": WIDTH,
                "num_heads": HEADS,
                "d_ff": case["hidden"],
                **({"moe": moe} if case["experts"] else {}),
            },
            "precision": {"compute": case["precision"]},
            "remat": {"policy": case["remat"]},
            "train": {"total_tokens": steps * ROWS * LENGTH},
            "schedule": {"name": "constant", "lr": 1e-3},
        }
    )


def run_case(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Run one case in this process."""
    from maxtrain.config.batch_plan import plan_batches
    from maxtrain.core.memory import keep_freed_memory
    from maxtrain.loader import Loader
    from maxtrain.plan import training_flops_per_token
    from maxtrain.train.feed import BatchFeeder, feed
    from maxtrain.train.parts import build_parts

    keep_freed_memory()
    config = make_config(case, steps + 1)
    plan = plan_batches(config)
    loader = Loader(plan, data=config.data, seed=0, vocab_size=VOCABULARY)
    parts = build_parts(config, plan, len(loader.domains))
    state = parts.create_state(0)
    start_up = time.perf_counter() - _START
    batches = [batch for _, batch in feed(loader, BatchFeeder(parts.mesh, ROWS), 0, prefetch=2)]
    start = time.perf_counter()
    compiled = parts.train_step.lower(state, batches[0]).compile()  # type: ignore[attr-defined]
    compile_seconds = time.perf_counter() - start
    cpu, wall = [], []
    calls = peak_calls()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    memory = 0.0
    for batch in batches:
        before, start = time.process_time(), time.perf_counter()
        state, metrics = compiled(state, batch)
        float(metrics["loss"])
        cpu.append(time.process_time() - before)
        wall.append(time.perf_counter() - start)
        memory = memory or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for name, call in calls.items():
            before = time.process_time()
            call()
            seconds[name].append(time.process_time() - before)
    peak = peaks(seconds)
    flops = ROWS * LENGTH * training_flops_per_token(config.model, LENGTH).total
    return {
        "peak": peak,
        "share_of_peak": flops / min(cpu[1:]) / 1e9 / peak[f"{case['precision']}_gflops"],
        "cpu_seconds": cpu[1:],
        "wall_seconds": wall[1:],
        "start_up_seconds": start_up,
        "compile_seconds": compile_seconds,
        "peak_mb": memory,
        "loss": float(metrics["loss"]),
    }


def child(command: list[str], core: int) -> dict[str, Any]:
    """Run a process pinned to a core and read the JSON of its last line."""
    environment = {**ONE_THREAD, **os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def summarise(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Least and median over all steps of all rounds, and the least of the once-a-process figures."""
    cpu = [value for run in runs for value in run["cpu_seconds"]]
    wall = [value for run in runs for value in run["wall_seconds"]]
    return {
        "cpu_least": min(cpu),
        "cpu_median": statistics.median(cpu),
        "tokens_per_second": ROWS * LENGTH / statistics.median(wall),
        "compile_seconds": min(run.get("compile_seconds", 0.0) for run in runs),
        "start_up_seconds": min(run["start_up_seconds"] for run in runs),
        "peak_mb": max(run["peak_mb"] for run in runs),
        **({"share_of_peak": max(run["share_of_peak"] for run in runs)} if "share_of_peak" in runs[0] else {}),
    }


def main() -> None:
    """Run the cases in turn with the peer and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process")
    parser.add_argument("--rounds", type=int, default=2, help="processes a case")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that has the peer's library")
    parser.add_argument("--peer-library", choices=LIBRARIES, default=LIBRARIES[0])
    parser.add_argument("--peer-compile", action="store_true", help="run a peer in torch by torch.compile")
    add_common_arguments(parser)
    parser.add_argument("--run", metavar="CASE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        pin(args.core)
        print(json.dumps(run_case(CASES[args.run], args.steps)))
        return
    peer_script = str(Path(__file__).parent / "peers" / f"{args.peer_library}_step.py")
    peer_name = f"{args.peer_library}{' compiled' if args.peer_compile else ''}"
    cases: dict[str, Any] = {}
    common = ["--steps", str(args.steps), "--core", str(args.core)]
    for name in CASES if args.case == "all" else [args.case]:
        ours, peer = [], []
        for _ in range(args.rounds):
            ours.append(child([sys.executable, __file__, "--run", name, *common], args.core))
            if args.peer:
                shape = json.dumps({**CASES[name], "steps": args.steps, "compile": args.peer_compile})
                peer.append(child([args.peer, peer_script, shape], args.core))
        row: dict[str, Any] = {"maxtrain": summarise(ours), "peak": ours[-1]["peak"]}
        if peer:
            row[peer_name] = summarise(peer)
            row["ratio"] = row["maxtrain"]["cpu_median"] / row[peer_name]["cpu_median"]
        cases[name] = row
        print_row(name, row)
    machine = describe_machine(args.core)
    print(say_machine(machine))
    if args.json:
        write_results(args.json, {"machine": machine, "cases": cases})


def print_row(name: str, row: dict[str, Any]) -> None:
    """One case as text."""
    for who, values in row.items():
        if who not in ("peak", "ratio"):
            share = f"{values['share_of_peak']:.0%} of peak  " if "share_of_peak" in values else ""
            print(
                f"{name:18} {who:21} {values['cpu_least']:6.2f} least {values['cpu_median']:6.2f} median CPU-s a step  "
                f"{share}{values['tokens_per_second']:7.0f} tokens/s  compile {values['compile_seconds']:5.1f} s  "
                f"start {values['start_up_seconds']:4.1f} s  peak {values['peak_mb']:6.0f} MB",
                flush=True,
            )
    print(f"{name:18} {say_peaks(row['peak'])}", flush=True)
    if "ratio" in row:
        print(f"{name:18} ratio of medians {row['ratio']:.2f}", flush=True)


if __name__ == "__main__":
    main()
