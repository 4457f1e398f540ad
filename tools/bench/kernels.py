r"""Seconds of each kernel, forward and backward, beside its plain reference, and its share of the matmul peak.

    python tools/bench/kernels.py --dtype float32 --repeats 5
    python tools/bench/kernels.py --dtype bfloat16 --batch 4 --length 4096 --width 2048 --heads 16 --hidden 2048 \
        --experts 64 --top-k 4 --vocab 32768 --no-reference        # on a GPU or TPU

On CPU one process pinned to one core, in user + system CPU-seconds; elsewhere wall seconds. The least of the repeats.
The peak is a square product of the same type, measured in the same run; the share counts the products that the result
needs (of attention those that are seen; a backward pass that computes scores anew gets nothing for it). The reference
of grouped_matmul is XLA's `ragged_dot`.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

SHAPES = {"batch": 8, "length": 512, "width": 256, "heads": 8, "hidden": 1024, "experts": 8, "top_k": 2, "vocab": 8192}
"""The step that the project's speed goals are stated for."""


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit code 0.")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="operands of products")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each kernel")
    parser.add_argument("--only", nargs="*", default=[], help="names of kernels; all by default")
    parser.add_argument("--no-reference", action="store_true", help="time the fast forms alone")
    parser.add_argument("--core", type=int, default=0, help="core to pin to")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    for name, value in SHAPES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


def describe_machine(core: int) -> dict[str, Any]:
    """Processor, cores, load and versions."""
    import jax

    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "pinned_core": core,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "backend": jax.default_backend(),
    }


class Case(NamedTuple):
    """A kernel."""

    function: Callable[..., Any]
    """Of (implementation, *arguments)."""
    arguments: tuple[Any, ...]
    flops: float
    """Of the products of value and gradients."""


