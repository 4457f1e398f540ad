"""What a config amounts to: parameters, bytes of the state, operations a token, steps; no devices, no JAX."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from maxtrain.config import Config, check_or_raise
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import validate
from maxtrain.config.merge import load_source
from maxtrain.core.errors import run_command
from maxtrain.plan import count_parameters, state_bytes, training_flops_per_token

EPILOG = """\
examples:
  python -m maxtrain.plan configs/research/moe_1b.yaml
  python -m maxtrain.plan configs/learning/first.yaml model.num_layers=8 --json

exit codes:
  0  printed
  1  a file could not be read
  2  bad command line or config
"""


def plan_run(config: Config) -> dict[str, Any]:
    """All figures of a config that has passed its checks, as plain data.

    Returns:
        parameters {total, active, components}, state_bytes {parameters, moments, counters, total},
        segments of the run with their operations a token, num_steps, num_tokens, training_flops.
    """
    count, state, plan = count_parameters(config.model), state_bytes(config), plan_batches(config)
    segments: list[dict[str, Any]] = []
    for segment in plan.segments:
        flops = training_flops_per_token(config.model, segment.stage.sequence_length)
        segments.append(
            {
                "stage": segment.stage.name,
                "first_step": segment.first_step,
                "num_steps": segment.num_steps,
                "sequence_length": segment.stage.sequence_length,
                "batch_rows": segment.batch_rows,
                "batch_tokens": segment.step_tokens,
                "tokens": segment.num_steps * segment.step_tokens,
                "flops_per_token": {"matmul": flops.matmul, "attention": flops.attention, "total": flops.total},
            }
        )
    return {
        "parameters": {
            "total": count.total,
            "active": count.active,
            "components": [vars(component) for component in count.components],
        },
        "state_bytes": {**vars(state), "total": state.total},
        "segments": segments,
        "num_steps": plan.num_steps,
        "num_tokens": plan.num_tokens,
        "training_flops": sum(part["tokens"] * part["flops_per_token"]["total"] for part in segments),
    }


def format_plan(figures: dict[str, Any]) -> str:
    """Lay the figures of `plan_run` out as tables."""
    parameters = figures["parameters"]
    lines = [f"{'parameters':<20}{'total':>22}{'active':>22}  {'layers':>6}  formula (of one layer)"]
    for part in parameters["components"]:
        layers = part["layers"] or "-"
        lines.append(f"{part['name']:<20}{part['total']:>22,}{part['active']:>22,}  {layers:>6}  {part['formula']}")
    share = parameters["active"] / parameters["total"]
    lines.append(f"{'sum':<20}{parameters['total']:>22,}{parameters['active']:>22,}  active {share:.2%}")
    lines += ["", f"{'state':<20}{'bytes':>22}"]
    lines += [f"{name:<20}{size:>22,}  {size / 2**30:>10.4g} GiB" for name, size in figures["state_bytes"].items()]
    lines += [
        "",
        f"{'stage':<16}{'steps':>12}{'rows':>8}{'sequence':>10}{'batch tokens':>15}{'tokens':>22}  GFLOPs a token",
    ]
    for part in figures["segments"]:
        gigaflops = part["flops_per_token"]["total"] / 1e9
        lines.append(
            f"{part['stage']:<16}{part['num_steps']:>12,}{part['batch_rows']:>8,}{part['sequence_length']:>10,}"
            f"{part['batch_tokens']:>15,}{part['tokens']:>22,}  {gigaflops:.4g}"
        )
    lines.append(
        f"{'sum':<16}{figures['num_steps']:>12,}{'':>33}{figures['num_tokens']:>22,}  "
        f"{figures['training_flops']:.4g} FLOPs in all"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.plan",
        description="Print a config's parameters by component, the bytes of its state as all devices hold it together "
        "(and a checkpoint too), its training FLOPs a token (forward and backward, "
        "causal attention over whole rows, recompute not counted) and its steps.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_intermixed_args(arguments)

    def command() -> None:
        source = load_source(options.config, options.overrides)
        config = validate(source)
        check_or_raise(config, name=source.name, origins=source.origins)
        figures = plan_run(config)
        print(json.dumps(figures, indent=2) if options.json else format_plan(figures))

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
