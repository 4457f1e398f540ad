"""CPU-seconds and bytes moved of each exchange between tokens and experts, forward and backward.

    python tools/bench/dispatch.py --devices 8 --skew 1 --repeats 5

One process with emulated devices; figures are user + system CPU-seconds of all ranks together, the least of the
repeats, the share of the product peak measured in the same run that the experts' FLOPs are, and bytes that one rank
sends, read from the compiled program.
"""

import argparse
import math
import os
import re
import sys
import time
from typing import Any

from tools.bench.common import (
    describe_machine,
    peak_calls,
    peaks,
    say_machine,
    say_peaks,
    time_alternating,
    write_results,
)

SHAPES = {"batch": 8, "length": 512, "width": 256, "hidden": 512, "experts": 32, "top_k": 4}
"""The whole batch, divided over the ranks."""
KINDS = ("ring", "all_to_all", "dense")
"""The first is what the others are compared with; `ragged` runs on no CPU."""

_COLLECTIVE = re.compile(
    r"= (?P<shapes>.*?) (?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(.*?"
    r"replica_groups=(?:\[\d+,(?P<size>\d+)\]|\{\{(?P<group>[\d,]+)\})"
)
_SHAPE = re.compile(r"(pred|[a-z]+)(\d+)\[([\d,]*)\]")


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit code 0.")
    parser.add_argument("--devices", type=int, default=8, help="emulated ranks; 1 for the local computation alone")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="rows, operands of products"
    )
    parser.add_argument("--skew", type=float, default=0.0, help="popularity of experts: place^-skew; 0 for even")
    parser.add_argument("--factor", type=float, default=1.25, help="mesh.exchange_factor")
    parser.add_argument("--groups", type=int, default=1, help="groups of experts, of which a token uses --top-groups")
    parser.add_argument("--top-groups", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each exchange")
    parser.add_argument("--only", nargs="*", default=KINDS, choices=KINDS, help="exchanges")
    parser.add_argument("--json", metavar="FILE", help="write the results with the machine's description, too")
    for name, value in SHAPES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


def bytes_moved(text: str) -> dict[str, float]:
    """Bytes that a rank sends in the first round (the whole exchange, but for all_to_all) and in each further one.

    Args:
        text: a compiled program; what lies outside its entry computation belongs to the loops of further rounds.
    """
    moved, in_entry = {"first": 0.0, "further": 0.0}, False
    for line in text.splitlines():
        if line.endswith("{"):
            in_entry = line.startswith("ENTRY")
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        size = int(match["size"] or len(match["group"].split(",")))
        result = sum(
            int(bits) // 8 * math.prod(map(int, dims.split(",") if dims else ()))
            for _, bits, dims in _SHAPE.findall(match["shapes"])
        )
        sent = {"reduce-scatter": result * (size - 1), "all-reduce": 2 * result * (size - 1) / size}
        moved["first" if in_entry else "further"] += sent.get(match["kind"], result * (size - 1) / size)
    return moved


def make_inputs(shape: argparse.Namespace, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Differentiable inputs, and the experts of each token."""
    import jax
    import jax.numpy as jnp

    from maxtrain.config.schema import MoeConfig
    from maxtrain.model.routing import choose_experts

    keys = jax.random.split(jax.random.key(0), 5)
    tokens = shape.batch, shape.length
    moe = MoeConfig(
        num_experts=shape.experts,
        top_k=shape.top_k,
        d_expert=shape.hidden,
        num_groups=shape.groups,
        top_groups=shape.top_groups,
    )
    popularity = -shape.skew * jnp.log1p(jnp.arange(shape.experts, dtype=jnp.float32))
    logits = popularity + jax.random.gumbel(keys[0], (*tokens, shape.experts))
    routing = choose_experts(logits, jnp.zeros(shape.experts), moe)

    def weights(key: jax.Array, *sizes: int) -> jax.Array:
        return 0.05 * jax.random.normal(key, (shape.experts, *sizes))

    inputs = {
        "x": jax.random.normal(keys[1], (*tokens, shape.width), dtype),
        "weight": routing.weight_BTk,
        "gate": weights(keys[2], shape.width, shape.hidden),
        "up": weights(keys[3], shape.width, shape.hidden),
        "down": weights(keys[4], shape.hidden, shape.width),
    }
    return inputs, routing.index_BTk


def measure(kind: str, shape: argparse.Namespace) -> dict[str, Any]:
    """CPU-seconds and bytes of one exchange, and the rounds that its load needs."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from maxtrain.config.schema import MeshConfig
    from maxtrain.model.kernels.experts import experts
    from maxtrain.parallel.exchange import Exchange, sharded_experts
    from maxtrain.parallel.mesh import make_mesh
    from maxtrain.parallel.rules import ACTIVATION_RULES, PARAMETER_RULES, to_partition_spec

    mesh = make_mesh(MeshConfig(expert=shape.devices))
    dtype = jnp.dtype(shape.dtype)
    exchange = Exchange(kind, shape.factor, num_groups=shape.groups, top_groups=shape.top_groups)  # type: ignore[arg-type]
    inputs, index = make_inputs(shape, dtype)
    tokens = NamedSharding(mesh, to_partition_spec(("batch", "sequence"), ACTIVATION_RULES))
    held = NamedSharding(mesh, to_partition_spec(("expert",), PARAMETER_RULES))
    places = {name: tokens if name in ("x", "weight") else held for name in inputs}
    implementation: Any = "reference" if kind == "dense" else "auto"

    def compute(*arguments: Any, **options: Any) -> jax.Array:
        return experts(*arguments, **options, activation="swiglu", compute_dtype=dtype, implementation=implementation)

    def loss(inputs: dict[str, jax.Array], index: jax.Array) -> jax.Array:
        y, _ = sharded_experts(
            inputs["x"],
            index,
            inputs["weight"],
            inputs["gate"],
            inputs["up"],
            inputs["down"],
            mesh=mesh,
            exchange=exchange,
            compute=compute,
        )
        return jnp.sum(jnp.square(y.astype(jnp.float32)))

    arguments = jax.device_put(inputs, places), jax.device_put(index, tokens)
    step = jax.jit(jax.grad(loss), out_shardings=places).lower(*arguments).compile()
    jax.block_until_ready(step(*arguments))
    least = math.inf
    for _ in range(shape.repeats):
        start = time.process_time()
        jax.block_until_ready(step(*arguments))
        least = min(least, time.process_time() - start)
    rounds = count_rounds(exchange, shape, index) if kind == "all_to_all" else 1
    return {"cpu_seconds": least, "rounds": rounds, **bytes_moved(step.as_text() or "")}


def count_rounds(exchange: Any, shape: argparse.Namespace, index: Any) -> int:
    """Rounds that all ranks together need."""
    from maxtrain.parallel.delivery import pack
    from maxtrain.parallel.exchange import make_carrier

    if shape.devices == 1:
        return 1
    index_RNk = index.reshape(shape.devices, -1, shape.top_k)
    num_rows = index_RNk.shape[1]
    carrier = make_carrier(exchange, (), shape.devices, shape.experts // shape.devices, num_rows, shape.top_k)
    return max(int(pack(carrier, index_Nk)[1]) for index_Nk in index_RNk)


def main() -> int:
    """Entry point."""
    arguments = parse_arguments()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_NUM_CPU_DEVICES"] = str(arguments.devices)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    from tqdm import tqdm

    chosen = [kind for kind in KINDS if kind in arguments.only]
    results = {kind: measure(kind, arguments) for kind in tqdm(chosen, disable=not sys.stderr.isatty())}
    peak = peaks(time_alternating(peak_calls(), arguments.repeats))
    machine = describe_machine(None)
    flops = 3 * 3 * 2 * arguments.batch * arguments.length * arguments.top_k * arguments.width * arguments.hidden
    for row in results.values():
        row["share_of_peak"] = flops / row["cpu_seconds"] / 1e9 / peak[f"{arguments.dtype}_gflops"]
    shown = {name: getattr(arguments, name) for name in (*SHAPES, "devices", "dtype", "skew", "factor")}
    print(say_machine(machine))
    print(say_peaks(peak))
    print(", ".join(f"{key} {value}" for key, value in shown.items()))
    if arguments.json:
        write_results(arguments.json, {"machine": machine, "peak": peak, "shapes": shown, "exchanges": results})
    first = results[chosen[0]]
    heads = f"{'exchange':<12} {'CPU-s':>8} {'of peak':>8} {'ratio':>6} {'MB sent':>9} {'ratio':>6} {'rounds':>7}"
    print(f"{heads}   (a further round: MB)")
    for kind, row in results.items():
        sent = row["first"] + (row["rounds"] - 1) * row["further"]
        share = sent / first["first"] if first["first"] else math.nan
        print(
            f"{kind:<12} {row['cpu_seconds']:8.3f} {row['share_of_peak']:8.1%} "
            f"{row['cpu_seconds'] / first['cpu_seconds']:6.2f} {sent / 1e6:9.2f} "
            f"{share:6.2f} {row['rounds']:7d}   {row['further'] / 1e6:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
