"""Command: whether a config's activations keep their size as the model grows, so that its learning rate transfers.

`python -m maxtrain.coordinate_check CONFIG --widths 64 128 256` trains a few steps at each width and prints how far
every activation moved, with the exponent of that against the width: 0 is flat.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxtrain.config import check_or_raise
from maxtrain.config.load import validate
from maxtrain.config.merge import load_source
from maxtrain.core.errors import ExitCode, UserError, run_command

_EPILOG = """\
examples:
  python -m maxtrain.coordinate_check configs/learning/dense.yaml --widths 64 128 256
  python -m maxtrain.coordinate_check configs/learning/dense.yaml \\
    'model.parametrization={kind: mup, base_d_model: 64}' --widths 64 128 256
  python -m maxtrain.coordinate_check CONFIG --depths 2 4 8 --plot coordinates.png --json

exit codes: 0 flat; 1 a file cannot be read or written; 2 bad command line, config or size;
6 an activation drifts: its exponent is over the tolerance
"""


_MOST_STEPS = 10_000


def format_sweep(axis: str, found: dict[str, Any]) -> str:
    """A table of the changes by activation and size, with the exponents."""
    sizes = list(found["changes"])
    lines = [f"{'change, ' + axis:<16}" + "".join(f"{size:>12}" for size in sizes) + f"{'exponent':>12}"]
    for name, slope in found["slopes"].items():
        changes = "".join(f"{found['changes'][size][name]:>12.4g}" for size in sizes)
        verdict = "  drifts" if name in found["drifting"] else ""
        lines.append(f"{name:<16}{changes}{slope:>+12.3f}{verdict}")
    return "\n".join(lines)


def write_plot(path: Path, found: dict[str, Any]) -> None:
    """Draw every activation's change against the size, on logarithmic axes.

    Raises:
        OSError: the file cannot be written.
        UserError: the name's ending is no picture format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(found), 4), layout="constrained")
    for axes, (axis, values) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for name in values["slopes"]:
            axes.loglog(list(values["changes"]), [changes[name] for changes in values["changes"].values()], ".-")
        axes.legend(list(values["slopes"]), fontsize="small")
        axes.set(xlabel=axis, ylabel="RMS of the change", xticks=list(values["changes"]))
        axes.set_xticklabels(map(str, values["changes"]))
        axes.minorticks_off()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UserError(f"--plot {path}: {error}; name it .png, .svg or .pdf") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and judge.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.coordinate_check",
        description="Train a few steps on random tokens at several widths or depths and compare how far activations "
        "move. Widths scale heads, d_ff and d_expert along; the rate is schedule.lr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides")
    parser.add_argument("--widths", type=int, nargs="+", default=[], metavar="D", help="values of model.d_model")
    parser.add_argument("--depths", type=int, nargs="+", default=[], metavar="L", help="values of model.num_layers")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="updates (default: 4)")
    parser.add_argument("--tolerance", type=float, default=0.25, metavar="P", help="of exponents (default: 0.25)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the changes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_intermixed_args(arguments)
    for name in ("widths", "depths"):
        sizes = getattr(options, name)
        if sizes and (len(set(sizes)) < 2 or min(sizes) < 1):
            raise UserError(f"--{name} {' '.join(map(str, sizes))}: give two sizes or more, each at least 1")
    if not options.widths and not options.depths:
        raise UserError("nothing to compare: give --widths, --depths or both")
    if not 1 <= options.steps <= _MOST_STEPS:
        raise UserError(f"--steps {options.steps}: must be from 1 to {_MOST_STEPS:,}")
    if not 0 < options.tolerance < math.inf:
        raise UserError(f"--tolerance {options.tolerance:g}: must be a number over 0")
    source = load_source(options.config, options.overrides)
    config = validate(source)
    check_or_raise(config, name=source.name, origins=source.origins)

    from maxtrain.train.coordinates import sweep

    found = sweep(config, options.steps, options.tolerance, widths=options.widths, depths=options.depths)
    if options.plot is not None:
        write_plot(options.plot, found)
    flat = not any(values["drifting"] for values in found.values())
    if options.json:
        print(json.dumps({**found, "tolerance": options.tolerance, "flat": flat}))
    else:
        print("\n\n".join(format_sweep(axis, values) for axis, values in found.items()))
    return int(ExitCode.OK if flat else ExitCode.STOPPED)


if __name__ == "__main__":
    sys.exit(run_command(main))
