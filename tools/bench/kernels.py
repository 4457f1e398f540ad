"""CPU-seconds of each kernel, forward and backward, beside its plain reference and the machine's peak.

    python tools/bench/kernels.py --dtype float32 --repeats 5
    python tools/bench/kernels.py --only attention cross_entropy --json tools/bench/results/kernels.json

One process pinned to one core; kernel, reference and the products that measure the peak take turns. The share of the
peak counts the products that the result needs (of attention those that are seen; scores computed anew get nothing), in
the least of the times. The reference of grouped_matmul is XLA's `ragged_dot`.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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

SHAPES = {"batch": 8, "length": 512, "width": 256, "heads": 8, "hidden": 1024, "experts": 8, "top_k": 2, "vocab": 8192}
"""The step that the project's speed goals are stated for."""


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit code 0.")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="operands of products")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each kernel")
    parser.add_argument("--only", nargs="*", default=[], help="names of kernels; all by default")
    parser.add_argument("--no-reference", action="store_true", help="time the fast forms alone")
    add_common_arguments(parser)
    for name, value in SHAPES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


class Case(NamedTuple):
    """A kernel: a function of (implementation, *arguments)."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    flops: float
    """Of the forward and the backward pass, which is twice the forward one."""


def make_cases(shape: argparse.Namespace, dtype: Any) -> dict[str, Case]:
    """Each kernel at a shape."""
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


def make_call(case: Case, implementation: str) -> Callable[[], Any]:
    """One value and all gradients of a kernel, compiled."""
    import jax
    import jax.numpy as jnp

    differentiable = tuple(i for i, a in enumerate(case.arguments) if jnp.issubdtype(a.dtype, jnp.floating))

    def loss(*arguments: Any) -> jax.Array:
        return jnp.sum(jnp.square(case.function(implementation, *arguments)))

    step = jax.jit(jax.value_and_grad(loss, argnums=differentiable))
    return lambda: jax.block_until_ready(step(*case.arguments))


def main() -> int:
    """Entry point."""
    arguments = parse_arguments()
    pin(arguments.core)
    import jax.numpy as jnp
    from tqdm import tqdm

    cases = make_cases(arguments, jnp.dtype(arguments.dtype))
    chosen = [name for name in cases if not arguments.only or name in arguments.only]
    kinds = ("auto",) if arguments.no_reference else ("auto", "reference")
    measured: dict[str, list[float]] = {}
    results: dict[str, dict[str, Any]] = {}
    for name in tqdm(chosen, disable=not sys.stderr.isatty()):
        calls = {kind: make_call(cases[name], kind) for kind in kinds}
        times = time_alternating({**calls, **peak_calls()}, arguments.repeats)
        for key, seconds in times.items():
            if key not in kinds:
                measured.setdefault(key, []).extend(seconds)
        results[name] = {kind: figures(times[kind]) for kind in kinds}
    peak, machine = peaks(measured), describe_machine(arguments.core)
    print(f"{'kernel':<18} {'CPU-s':>8} {'of peak':>8} {'reference':>10} {'ratio':>6}   ({arguments.dtype})")
    for name, row in results.items():
        least = row["auto"]["least"]
        row["flops"] = cases[name].flops
        row["share_of_peak"] = cases[name].flops / least / 1e9 / peak[f"{arguments.dtype}_gflops"]
        reference = row.get("reference", {}).get("least", float("nan"))
        print(f"{name:<18} {least:8.4f} {row['share_of_peak']:8.1%} {reference:10.4f} {least / reference:6.2f}")
    print(say_peaks(peak))
    print(say_machine(machine))
    if arguments.json:
        shapes = {name: getattr(arguments, name) for name in SHAPES}
        write_results(
            arguments.json,
            {"machine": machine, "peak": peak, "dtype": arguments.dtype, "shapes": shapes, "kernels": results},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
