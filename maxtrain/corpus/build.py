"""Build a dataset from a recipe: read, leave out, split, tokenise, write."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from maxtrain import __version__
from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.corpus.inputs import InputFile, find_inputs
from maxtrain.corpus.recipe import FilterConfig, Recipe
from maxtrain.corpus.records import BadLine, RawRecord, read_records
from maxtrain.dataset import (
    QUARANTINE,
    TRAIN_SPLIT,
    Dataset,
    DatasetWriter,
    Document,
    History,
    InputRecord,
    Manifest,
    RuleCounts,
    TokenizerRecord,
    check_replaceable,
    document_id,
    holds_dataset,
    read_manifest,
)
from maxtrain.tokenizer import Tokenizer, train_tokenizer

BUILD_VERSION = 1
"""Raise it with every change by which the same recipe and inputs give other documents, tokens, splits or quarantined
lines, so that no dataset built before is taken for up to date."""
_BATCH_CHARACTERS = 2**20


@dataclass(frozen=True)
class Item:
    """A record that stays, with its identity and split."""

    record: RawRecord
    doc_id: str
    split: str


def split_of(doc_id: str, splits: Mapping[str, float]) -> str:
    """The split of a document: a hash of its id falls in one of the shares laid end to end, or in the rest."""
    digest = hashlib.sha256(b"split\0" + doc_id.encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    edge = 0.0
    for name, fraction in splits.items():
        edge += fraction
        if place < edge:
            return name
    return TRAIN_SPLIT


class Reading:
    """One pass over the inputs; afterwards it knows what each rule did.

    Args:
        recipe: what stays.
        inputs: files to read.
        on_bad: called with every line that is no usable record.
    """

    def __init__(
        self,
        recipe: Recipe,
        inputs: Sequence[InputFile],
        on_bad: Callable[[BadLine], Any] | None = None,
    ) -> None:
        self._recipe = recipe
        self._inputs = inputs
        self._on_bad = on_bad
        self._kept = Counter[str]()
        self._dropped: dict[str, Counter[str]] = {"read": Counter(), "filter": Counter()}
        self._first_bad: BadLine | None = None

    def items(self, title: str) -> Iterator[Item]:
        """Records that stay, in the order of files and lines.

        Raises:
            DataError: a file has changed; at the end, where no record stays.
        """
        total = sum(file.path.stat().st_size for file in self._inputs)
        with tqdm(total=total, desc=title, unit="B", unit_scale=True, delay=1, leave=False) as bar:
            for file in self._inputs:
                for record in _unchanged_records(file, bar):
                    if isinstance(record, BadLine):
                        self._dropped["read"][record.reason] += 1
                        self._first_bad = self._first_bad or record
                        if self._on_bad is not None:
                            self._on_bad(record)
                        continue
                    self._kept["read"] += 1
                    if reason := drop_reason(record, self._recipe.filters):
                        self._dropped["filter"][reason] += 1
                        continue
                    self._kept["filter"] += 1
                    doc_id = document_id(
                        record.source, original_id=record.original_id, url=record.url, text=record.text
                    )
                    yield Item(record, doc_id, split_of(doc_id, self._recipe.splits))
        if not self._kept["filter"]:
            raise self._nothing_left()

    def _nothing_left(self) -> DataError:
        counts = {**self._dropped["read"], **self._dropped["filter"]}
        told = f"no document is left to write: {self._kept['read'] + self._dropped['read'].total():,} lines read"
        if not counts:
            more = f" and {len(self._inputs) - 1} more" if len(self._inputs) > 1 else ""
            return DataError(f"{told}, {self._inputs[0].name}{more}: empty; give inputs that hold records")
        told += ", of them " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
        if bad := self._first_bad:
            told += f"; the first unusable line is {bad.input}:{bad.line} ({bad.detail})"
            told += "; give one JSON object with a text on each line"
        if self._dropped["filter"]:
            told += "; loosen the recipe's filters"
        return DataError(told)

    def rules(self) -> dict[str, RuleCounts]:
        """Counts by rule; each record passes `read`, then `filter`."""
        return {
            name: RuleCounts(kept=self._kept[name], dropped=dict(sorted(reasons.items())))
            for name, reasons in self._dropped.items()
        }


def _unchanged_records(file: InputFile, bar: tqdm) -> Iterator[RawRecord | BadLine]:
    """What is in a file; the very bytes that are read must have the hash that the manifest will tell.

    Raises:
        DataError: at the end of the file, where they have another.
    """
    digest = hashlib.sha256()

    def on_read(piece: bytes) -> None:
        digest.update(piece)
        bar.update(len(piece))

    yield from read_records(file, on_read)
    if digest.hexdigest() != file.sha256:
        raise DataError(f"{file.path}: changed while it was read; build again when nothing writes it any more")


def drop_reason(record: RawRecord, filters: FilterConfig) -> str | None:
    """Why a record is left out, or None."""
    if filters.min_bytes is None and filters.max_bytes is None:
        return None
    size = len(record.text.encode())
    if filters.min_bytes is not None and size < filters.min_bytes:
        return "min_bytes"
    if filters.max_bytes is not None and size > filters.max_bytes:
        return "max_bytes"
    return None


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe with every default, as the manifest keeps it; where it is built to is no part of it."""
    return recipe.model_dump(mode="json", exclude={"output"})


