"""`python -m maxtrain.corpus`: build datasets and look at them."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from maxtrain.core.errors import run_command

EPILOG = """\
examples:
  python -m maxtrain.corpus build data/recipes/sample.yaml
  python -m maxtrain.corpus build data/recipes/sample.yaml --output datasets/other --json
  python -m maxtrain.corpus show datasets/sample
  python -m maxtrain.corpus verify s3://bucket/datasets/sample

exit codes: 0 done (or up to date), 1 a file cannot be read or written, 2 wrong command line or recipe,
3 unusable inputs, damaged dataset, or another dataset in the output, 5 another process writes the output
"""


# What the commands need is imported in them, so that --help and a wrong command line answer at once.
def _build(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.build import build
    from maxtrain.corpus.recipe import load_recipe
    from maxtrain.corpus.summary import summarise
    from maxtrain.dataset import QUARANTINE, Dataset

    path = Path(arguments.recipe)
    built = build(load_recipe(path), path.parent, output=arguments.output, force=arguments.force)
    if arguments.json:
        print(json.dumps(summarise(Dataset.open(str(built.output), verify="none"))))
        return 0
    totals = built.manifest.totals
    state = "up to date" if built.up_to_date else "built"
    print(f"{built.output}: {state}, {totals.documents:,} documents, {totals.tokens:,} tokens, {totals.bytes:,} bytes")
    dropped = built.manifest.rules["read"].dropped
    if dropped and not built.up_to_date:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
        print(f"{sum(dropped.values()):,} lines quarantined in {built.output / QUARANTINE}: {reasons}", file=sys.stderr)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.summary import as_text, summarise
    from maxtrain.dataset import Dataset

    summary = summarise(Dataset.open(arguments.dataset, verify="size"))
    print(json.dumps(summary) if arguments.json else as_text(summary))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from maxtrain.dataset import Dataset, verify_only_own_files

    dataset = Dataset.open(arguments.dataset, verify="full")
    verify_only_own_files(dataset.location, dataset.manifest)
    totals = dataset.manifest.totals
    if arguments.json:
        facts = {"location": dataset.location, "manifest_hash": dataset.manifest_hash, **totals.model_dump()}
        print(json.dumps(facts))
        return 0
    size = f"{totals.documents:,} documents, {totals.tokens:,} tokens in {len(dataset.manifest.shards):,} shards"
    print(f"{dataset.location}: sound, {size}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.corpus",
        description="Build tokenised datasets from tagged JSON lines, and look at them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("build", help="build the dataset of a recipe; nothing to do where it is up to date")
    command.add_argument("recipe", help="YAML recipe")
    command.add_argument(
        "--output", metavar="DIR", help="directory to write instead of the recipe's, relative to where the command runs"
    )
    command.add_argument("--force", action="store_true", help="replace another dataset in the output")
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    command.set_defaults(run=_build)
    command = commands.add_parser("show", help="documents, tokens and bytes by tag, split and licence; rules")
    command.add_argument("dataset", help="directory or URL")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_show)
    command = commands.add_parser("verify", help="check every hash and token id, and that no other file lies there")
    command.add_argument("dataset", help="directory or URL")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_verify)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