def make_cases(shape: argparse.Namespace, dtype: Any) -> dict[str, Case]:
    """Each kernel, with data of the shape."""
    import jax
    import jax.numpy as jnp

    from maxtrain.model.kernels.attention import attention
    from maxtrain.model.kernels.cross_entropy import cross_entropy
    from maxtrain.model.kernels.experts import experts
    from maxtrain.model.kernels.feed_forward import feed_forward
    from maxtrain.model.kernels.grouped_matmul import grouped_matmul

    rows, width, hidden = shape.batch * shape.length, shape.width, shape.hidden
    head_dim = width // shape.heads
    keys = iter(jax.random.split(jax.random.key(0), 32))

    def normal(*sizes: int, scale: float = 1.0) -> jax.Array:
        return scale * jax.random.normal(next(keys), sizes)

    heads = tuple(normal(shape.batch, shape.length, shape.heads, head_dim) for _ in range(3))
    starts = jnp.arange(shape.length) >= shape.length // 2
    segments = jnp.broadcast_to(1 + starts.astype(jnp.int32), (shape.batch, shape.length))
    x = normal(rows, width)
    index = jax.lax.top_k(normal(rows, shape.experts), shape.top_k)[1]
    weight = jax.random.uniform(next(keys), (rows, shape.top_k))
    dense = tuple(normal(*s, scale=0.05) for s in ((width, hidden), (width, hidden), (hidden, width)))
    target = jax.random.randint(next(keys), (rows,), 0, shape.vocab)

    def expert_weights(hidden: int) -> tuple[jax.Array, ...]:
        sizes = ((width, hidden), (width, hidden), (hidden, width))
        return tuple(normal(shape.experts, *s, scale=0.05) for s in sizes)

    def attend(implementation: Any, *arguments: Any, window: int | None = None) -> jax.Array:
        q, k, v, ids = (*arguments, None)[:4]
        return attention(
            q, k, v, ids, window=window, scale=head_dim**-0.5, compute_dtype=dtype, implementation=implementation
        )

    def group(implementation: Any, x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        if implementation == "reference":
            return jax.lax.ragged_dot(x.astype(dtype), w.astype(dtype), sizes, preferred_element_type=jnp.float32)
        return grouped_matmul(x, w, sizes, compute_dtype=dtype, implementation=implementation)

    def forward(implementation: Any, *arguments: jax.Array) -> jax.Array:
        return feed_forward(*arguments, activation="swiglu", compute_dtype=dtype, implementation=implementation)

    def route(implementation: Any, x: jax.Array, weight: jax.Array, *rest: jax.Array) -> jax.Array:
        *weights, index = rest
        return experts(
            x, index, weight, *weights, activation="swiglu", compute_dtype=dtype, implementation=implementation
        )

    def loss(implementation: Any, x: jax.Array, output: jax.Array) -> jax.Array:
        ones = jnp.ones(rows)
        return cross_entropy(x, output, target, ones, z_weight=0.0, compute_dtype=dtype, implementation=implementation)[
            0
        ]

    window = shape.length // 4
    seen = shape.length * (shape.length + 1) / 2
    seen_in_window = seen - (shape.length - window) * (shape.length - window + 1) / 2
    per_score = 6 * 2 * shape.batch * width  # two products forward, four backward
    per_weight = 3 * 2 * rows
    choices = rows * shape.top_k
    sizes = jnp.zeros(shape.experts, jnp.int32).at[index.reshape(-1)].add(1)
    routed = {
        f"experts_{f}": Case(route, (x, weight, *expert_weights(f), index), 3 * per_weight * shape.top_k * width * f)
        for f in (hidden // 2, hidden)
    }
    return {
        "attention": Case(attend, heads, per_score * seen),
        "attention_packed": Case(attend, (*heads, segments), per_score * seen / 2),
        "attention_window": Case(partial(attend, window=window), heads, per_score * seen_in_window),
        "feed_forward": Case(forward, (x, *dense), 3 * per_weight * width * hidden),
        "grouped_matmul": Case(
            group,
            (normal(choices, width), normal(shape.experts, width, hidden, scale=0.05), sizes),
            per_weight * shape.top_k * width * hidden,
        ),
        **routed,
        "cross_entropy": Case(loss, (x, normal(shape.vocab, width, scale=0.05)), per_weight * width * shape.vocab),
    }


def clock() -> float:
    """CPU-seconds on CPU, else wall seconds."""
    import jax

    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def measure_peak(dtype: Any, repeats: int) -> float:
    """FLOP/s of a square product with float32 sums."""
    import jax
    import jax.numpy as jnp

    size = 1024 if jax.default_backend() == "cpu" else 8192
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    multiply = jax.jit(lambda a: jnp.matmul(a, a, precision=precision, preferred_element_type=jnp.float32))
    return 2 * size**3 / least_seconds(lambda: multiply(jnp.ones((size, size), dtype)), repeats)


def least_seconds(call: Callable[[], Any], repeats: int) -> float:
    """The fastest of some calls, after one that compiles."""
    import jax

    jax.block_until_ready(call())
    least = float("inf")
    for _ in range(repeats):
        start = clock()
        jax.block_until_ready(call())
        least = min(least, clock() - start)
    return least


def time_case(case: Case, implementation: str, repeats: int) -> float:
    """Seconds of one value and all gradients."""
    import jax
    import jax.numpy as jnp

    differentiable = tuple(i for i, a in enumerate(case.arguments) if jnp.issubdtype(a.dtype, jnp.floating))

    def loss(*arguments: Any) -> jax.Array:
        return jnp.sum(jnp.square(case.function(implementation, *arguments)))

    step = jax.jit(jax.value_and_grad(loss, argnums=differentiable))
    return least_seconds(lambda: step(*case.arguments), repeats)


def main() -> int:
    """Entry point."""
    arguments = parse_arguments()
    os.sched_setaffinity(0, {arguments.core})
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax.numpy as jnp
    from tqdm import tqdm

    dtype = jnp.dtype(arguments.dtype)
    cases = make_cases(arguments, dtype)
    chosen = [name for name in cases if not arguments.only or name in arguments.only]
    peak = measure_peak(dtype, arguments.repeats)
    results: dict[str, dict[str, float]] = {}
    for name in tqdm(chosen, disable=not sys.stderr.isatty()):
        seconds = time_case(cases[name], "auto", arguments.repeats)
        results[name] = {"auto": seconds, "share_of_peak": cases[name].flops / seconds / peak}
        if not arguments.no_reference:
            results[name]["reference"] = time_case(cases[name], "reference", arguments.repeats)
    # The machine may have slowed down meanwhile: the better of two is nearer to what it can do.
    peak, before = max(peak, measure_peak(dtype, arguments.repeats)), peak
    for row in results.values():
        row["share_of_peak"] *= before / peak
    machine = describe_machine(arguments.core) | {"peak_gflops": round(peak / 1e9, 1)}
    if arguments.json:
        shapes = {name: getattr(arguments, name) for name in SHAPES}
        print(json.dumps({"machine": machine, "dtype": arguments.dtype, "shapes": shapes, "seconds": results}))
        return 0
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{'kernel':<18} {'seconds':>8} {'of peak':>8} {'reference':>10} {'ratio':>6}   ({arguments.dtype})")
    for name, row in results.items():
        reference = row.get("reference", float("nan"))
        ratio, share = row["auto"] / reference, row["share_of_peak"]
        print(f"{name:<18} {row['auto']:8.4f} {share:8.1%} {reference:10.4f} {ratio:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
