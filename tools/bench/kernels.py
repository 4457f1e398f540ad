"""CPU-seconds of each kernel, forward and backward, beside its plain reference.

    python tools/bench/kernels.py --dtype float32 --repeats 5

One process pinned to one core; figures are user + system CPU-seconds, the least of the repeats.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def make_cases(shape: argparse.Namespace, dtype: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Each kernel as a function of (implementation, *arguments), and its arguments."""
    import jax
    import jax.numpy as jnp

    from maxtrain.model.kernels.attention import attention
    from maxtrain.model.kernels.cross_entropy import cross_entropy
    from maxtrain.model.kernels.experts import experts
    from maxtrain.model.kernels.feed_forward import feed_forward

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

    def attend(implementation: Any, q: jax.Array, k: jax.Array, v: jax.Array, ids: Any = None) -> jax.Array:
        return attention(
            q, k, v, ids, window=None, scale=head_dim**-0.5, compute_dtype=dtype, implementation=implementation
        )

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

    return {
        "attention": (attend, heads),
        "attention_packed": (attend, (*heads, segments)),
        "feed_forward": (forward, (x, *dense)),
        f"experts_{hidden // 2}": (route, (x, weight, *expert_weights(hidden // 2), index)),
        f"experts_{hidden}": (route, (x, weight, *expert_weights(hidden), index)),
        "cross_entropy": (loss, (x, normal(shape.vocab, width, scale=0.05))),
    }


def time_case(function: Callable[..., Any], implementation: str, arguments: tuple[Any, ...], repeats: int) -> float:
    """CPU-seconds of one value and all gradients."""
    import jax
    import jax.numpy as jnp

    differentiable = tuple(i for i, a in enumerate(arguments) if jnp.issubdtype(a.dtype, jnp.floating))

    def loss(*arguments: Any) -> jax.Array:
        return jnp.sum(jnp.square(function(implementation, *arguments)))

    step = jax.jit(jax.value_and_grad(loss, argnums=differentiable))
    jax.block_until_ready(step(*arguments))
    least = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(step(*arguments))
        least = min(least, time.process_time() - start)
    return least


def main() -> int:
    """Entry point."""
    arguments = parse_arguments()
    os.sched_setaffinity(0, {arguments.core})
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax.numpy as jnp
    from tqdm import tqdm

    cases = make_cases(arguments, jnp.dtype(arguments.dtype))
    chosen = [name for name in cases if not arguments.only or name in arguments.only]
    results: dict[str, dict[str, float]] = {}
    for name in tqdm(chosen, disable=not sys.stderr.isatty()):
        function, inputs = cases[name]
        results[name] = {"auto": time_case(function, "auto", inputs, arguments.repeats)}
        if not arguments.no_reference:
            results[name]["reference"] = time_case(function, "reference", inputs, arguments.repeats)
    machine = describe_machine(arguments.core)
    if arguments.json:
        shapes = {name: getattr(arguments, name) for name in SHAPES}
        print(json.dumps({"machine": machine, "dtype": arguments.dtype, "shapes": shapes, "cpu_seconds": results}))
        return 0
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{'kernel':<18} {'CPU-s':>8} {'reference':>10} {'ratio':>6}   ({arguments.dtype}, forward and backward)")
    for name, row in results.items():
        reference = row.get("reference", float("nan"))
        print(f"{name:<18} {row['auto']:8.4f} {reference:10.4f} {row['auto'] / reference:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
