"""Command: print where the time of a run's profiled steps went.

`python -m maxtrain.profile RUN` reads the tables in RUN/profile/, which a run with `profile.steps` writes. It works on
a machine without JAX.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from maxtrain.core.errors import UserError, run_command
from maxtrain.monitor.step_profile import read_profiles, to_markdown

_EPILOG = """\
examples:
  python -m maxtrain.train configs/learning/first.yaml profile.steps=[10,15]
  python -m maxtrain.profile runs/first
  python -m maxtrain.profile runs/first --json

The trace itself lies in RUN/profile/plugins/ and opens in TensorBoard, XProf or Perfetto.

exit codes: 0 printed; 2 no such run, or no profile in it; 3 a file of the profile is damaged
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        "python -m maxtrain.profile",
        description="Print where the time of a run's profiled steps went.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object a profile")
    args = parser.parse_args(arguments)
    profiles = read_profiles(args.run / "profile")
    if not profiles:
        raise UserError(f"{args.run}: no profile; train with profile.steps=[10,15] to make one")
    for profile in profiles:
        print(json.dumps(asdict(profile)) if args.json else to_markdown(profile))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
