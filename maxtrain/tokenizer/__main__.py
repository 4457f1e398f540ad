"""`python -m maxtrain.tokenizer`: train, look at and use a tokenizer."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError, run_command
from maxtrain.core.lines import iterate_lines
from maxtrain.core.records import RecordError, parse_record, record_lines
from maxtrain.tokenizer.tokenizer import Tokenizer
from maxtrain.tokenizer.train import NUM_RESERVED, train_tokenizer

EPILOG = """\
examples:
  python -m maxtrain.tokenizer train data/sample/*.jsonl.zst --vocab-size 8192 --output tokenizer.model
  python -m maxtrain.tokenizer show datasets/sample/tokenizer.model
  python -m maxtrain.tokenizer encode tokenizer.model "Hello, 世界"

A corpus recipe with `tokenizer: {train: ...}` trains its own: python -m maxtrain.corpus build RECIPE.

exit codes: 0 done, 1 a file cannot be read or written, 2 wrong command line, 3 unusable input or tokenizer
"""


def read_texts(paths: Sequence[Path], skipped: dict[str, list[str]]) -> Iterator[str]:
    """Texts of .jsonl files (field `text`) and .txt files (one text each), .gz and .zst included.

    Args:
        paths: files, read in order.
        skipped: receives the place of every line that is no usable record, under the reason's name.

    Raises:
        DataError: a file's compressed data is damaged.
        UserError: a file is of another kind.
    """
    total = sum(path.stat().st_size for path in paths)
    with tqdm(total=total, desc="read", unit="B", unit_scale=True, delay=1, leave=False) as bar:

        def on_read(piece: bytes) -> None:
            bar.update(len(piece))

        for path in paths:
            kind = path.with_suffix("").suffix if path.suffix in (".gz", ".zst") else path.suffix
            if kind == ".txt":
                yield b"\n".join(iterate_lines(path, on_read)).decode("utf-8", "replace")
            elif kind == ".jsonl":
                yield from _record_texts(path, on_read, skipped)
            elif kind in (".yaml", ".yml"):
                raise UserError(f"{path}: a recipe trains its own tokenizer: python -m maxtrain.corpus build {path}")
            else:
                raise UserError(f"{path}: not a .jsonl or .txt file (.gz and .zst of them are read too)")


def _record_texts(path: Path, on_read: Callable[[bytes], None], skipped: dict[str, list[str]]) -> Iterator[str]:
    for number, line in record_lines(path, on_read):
        try:
            text = parse_record(line)["text"]
        except RecordError as error:
            skipped.setdefault(error.reason, []).append(f"{path}:{number}")
        else:
            yield text


def _check_output(output: Path) -> None:
    """Refuse an output that training cannot replace, before any work.

    Raises:
        DataError: something else than a tokenizer is there.
    """
    if output.is_file():
        try:
            Tokenizer.load(output.read_bytes())
            return
        except DataError:
            pass
    elif not output.exists():
        return
    raise DataError(f"{output}: holds something else than a tokenizer; choose another output or move it away")


def train(arguments: argparse.Namespace) -> int:
    """Train a tokenizer on files and write the model."""
    output = Path(arguments.output)
    if not output.parent.is_dir():
        raise UserError(f"{output.parent}: no such directory; make it first")
    _check_output(output)
    skipped: dict[str, list[str]] = {}
    tokenizer = train_tokenizer(
        read_texts([Path(name) for name in arguments.files], skipped),
        vocab_size=arguments.vocab_size,
        sample_bytes=arguments.sample_bytes,
        character_coverage=arguments.character_coverage,
        num_reserved=arguments.reserved,
    )
    if skipped:
        reasons = ", ".join(f"{reason} {len(places):,}" for reason, places in sorted(skipped.items()))
        first = next(iter(skipped.values()))[0]
        print(f"skipped lines that are no usable record: {reasons}; the first is {first}", file=sys.stderr)
    if output.exists() and not arguments.force and output.read_bytes() != tokenizer.model:
        raise DataError(f"{output}: exists and is another tokenizer; choose another output or replace it with --force")
    files.write_atomic(output, tokenizer.model)
    print(f"{output}: {tokenizer.vocab_size} ids, hash {tokenizer.hash}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print what a tokenizer is."""
    tokenizer = Tokenizer.load(arguments.model)
    facts = {
        "vocab_size": tokenizer.vocab_size,
        "hash": tokenizer.hash,
        "pad_id": tokenizer.pad_id,
        "bos_id": tokenizer.bos_id,
        "eod_id": tokenizer.eod_id,
        "unk_id": tokenizer.unk_id,
        "reserved": len(tokenizer.reserved_ids),
    }
    print(json.dumps(facts) if arguments.json else "\n".join(f"{name:<12}{value}" for name, value in facts.items()))
    return 0


def encode(arguments: argparse.Namespace) -> int:
    """Print the ids and pieces of a text."""
    tokenizer = Tokenizer.load(arguments.model)
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    ids = tokenizer.encode(text)
    if arguments.json:
        print(json.dumps({"ids": ids, "pieces": [tokenizer.piece(token) for token in ids]}, ensure_ascii=False))
        return 0
    print(" ".join(map(str, ids)))
    print(" ".join(repr(tokenizer.piece(token)) for token in ids))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.tokenizer",
        description="Train, look at and use a tokenizer (SentencePiece BPE with exact round trip).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("train", help="train on .jsonl and .txt files")
    command.add_argument("files", nargs="+", metavar="FILE", help=".jsonl (field text) or .txt, also .gz and .zst")
    command.add_argument("--vocab-size", type=int, required=True, help="number of ids, special tokens included")
    command.add_argument("--output", required=True, help="model file to write")
    command.add_argument("--sample-bytes", type=int, default=100_000_000, help="bytes of text to train on at most")
    command.add_argument(
        "--character-coverage", type=float, default=0.9995, help="share of characters with a piece of their own"
    )
    command.add_argument("--reserved", type=int, default=NUM_RESERVED, help="reserved special tokens")
    command.add_argument("--force", action="store_true", help="replace another tokenizer")
    command.set_defaults(run=train)
    command = commands.add_parser("show", help="print size, special ids and hash")
    command.add_argument("model")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=show)
    command = commands.add_parser("encode", help="print ids and pieces of a text")
    command.add_argument("model")
    command.add_argument("text", help="the text, or - for standard input")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=encode)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
