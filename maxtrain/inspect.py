"""`python -m maxtrain.inspect DATASET|RUN --step N [--row R]`: the documents of a batch, without replaying the run."""

import argparse
import json
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxtrain.checkpoint.steps import newest_record
from maxtrain.config.batch_plan import BatchPlan, Segment, Stage, plan_batches
from maxtrain.config.load import load_config
from maxtrain.config.schema import DataConfig
from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError, run_command
from maxtrain.dataset import MANIFEST, Dataset
from maxtrain.loader import Loader, Piece, compare_fingerprints
from maxtrain.tokenizer import Tokenizer

_DESCRIPTION = """\
Print the documents of the batch that a step reads: of a RUN directory with its config's mixture, of a DATASET
directory or URL with all of its training documents as one domain."""

_EPILOG = """\
examples:
  python -m maxtrain.inspect runs/first --step 120
  python -m maxtrain.inspect runs/first --step 120 --row 3
  python -m maxtrain.inspect runs/first --step 120 --row 3 --position 200 --json
  python -m maxtrain.inspect datasets/sample --step 0 --sequence-length 512

exit codes:
  0 done   2 bad command line, config or step, or no run there   3 dataset missing or damaged"""

_PREVIEW_TOKENS = 32
_PREVIEW_CHARACTERS = 72
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, private, unassigned, line and paragraph separators."""
_CONFIG = "config.yaml"
_DATASET_DEFAULTS = {"sequence_length": 2048, "batch_rows": 8, "seed": 0}
_MOST = 2**31 - 1
"""Largest step, size and seed."""
_MOST_ROWS = 2**16
"""Most rows of a batch: all are printed, unless one is named."""


@dataclass(frozen=True)
class _Subject:
    """What is inspected: a loader and its first step, row by row."""

    loader: Loader
    tokenizers: dict[str, Tokenizer]

    def text(self, piece: Piece, limit: int | None = None) -> str:
        """Text of a piece, or of its first tokens."""
        stop = piece.num_tokens if limit is None else min(piece.num_tokens, limit)
        first = piece.start_in_document
        return self._decode(piece, first, first + stop)

    def token_at(self, piece: Piece, position: int) -> tuple[int, str]:
        """Id and text of the token at a position of the row."""
        offset = piece.start_in_document + position - piece.start_in_row
        return int(piece.dataset.tokens(piece.document, offset, offset + 1)[0]), self._decode(piece, offset, offset + 1)

    def _decode(self, piece: Piece, start: int, stop: int) -> str:
        dataset = piece.dataset
        if dataset.tokenizer_hash not in self.tokenizers:
            self.tokenizers[dataset.tokenizer_hash] = Tokenizer.load(dataset.tokenizer_model())
        tokens = dataset.tokens(piece.document, start, stop)
        return self.tokenizers[dataset.tokenizer_hash].decode(tokens.tolist())


def _open_run(directory: Path) -> Loader:
    config = load_config(str(directory / _CONFIG))
    data = config.data.model_copy(update={"verify": "size"})
    loader = Loader(plan_batches(config), data=data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    newest = newest_record(directory / "checkpoints")
    if newest is None:
        print(f"note: {directory} has no checkpoint to hold its dataset against", file=sys.stderr)
    elif differences := compare_fingerprints(newest["fingerprint"], loader.fingerprint, newest["step"]):
        raise DataError(
            f"{directory}: the data is not what the run had read by step {newest['step']}: {'; '.join(differences)}; "
            "bring the dataset back that it was trained on"
        )
    return loader


def _open_dataset(location: str, args: argparse.Namespace) -> Loader:
    given = {name: getattr(args, name) for name in _DATASET_DEFAULTS if getattr(args, name) is not None}
    options = argparse.Namespace(**(_DATASET_DEFAULTS | given))
    dataset = Dataset.open(location, verify="size")
    data = DataConfig(dataset=location, sequence_length=options.sequence_length)
    num_steps = args.step + 1
    rows = num_steps * options.batch_rows
    stage = Stage(0, "inspect", location, data.mixture, options.sequence_length, 0, rows)
    plan = BatchPlan((Segment(stage, 0, num_steps, 0, options.batch_rows, 0),))
    return Loader(
        plan, data=data, seed=options.seed, vocab_size=dataset.vocab_size, open_dataset=lambda _, *, verify: dataset
    )


def _open(args: argparse.Namespace) -> _Subject:
    """Tell a run from a dataset by what lies in the directory."""
    subject = args.subject
    if not files.is_remote(subject) and (files.local_path(subject) / _CONFIG).is_file():
        given = [_option(name) for name in _DATASET_DEFAULTS if getattr(args, name) is not None]
        if given:
            raise UserError(f"{', '.join(given)}: only for a DATASET; {subject} is a run, and its config says it")
        return _Subject(_open_run(files.local_path(subject)), {})
    if files.exists(files.join(subject, MANIFEST)):
        return _Subject(_open_dataset(subject, args), {})
    told = f"{subject}: neither a run directory (no {_CONFIG}) nor a dataset (no {MANIFEST}); check the path"
    raise DataError(told) if files.is_remote(subject) else UserError(told)


def describe_row(subject: _Subject, step: int, position_in_batch: int, *, full: bool) -> dict[str, Any]:
    """One row as JSON; `full` gives whole texts instead of previews."""
    loader = subject.loader
    row = loader.plan.rows_of(step)[position_in_batch]
    pieces = [
        {
            "doc_id": piece.doc_id,
            "source": piece.source,
            "document": piece.document,
            "place": piece.dataset.documents.place(piece.document),
            "origin": piece.dataset.documents.origin(piece.document),
            "licence": piece.dataset.documents.licence(piece.document),
            "start_in_row": piece.start_in_row,
            "stop_in_row": piece.stop_in_row,
            "start_in_document": piece.start_in_document,
            "document_tokens": int(piece.dataset.documents.num_tokens[piece.document]),
            "text": subject.text(piece, None if full else _PREVIEW_TOKENS),
        }
        for piece in loader.trace(row)
    ]
    return {"row": row, "position_in_batch": position_in_batch, "domain": loader.domain_of(row), "pieces": pieces}


def describe_position(subject: _Subject, row: int, position: int) -> dict[str, Any]:
    """The token at one position of a row as JSON; null ids where it is padding."""
    for piece in subject.loader.trace(row):
        if piece.start_in_row <= position < piece.stop_in_row:
            token, text = subject.token_at(piece, position)
            offset = piece.start_in_document + position - piece.start_in_row
            return {"position": position, "token": token, "text": text, "doc_id": piece.doc_id, "offset": offset}
    return {"position": position, "token": None, "text": "", "doc_id": None, "offset": None}


def printable(text: str, limit: int | None = None) -> str:
    """Text on one line, safe for a terminal: characters that control it or that nothing shows are escaped."""
    shown = text if limit is None else text[:limit]
    clean = "".join(
        _escape(character) if unicodedata.category(character) in _UNSAFE else character for character in shown
    )
    return clean + ("…" if len(shown) < len(text) else "")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if character.isascii() else f"\\u{{{ord(character):x}}}"


def _print_row(row: dict[str, Any], *, full: bool) -> None:
    print(f"row {row['position_in_batch']}  (row {row['row']} of the run)  domain {printable(row['domain'])}")
    for piece in row["pieces"]:
        start = piece["start_in_document"]
        tokens = f"tokens [{start}, {start + piece['stop_in_row'] - piece['start_in_row']})"
        origin = f"  origin {printable(piece['origin'])}" if piece["origin"] else ""
        print(
            f"  [{piece['start_in_row']:>5}, {piece['stop_in_row']:>5})  {piece['doc_id']}  "
            f"{printable(piece['source'])}  {tokens} of {piece['document_tokens']}  "
            f"{printable(piece['place'])}{origin}  licence {printable(piece['licence'])}"
        )
        if full:
            print("".join(f"    {printable(line)}\n" for line in piece["text"].splitlines()), end="")
        else:
            print(f"    {printable(piece['text'], _PREVIEW_CHARACTERS)}")


def _print_position(token: dict[str, Any]) -> None:
    found = token["doc_id"] is not None
    what = f"id {token['token']} {printable(token['text'])!r}, token {token['offset']} of {token['doc_id']}"
    print(f"position {token['position']}: {what if found else 'padding'}")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m maxtrain.inspect",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", metavar="DATASET|RUN", help="dataset directory or URL, or run directory")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="step of the run, from 0")
    parser.add_argument("--row", type=int, metavar="R", help="one row of the batch, from 0, with its whole text")
    parser.add_argument("--position", type=int, metavar="P", help="with --row: the token at this position too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("for a DATASET, which has no config of its own")
    for name, letter, what in (
        ("sequence_length", "T", "tokens of a row"),
        ("batch_rows", "B", "rows of a batch"),
        ("seed", "S", "seed of the order"),
    ):
        text = f"{what} ({_DATASET_DEFAULTS[name]})"
        group.add_argument(_option(name), type=int, metavar=letter, help=text)
    args = parser.parse_args(arguments)
    bounds = (("step", 0, _MOST), ("sequence_length", 1, _MOST), ("batch_rows", 1, _MOST_ROWS), ("seed", 0, _MOST))
    for name, least, most in bounds:
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            raise UserError(f"{_option(name)} {value}: must be from {least} to {most}")
    if args.position is not None and args.row is None:
        raise UserError(f"--position {args.position}: needs --row")
    return args


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_bounds(args: argparse.Namespace, plan: BatchPlan) -> None:
    """Refuse a step, row or position that the run does not have."""
    if args.step >= plan.num_steps:
        raise UserError(f"--step {args.step}: the run has {plan.num_steps} steps, 0 to {plan.num_steps - 1}")
    batch_rows = len(plan.rows_of(args.step))
    if args.row is not None and not 0 <= args.row < batch_rows:
        raise UserError(f"--row {args.row}: the batch of step {args.step} has rows 0 to {batch_rows - 1}")
    length = plan.segment_at(args.step).stage.sequence_length
    if args.position is not None and not 0 <= args.position < length:
        raise UserError(f"--position {args.position}: a row of step {args.step} has positions 0 to {length - 1}")


def main(arguments: list[str] | None = None) -> int:
    """Print the documents of a batch.

    Returns:
        The exit code.
    """
    args = _parse(arguments)
    subject = _open(args)
    plan = subject.loader.plan
    _check_bounds(args, plan)
    full = args.row is not None
    wanted = [args.row] if full else range(len(plan.rows_of(args.step)))
    rows = [describe_row(subject, args.step, number, full=full) for number in wanted]
    length = plan.segment_at(args.step).stage.sequence_length
    answer: dict[str, Any] = {"step": args.step, "sequence_length": length, "rows": rows}
    if args.position is not None:
        answer["token"] = describe_position(subject, rows[0]["row"], args.position)
    if args.json:
        print(json.dumps(answer, ensure_ascii=False))
        return 0
    for row in rows:
        _print_row(row, full=full)
    if args.position is not None:
        _print_position(answer["token"])
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