def _make_tokenizer(recipe: Recipe, folder: Path, inputs: Sequence[InputFile]) -> Tokenizer:
    if recipe.tokenizer.path is not None:
        return Tokenizer.load(files.join(folder, recipe.tokenizer.path))
    training = recipe.tokenizer.train
    assert training is not None, "the recipe has one of the two"
    items = Reading(recipe, inputs).items("read for tokenizer")
    return train_tokenizer(
        (item.record.text for item in items if item.split == TRAIN_SPLIT),
        vocab_size=training.vocab_size,
        sample_bytes=training.sample_bytes,
        character_coverage=training.character_coverage,
        num_reserved=training.reserved,
    )


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(item.record.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _document(item: Item, tokens: list[int]) -> Document:
    record = item.record
    return Document(
        doc_id=item.doc_id,
        tokens=tokens,
        num_bytes=len(record.text.encode()),
        source=record.source,
        lang=record.lang,
        category=record.category,
        split=item.split,
        quality_score=record.quality_score,
        licence=record.licence,
        origin=record.origin,
        input=record.input,
        line=record.line,
    )


def is_up_to_date(recipe: Recipe, inputs: list[InputRecord], output: Path, folder: Path) -> bool:
    """Whether the dataset is whole and what this code would build from this recipe and these inputs again.

    Raises:
        DataError: it is damaged or of another format.
    """
    manifest, _ = read_manifest(str(output))
    identity = (manifest.build_version, manifest.recipe, list(manifest.inputs))
    if identity != (BUILD_VERSION, resolved(recipe), inputs):
        return False
    path = recipe.tokenizer.path
    if path is not None and Tokenizer.load(files.join(folder, path)).hash != manifest.tokenizer.sha256:
        return False
    Dataset.open(str(output), verify="size")
    return True


@dataclass(frozen=True)
class Built:
    """What `build` did."""

    output: Path
    manifest: Manifest
    up_to_date: bool


def build(recipe: Recipe, folder: Path, *, output: str | Path | None = None, force: bool = False) -> Built:
    """Build the dataset; the same recipe and inputs give the same bytes.

    Args:
        recipe: the recipe.
        folder: directory of the recipe, which its paths are relative to.
        output: instead of the recipe's output; relative to where the process runs.
        force: replace an output that is another dataset.

    Raises:
        DataError: the output is another dataset or none, an input changes meanwhile, nothing is left to write, or two
            records have one identity.
        UserError: an input file is missing or of an unknown kind, or the output is no local path.
    """
    target = files.local_path(output) if output is not None else _beside(folder, recipe.output)
    is_there = holds_dataset(target)
    if is_there and force:
        check_replaceable(target)
    found = find_inputs(recipe, folder)
    inputs = [InputRecord(file=file.name, sha256=file.sha256, licence=file.entry.licence) for file in found]
    if is_there and not force:
        try:
            if is_up_to_date(recipe, inputs, target, folder):
                return Built(target, read_manifest(str(target))[0], True)
        except DataError as error:
            raise DataError(f"{error}; --force replaces a dataset") from None
        raise DataError(
            f"{target}: exists and was built from another recipe, other inputs or by other code; "
            "replace it with --force or choose another --output"
        )
    tokenizer = _make_tokenizer(recipe, folder, found)
    if recipe.add_bos and tokenizer.bos_id is None:
        raise DataError("add_bos: the tokenizer has no bos id; leave add_bos out or use another tokenizer")
    record = TokenizerRecord(
        sha256=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id if recipe.add_bos else None,
        eod_id=tokenizer.eod_id,
        unk_id=tokenizer.unk_id,
    )
    with DatasetWriter(target, record, tokenizer.model, shard_tokens=recipe.shard_tokens, replace=force) as writer:
        rules = _fill(writer, recipe, found, tokenizer)
        history = History(__version__, BUILD_VERSION, resolved(recipe), inputs, rules, recipe.splits)
        manifest = writer.finish(history)
    return Built(target, manifest, False)


def _beside(folder: Path, output: str) -> Path:
    """A recipe's output, relative to its folder; as short as it can be told here.

    Raises:
        UserError: the output is a URL.
    """
    here = Path.cwd()
    path = Path(os.path.normpath(folder.resolve() / files.local_path(output)))
    return path.relative_to(here) if path.is_relative_to(here) else path


def _fill(
    writer: DatasetWriter, recipe: Recipe, inputs: Sequence[InputFile], tokenizer: Tokenizer
) -> dict[str, RuleCounts]:
    """Give the writer every document that stays, and its directory the list of bad lines; returns the rules' counts."""
    path = writer.partial / QUARANTINE
    with path.open("w", encoding="utf-8") as quarantine:

        def set_aside(line: BadLine) -> None:
            quarantine.write(json.dumps(asdict(line), ensure_ascii=False) + "\n")

        reading = Reading(recipe, inputs, set_aside)
        for batch in _batches(reading.items("tokenise")):
            encoded = tokenizer.encode_many([item.record.text for item in batch])
            for item, tokens in zip(batch, encoded, strict=True):
                writer.add(_document(item, tokens))
    if path.stat().st_size == 0:
        path.unlink()
    return reading.rules()
