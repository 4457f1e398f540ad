"""`python -m maxtrain.corpus`: build datasets and look at them."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maxtrain.core.errors import UserError, run_command

if TYPE_CHECKING:
    from maxtrain.dataset import Dataset

EPILOG = """\
examples:
  python -m maxtrain.corpus build data/recipes/sample.yaml
  python -m maxtrain.corpus build data/recipes/sample.yaml --output datasets/other --json
  python -m maxtrain.corpus show datasets/sample
  python -m maxtrain.corpus verify s3://bucket/datasets/sample
  python -m maxtrain.corpus build recipe.yaml --workers 2 --memory 2GB
  python -m maxtrain.corpus build recipe.yaml --runner ray --address 10.0.0.1:6379 --workers 64
  python -m maxtrain.corpus explain datasets/sample https://example.org/page
  python -m maxtrain.corpus diff datasets/before datasets/after
  python -m maxtrain.corpus sample datasets/sample --rule boilerplate --output boilerplate.html
  python -m maxtrain.corpus stats datasets/sample --output statistics.html

exit codes: 0 done (or up to date), 1 a file cannot be read or written, 2 wrong command line or recipe,
3 unusable inputs, damaged dataset, or another dataset in the output, 5 another process writes the output
"""


# What the commands need is imported in them, so that --help and a wrong command line answer at once.
def _build(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.build import build
    from maxtrain.corpus.engine import Options
    from maxtrain.corpus.recipe import load_recipe
    from maxtrain.corpus.summary import summarise
    from maxtrain.dataset import QUARANTINE, Dataset

    path = Path(arguments.recipe)
    options = Options(arguments.runner, arguments.address, arguments.workers, arguments.memory)
    built = build(load_recipe(path), path.parent, output=arguments.output, force=arguments.force, options=options)
    if arguments.json:
        print(json.dumps(summarise(Dataset.open(str(built.output), verify="none"))))
        return 0
    totals = built.manifest.totals
    state = "up to date" if built.up_to_date else "built"
    print(f"{built.output}: {state}, {totals.documents:,} documents, {totals.tokens:,} tokens, {totals.bytes:,} bytes")
    dropped = built.manifest.rules["read"].dropped
    if dropped and not built.up_to_date:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
        number = f"{sum(dropped.values()):,} records quarantined in {built.output / QUARANTINE}"
        print(f"{number}: {reasons}", file=sys.stderr)
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


def _explain(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from maxtrain.corpus.report.explain import as_text, explain

    stories = explain(_local(arguments.dataset), arguments.document)
    for story in stories:
        print(json.dumps(asdict(story), ensure_ascii=False) if arguments.json else as_text(story))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.report.compare import as_text, compare

    told = compare(_local(arguments.first), _local(arguments.second))
    print(json.dumps(told, ensure_ascii=False) if arguments.json else as_text(told))
    return 0


def _sample(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from maxtrain.corpus.report.pages import samples_of, samples_page

    dataset = _local(arguments.dataset)
    if arguments.json:
        for sample in samples_of(dataset, arguments.rule, arguments.reason):
            print(json.dumps(asdict(sample), ensure_ascii=False))
        return 0
    _write(arguments.output or f"{arguments.rule}.html", samples_page(dataset, arguments.rule, arguments.reason))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.report.pages import statistics_page
    from maxtrain.corpus.report.statistics import statistics

    dataset = _local(arguments.dataset)
    if arguments.json:
        print(json.dumps(statistics(dataset), ensure_ascii=False))
        return 0
    _write(arguments.output or "statistics.html", statistics_page(dataset))
    return 0


def _card(arguments: argparse.Namespace) -> int:
    from maxtrain.corpus.report.statistics import card

    text = card(_local(arguments.dataset))
    if arguments.output:
        _write(arguments.output, text)
    else:
        print(text, end="")
    return 0


def _local(location: str) -> "Dataset":
    """A dataset on this machine, whose ledger can be asked."""
    from maxtrain.core.files import local_path
    from maxtrain.dataset import Dataset

    return Dataset.open(str(local_path(location)), verify="size")


def _write(path: str, text: str) -> None:
    """Write a page and say where.

    Raises:
        UserError: there is no such folder.
    """
    from maxtrain.core.files import write_atomic

    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"--output {path}: no such folder; make it first")
    write_atomic(path, text.encode())
    print(path)


_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?b?)", text.strip().lower())
    unit = match and (match[2] if match[2] in _UNITS else f"{match[2]}b")
    if not match or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r}: should be a size such as 1500MB, 2GB or 4GiB")
    return int(float(match[1]) * _UNITS[unit])


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r}: should be a whole number from 1 to 65,536")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.corpus",
        description="Build tokenised datasets from raw files, and answer for what is in them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], about: str, json_help: str | None = "print JSON"
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about)
        command.set_defaults(run=run)
        if json_help is not None:
            command.add_argument("--json", action="store_true", help=json_help)
        return command

    command = add("build", _build, "build the dataset of a recipe; nothing to do where it is up to date")
    command.add_argument("recipe", help="YAML recipe")
    command.add_argument(
        "--output", metavar="DIR", help="directory to write instead of the recipe's, relative to where the command runs"
    )
    command.add_argument("--force", action="store_true", help="replace another dataset in the output")
    command.add_argument("--workers", type=_positive, help="tasks at once (default: one a core that the memory holds)")
    command.add_argument("--memory", type=_bytes, default=2 * 10**9, help="that local workers may take (default: 2GB)")
    command.add_argument("--runner", choices=("native", "ray"), default="native", help="this machine, or a Ray cluster")
    command.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster")
    for name, run, about in (
        ("show", _show, "documents, tokens and bytes by tag, split and licence; rules"),
        ("verify", _verify, "check every hash and token id, and that no other file lies there"),
    ):
        add(name, run, about).add_argument("dataset", help="directory or URL")
    command = add("explain", _explain, "what became of a document, and by which rule", "print JSON, a line each")
    command.add_argument("dataset", help="directory")
    command.add_argument("document", help="its doc_id, URL, or FILE:LINE of the inputs")
    command = add("diff", _diff, "what differs between two datasets, to the document")
    command.add_argument("first", help="directory")
    command.add_argument("second", help="directory")
    command = add("sample", _sample, "a page of documents before and after a rule", "print JSON, a line each")
    command.add_argument("dataset", help="directory")
    command.add_argument("--rule", required=True, help="the rule's name in the recipe")
    command.add_argument("--reason", help="only documents dropped for this reason")
    command.add_argument("--output", metavar="FILE", help="HTML file to write (default: RULE.html)")
    command = add("stats", _stats, "a page: funnel, mixture, lengths, quality, kept shares")
    command.add_argument("dataset", help="directory")
    command.add_argument("--output", metavar="FILE", help="HTML file to write (default: statistics.html)")
    command = add("card", _card, "the data card: contents, licences, rules, inputs, as Markdown", None)
    command.add_argument("dataset", help="directory")
    command.add_argument("--output", metavar="FILE", help="file to write (default: print)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
