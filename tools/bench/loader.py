r"""Batches of the loader: tokens a CPU-second, beside a copy of the same bytes and the memory's bandwidth.

    python -m maxtrain.corpus build data/recipes/sample.yaml --output datasets/sample
    python tools/bench/loader.py
    python tools/bench/loader.py --config configs/learning/first.yaml data.sequence_length=2048 \
      batch.global_batch_tokens=16384 train.total_tokens=1048576

One process pinned to one core, on the config's dataset and mixture; no prefetching, so that all work is counted. A
batch is seven fields of four bytes a token or less; the copy is of as many bytes from one array to another.
"""

import argparse
from typing import Any

from tools.bench.common import (
    add_common_arguments,
    describe_machine,
    figures,
    peak_calls,
    peaks,
    pin,
    say_machine,
    say_peaks,
    time_alternating,
    write_results,
)


def main() -> None:
    """Time batches in the order of steps and print tokens a CPU-second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/learning/first.yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides of the config")
    parser.add_argument("--steps", type=int, default=32, help="batches of one timed call")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls")
    add_common_arguments(parser)
    args = parser.parse_intermixed_args()
    pin(args.core)
    import numpy as np

    from maxtrain.config import check_or_raise
    from maxtrain.config.batch_plan import plan_batches
    from maxtrain.config.load import load_config
    from maxtrain.loader import Loader

    config = load_config(args.config, args.overrides)
    check_or_raise(config)
    plan = plan_batches(config)
    loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    steps = range(min(args.steps, plan.num_steps))
    rows = {step: np.arange(len(plan.rows_of(step))) for step in steps}
    batches = [loader.batch(step, rows[step]) for step in steps]
    num_tokens = sum(batch["tokens"].size for batch in batches)
    fields = [field for batch in batches for field in batch.values()]
    targets = [np.empty_like(field) for field in fields]

    def copy() -> None:
        for target, field in zip(targets, fields, strict=True):
            np.copyto(target, field)

    calls: dict[str, Any] = {"loader": lambda: [loader.batch(step, rows[step]) for step in steps], "copy": copy}
    times = time_alternating({**calls, **peak_calls()}, args.repeats)
    peak, machine = peaks(times), describe_machine(args.core)
    num_bytes = sum(field.nbytes for field in fields)
    least = min(times["loader"])
    share = 2 * num_bytes / least / 1e9 / peak["memory_gb_per_second"]
    print(
        f"loader: {num_tokens / least / 1e6:.2f} M tokens a CPU-second, {1e3 * least / len(steps):.2f} ms a batch of "
        f"{num_tokens // len(steps):,} tokens; {share:.1%} of the memory's bandwidth, "
        f"{least / min(times['copy']):.1f} times a plain copy"
    )
    print(say_peaks(peak))
    print(say_machine(machine))
    if args.json:
        write_results(
            args.json,
            {
                "machine": machine,
                "peak": peak,
                "config": args.config,
                "overrides": args.overrides,
                "tokens_per_cpu_second": num_tokens / least,
                "cpu_seconds": {name: figures(times[name]) for name in calls},
                "share_of_bandwidth": share,
            },
        )


if __name__ == "__main__":
    main()
