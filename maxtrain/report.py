"""Command: write a run's report and loss picture from its directory.

`python -m maxtrain.report RUN` writes `report.html`, a self-contained page that loads nothing, and `loss.png` into the
run directory. It works on a run that is still going and on a machine without JAX.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from maxtrain.core.errors import UserError, run_command

_EPILOG = """\
examples:
  python -m maxtrain.report runs/first
  python -m maxtrain.report runs/first --output pages/first --json

exit codes: 0 written; 1 the files cannot be written; 2 no such run, or none of its steps is finished;
3 a file of the run is damaged
"""


def write_report(run_directory: Path, output: Path | None = None) -> list[Path]:
    """Write `report.html` and `loss.png`; steps that the run has no metrics of are told on stderr.

    Args:
        run_directory: The run.
        output: Folder to write to, made if need be; None for the run directory.

    Returns:
        Paths of the page and the picture.

    Raises:
        UserError: there is no such run, or it has no finished step.
        DataError: a file of the run is damaged.
        OSError: the files cannot be written.
    """
    # Plotting takes most of a second to import; a command line error or --help should not wait for it.
    from datetime import UTC, datetime
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from maxtrain import __version__
    from maxtrain.core.files import write_atomic
    from maxtrain.monitor.charts import draw_charts, draw_loss_picture
    from maxtrain.monitor.page import missing_steps, page_values
    from maxtrain.monitor.record import read_run

    run = read_run(run_directory)
    if missing := missing_steps(run):
        path = run_directory / "metrics.jsonl"
        print(f"warning: {path}: no line of step {missing}; the report leaves a gap there", file=sys.stderr)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("maxtrain.monitor").joinpath("templates/report.html").read_text("utf-8"))
    page = template.render(
        **page_values(run),
        charts={name: Markup(svg) for name, svg in draw_charts(run).items()},  # noqa: S704  the SVG writer escapes
        version=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
    )
    folder = output if output is not None else run_directory
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; give a folder")
    picture = draw_loss_picture(run)
    paths = [folder / "report.html", folder / "loss.png"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(paths[0], page.encode())
        write_atomic(paths[1], picture)
    except OSError as error:
        cure = "give a folder that can be written with --output"
        raise OSError(error.errno, f"{folder}: the report cannot be written ({error.strerror}); {cure}") from None
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and print the paths.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.report",
        description="Write report.html and loss.png from a run directory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write to (default: RUN)")
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")
    options = parser.parse_args(arguments)
    page, picture = write_report(options.run, options.output)
    if options.json:
        print(json.dumps({"report": str(page), "picture": str(picture)}))
    else:
        print(f"report: {page}\nloss curve: {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
