"""The command line of checkpoints: list, verify, show."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from maxtrain.checkpoint.commit import read_manifest
from maxtrain.checkpoint.layout import find_checkpoints, quarantine_note, step_directories, step_name
from maxtrain.checkpoint.steps import StepInfo, iterate_steps, judge_step
from maxtrain.core.errors import CheckpointError, ExitCode, UserError, run_command

_DESCRIPTION = "Look at the checkpoints of a run, on any machine; JAX is not needed."
_EPILOG = """\
examples:
  python -m maxtrain.checkpoint list runs/first
  python -m maxtrain.checkpoint verify runs/first --step 256
  python -m maxtrain.checkpoint show runs/first --json | jq .record.fingerprint

exit codes:
  0  done; with verify: every step asked for is verified
  2  bad command line, or no checkpoints directory there
  4  a step is not verified or does not exist
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.checkpoint",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    helps = {
        "list": "a table of the steps: size, verified, health, reason",
        "verify": "hash every file and hold it against the commit record",
        "show": "what a step says of itself (the newest verified one unless --step)",
    }
    for verb, text in helps.items():
        sub = verbs.add_parser(verb, help=text, description=text)
        sub.add_argument("run", type=Path, metavar="RUN", help="run directory, or its checkpoints directory")
        sub.add_argument("--step", type=int, help="only this step")
        sub.add_argument("--json", action="store_true", help="write JSON to stdout")
        if verb == "list":
            sub.add_argument("--quick", action="store_true", help="check presence and sizes of files, not their hashes")
    return parser


def _size(num_bytes: int) -> str:
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _judge(directory: Path, step: int | None, full: bool) -> list[StepInfo]:
    """The step asked for, or all."""
    paths = step_directories(directory)
    if step is None:
        progress = tqdm(iterate_steps(directory, full=full), "verify", len(paths), unit="step", disable=None)
        return list(progress)
    if step not in paths:
        known = ", ".join(map(str, paths)) or "none"
        raise CheckpointError(f"{directory}: there is no step {step}; there are: {known}")
    return [judge_step(directory, step, full=full)]


def _as_json(info: StepInfo) -> dict[str, Any]:
    return {
        "step": info.step,
        "num_bytes": info.num_bytes,
        "verified": info.verified,
        "health": info.health,
        "reason": info.reason,
        "path": str(info.path),
    }


def _judgement(info: StepInfo) -> str:
    """The verdict on a verified step, in words."""
    return f"verified, {info.health}" + (f" ({info.reason})" if info.reason else "")


def _print_table(infos: list[StepInfo]) -> None:
    rows = [("step", "size", "verified", "health", "reason")]
    rows += [
        (str(info.step), _size(info.num_bytes), "yes" if info.verified else "no", info.health or "-", info.reason)
        for info in infos
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        step, size = row[0].rjust(widths[0]), row[1].rjust(widths[1])
        print(f"{step}  {size}  {row[2].ljust(widths[2])}  {row[3].ljust(widths[3])}  {row[4]}".rstrip())


def _list(directory: Path, step: int | None, as_json: bool, *, full: bool) -> ExitCode:
    infos = _judge(directory, step, full)
    if as_json:
        print(json.dumps([_as_json(info) for info in infos], indent=1, ensure_ascii=False))
    elif infos:
        _print_table(infos)
    else:
        print("no step is committed")
        if note := quarantine_note(directory):
            print(note)
    return ExitCode.OK


def _verify(directory: Path, step: int | None, as_json: bool) -> ExitCode:
    infos = _judge(directory, step, True)
    bad = [info for info in infos if not info.verified]
    if as_json:
        print(json.dumps([_as_json(info) for info in infos], indent=1, ensure_ascii=False))
    else:
        for info in infos:
            print(f"{info.path.name}: {_judgement(info)}, {_size(info.num_bytes)}" if info.verified else info.reason)
    if not infos:
        raise CheckpointError(f"{directory}: no step is committed")
    return ExitCode.CHECKPOINT if bad else ExitCode.OK


def _show(directory: Path, step: int | None, as_json: bool) -> ExitCode:
    infos = iterate_steps(directory, newest_first=True) if step is None else iter(_judge(directory, step, True))
    info = next((info for info in infos if info.verified or step is not None), None)
    if info is None:
        raise CheckpointError(f"{directory}: no step is verified")
    if not info.verified:
        raise CheckpointError(info.reason)
    manifest = read_manifest(directory / step_name(info.step))
    if as_json:
        print(json.dumps(manifest | {"health": info.health, "reason": info.reason}, indent=1, ensure_ascii=False))
        return ExitCode.OK
    print(f"{info.path.name}: {_judgement(info)}")
    print(f"  arrays: {len(manifest['leaves'])} of {_size(manifest['num_bytes'])}; on disk {_size(info.num_bytes)}")
    for key, value in manifest["record"].items():
        text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, ensure_ascii=False)
        print(f"  {key}: {text if len(text) <= 100 else text[:97] + '...'}")
    return ExitCode.OK


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)

    def command() -> int:
        directory = find_checkpoints(arguments.run)
        if arguments.step is not None and arguments.step < 0:
            raise UserError(f"--step {arguments.step}: a step is 0 or more")
        if arguments.verb == "list":
            return _list(directory, arguments.step, arguments.json, full=not arguments.quick)
        return (_verify if arguments.verb == "verify" else _show)(directory, arguments.step, arguments.json)

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
