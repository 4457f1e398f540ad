"""Build a dataset from a recipe: read, clean, tokenise, write; every stage in tasks that a killed build keeps."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tqdm import tqdm

from maxtrain import __version__
from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.corpus import duplicates, ledger, stages
from maxtrain.corpus.chain import Samples, add_counts
from maxtrain.corpus.decontaminate.index import load_eval_index
from maxtrain.corpus.decontaminate.rule import Decontaminate
from maxtrain.corpus.engine import Engine, Options, Outcome, Task
from maxtrain.corpus.inputs import InputFile, find_inputs
from maxtrain.corpus.recipe import Recipe
from maxtrain.corpus.registry import NAMES
from maxtrain.corpus.split import split_of
from maxtrain.dataset import (
    LEDGER,
    QUARANTINE,
    SAMPLES,
    Dataset,
    DatasetWriter,
    Document,
    History,
    InputRecord,
    Manifest,
    RuleCounts,
    TokenizerRecord,
    check_replaceable,
    holds_dataset,
    read_manifest,
    token_dtype,
)
from maxtrain.tokenizer import Tokenizer

BUILD_VERSION = 2
"""Raise it with every change by which the same recipe and inputs give other documents, tokens, splits or quarantined
lines, so that no dataset built before is taken for up to date and no stage of an interrupted build is taken over."""
_READ_BYTES = 16 * 2**20
"""Small input files are read together, up to this size."""


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe with every default, as the manifest keeps it; where it is built to is no part of it."""
    return recipe.model_dump(mode="json", exclude={"output"})


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
    """What `build` did.

    Attributes:
        output: where the dataset is.
        manifest: what it says.
        up_to_date: there was nothing to do.
        cpu_seconds, peak_bytes: of the tasks; the most that one worker held.
    """

    output: Path
    manifest: Manifest
    up_to_date: bool
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


def build(
    recipe: Recipe,
    folder: Path,
    *,
    output: str | Path | None = None,
    force: bool = False,
    options: Options | None = None,
) -> Built:
    """Build the dataset; the same recipe and inputs give the same bytes.

    Args:
        recipe: the recipe.
        folder: directory of the recipe, which its paths are relative to.
        output: instead of the recipe's output; relative to where the process runs.
        force: replace an output that is another dataset.
        options: how to run (null: the defaults); no byte depends on them.

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
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.absolute().with_name(f".{target.name}.work")
    with Engine(work, options or Options()) as engine:
        run = _Run(recipe, folder, found, engine)
        run.read()
        run.clean()
        run.find_duplicates()
        run.select()
        tokenizer, name = run.tokenizer()
        run.encode(tokenizer, name)
        with DatasetWriter(
            target, _record(recipe, tokenizer), tokenizer.model, shard_tokens=recipe.shard_tokens, replace=force
        ) as writer:
            run.publish(writer, tokenizer)
            history = History(__version__, BUILD_VERSION, resolved(recipe), inputs, run.rules, recipe.splits, run.suite)
            manifest = writer.finish(history)
        shutil.rmtree(work)
    return Built(target, manifest, False, engine.cpu_seconds, engine.peak_bytes)


def _record(recipe: Recipe, tokenizer: Tokenizer) -> TokenizerRecord:
    if recipe.add_bos and tokenizer.bos_id is None:
        raise DataError("add_bos: the tokenizer has no bos id; leave add_bos out or use another tokenizer")
    return TokenizerRecord(
        sha256=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id if recipe.add_bos else None,
        eod_id=tokenizer.eod_id,
        unk_id=tokenizer.unk_id,
    )


def _beside(folder: Path, output: str) -> Path:
    """A recipe's output, relative to its folder; as short as it can be told here.

    Raises:
        UserError: the output is a URL.
    """
    here = Path.cwd()
    path = Path(os.path.normpath(folder.resolve() / files.local_path(output)))
    return path.relative_to(here) if path.is_relative_to(here) else path


@dataclass
class _Run:
    """One build: its stages in order, each with what the one before has left."""

    recipe: Recipe
    folder: Path
    inputs: list[InputFile]
    engine: Engine
    rules: dict[str, RuleCounts] = field(default_factory=dict)
    """Counts by rule, in running order."""
    suite: str | None = None
    """Identity of the evaluation list that documents were held against."""

    def __post_init__(self) -> None:
        self._read: list[Outcome] = []
        self._clean: list[Outcome] = []
        self._removals: str | None = None
        self._selected: list[Outcome] = []
        self._encoded: list[Outcome] = []

    def _task(self, stage: str, arguments: dict[str, Any], weight: int, *, function: str | None = None) -> Task:
        name = function or f"stages:{stage}"
        return Task(stage, f"maxtrain.corpus.{name}", arguments, BUILD_VERSION, max(weight, 1))

    def read(self) -> None:
        """Raw files to shards."""
        self._tell_changed_inputs()
        tasks = [
            self._task("read", {"files": [_told(file) for file in group]}, sum(file.num_bytes for file in group))
            for group in _groups(self.inputs)
        ]
        self._read = self.engine.run(tasks, "read")
        dropped: dict[str, int] = {}
        for outcome in self._read:
            for reason, count in outcome.facts["bad"].items():
                dropped[reason] = dropped.get(reason, 0) + count
        kept = sum(outcome.facts["documents"] for outcome in self._read)
        self.rules["read"] = RuleCounts(kept=kept, dropped=dict(sorted(dropped.items())))
        self._check_some_are_left(kept)

    def clean(self) -> None:
        """Rules about single documents."""
        common = {
            "rules": self.recipe.model_dump(mode="json")["rules"],
            "without": {file.name: sorted(file.entry.without) for file in self.inputs if file.entry.without},
            "samples": self.recipe.samples,
        }
        tasks = [
            self._task("clean", common | {"shard": f"{outcome.folder}/{shard['file']}"}, shard["bytes"])
            for outcome in self._read
            for shard in outcome.facts["shards"]
        ]
        self._clean = self.engine.run(tasks, "clean")
        found = _sum_counts(self._clean)
        self.rules |= {name: found[name] for name in NAMES if name in found}
        self._check_some_are_left(
            sum(shard["documents"] for outcome in self._clean for shard in outcome.facts["shards"])
        )

    def _shards(self) -> list[tuple[str, int]]:
        """Shards as the last stage left them: path in the work directory, and bytes of text."""
        return [
            (f"{outcome.folder}/{shard['file']}", shard["bytes"])
            for outcome in self._selected or self._clean
            for shard in outcome.facts["shards"]
        ]

    def find_duplicates(self) -> None:
        """Documents that stand for others."""
        if self.recipe.dedup is None:
            return
        common = {"dedup": self.recipe.model_dump(mode="json")["dedup"]}
        tasks = [
            self._task("sketch", common | {"shard": path}, size, function="duplicates:sketch_shard")
            for path, size in self._shards()
        ]
        sketches = self.engine.run(tasks, "sketch")
        arguments = common | {"sketches": [outcome.folder for outcome in sketches]}
        task = self._task("duplicates", arguments, 1, function="duplicates:find")
        (found,) = self.engine.run([task], "find duplicates")
        self._removals = found.folder
        dropped = found.facts["dropped"]
        kept = found.facts["documents"] - sum(dropped.values())
        self.rules[duplicates.RULE] = RuleCounts(kept=kept, dropped=dict(sorted(dropped.items())))

    def select(self) -> None:
        """Take duplicates and what touches the evaluation list away."""
        config = self.recipe.decontaminate
        if self._removals is None and config is None:
            return
        shards = [
            {"shard": path, "removals": None if self._removals is None else f"{self._removals}/{number:05d}.parquet"}
            for number, (path, _) in enumerate(self._shards())
        ]
        sizes = [size for _, size in self._shards()]
        told = None if config is None else self._count_grams(config, shards, sizes)
        common = {"decontaminate": told, "samples": self.recipe.samples}
        tasks = [self._task("select", common | shard, size) for shard, size in zip(shards, sizes, strict=True)]
        self._selected = self.engine.run(tasks, "select")
        if config is not None:
            self.rules[config.name] = _sum_counts(self._selected).get(config.name, RuleCounts(kept=0))
        self._check_some_are_left(
            sum(shard["documents"] for outcome in self._selected for shard in outcome.facts["shards"])
        )

    def _count_grams(self, config: Decontaminate, shards: list[dict[str, Any]], sizes: list[int]) -> dict[str, Any]:
        """The section as workers need it: where the index and the counts of its n-grams in this corpus are."""
        index = files.local_path(files.join(self.folder.absolute(), config.index))
        self.suite = load_eval_index(index, config.tasks).identity
        # The identity stands for the files, of which only the path is told.
        told = config.model_dump(mode="json") | {"index": str(index)}
        common = {"decontaminate": told, "suite": self.suite}
        tasks = [self._task("count_grams", common | shard, size) for shard, size in zip(shards, sizes, strict=True)]
        counted = self.engine.run(tasks, "count n-grams")
        arguments = {"counts": [outcome.folder for outcome in counted]}
        (outcome,) = self.engine.run([self._task("sum_counts", arguments, 1)], "add n-grams")
        return told | {"counts": f"{outcome.folder}/{stages.COUNTS}"}

    def tokenizer(self) -> tuple[Tokenizer, str]:
        """The recipe's tokenizer and where workers find it, relative to the work directory."""
        config = self.recipe.tokenizer
        if config.path is not None:
            tokenizer = Tokenizer.load(files.join(self.folder, config.path))
            name = f"tokenizer-{tokenizer.hash[:24]}.model"
            files.write_atomic(self.engine.work / name, tokenizer.model)
            return tokenizer, name
        assert config.train is not None, "the recipe has one of the two"
        shards = self._shards()
        arguments = {
            "shards": [path for path, _ in shards],
            "training": config.train.model_dump(mode="json"),
            "splits": self.recipe.splits,
        }
        weight = sum(size for _, size in shards)
        task = self._task("tokenizer", arguments, weight, function="stages:train")
        (outcome,) = self.engine.run([task], "train tokenizer")
        name = f"{outcome.folder}/tokenizer.model"
        return Tokenizer.load(self.engine.work / name, expected_hash=outcome.facts["sha256"]), name

    def encode(self, tokenizer: Tokenizer, name: str) -> None:
        """Documents to token ids."""
        common = {"tokenizer": name, "tokenizer_sha256": tokenizer.hash}
        tasks = [self._task("encode", common | {"shard": path}, size) for path, size in self._shards()]
        self._encoded = self.engine.run(tasks, "tokenise")

    def publish(self, writer: DatasetWriter, tokenizer: Tokenizer) -> None:
        """Give the writer every document, and its directory the ledger, the samples and the list of bad lines."""
        work = self.engine.work
        dtype = token_dtype(tokenizer.vocab_size)
        for outcome in tqdm(self._encoded, desc="collect", unit="shard", delay=1, leave=False):
            tokens = np.fromfile(work / outcome.folder / stages.TOKENS, dtype)
            start = 0
            for row in pq.read_table(work / outcome.folder / stages.TABLE, use_threads=False).to_pylist():
                stop = start + row.pop("num_ids")
                split = split_of(row["doc_id"], self.recipe.splits)
                writer.add(Document(tokens=tokens[start:stop], split=split, **row))
                start = stop
        ledger.join_parts(
            writer.partial / LEDGER,
            [work / outcome.folder / stages.LEDGER_PART for outcome in (*self._clean, *self._selected, *self._encoded)],
        )
        samples = Samples(self.recipe.samples)
        for outcome in (*self._clean, *self._selected):
            for sample in stages.read_samples(work / outcome.folder / stages.SAMPLES_PART):
                samples.take(sample)
        if found := samples.all():
            stages.write_samples(writer.partial / SAMPLES, found)
        bad = b"".join((work / outcome.folder / QUARANTINE).read_bytes() for outcome in self._read)
        if bad:
            (writer.partial / QUARANTINE).write_bytes(bad)

    def _tell_changed_inputs(self) -> None:
        """Say which inputs are not what an interrupted build has read; what follows from them is made anew."""
        path = self.engine.work / "inputs.json"
        hashes = {file.name: file.sha256 for file in self.inputs}
        if path.exists():
            before = json.loads(path.read_text("utf-8"))
            for name in sorted(name for name in hashes.keys() & before.keys() if hashes[name] != before[name]):
                tqdm.write(f"{name}: changed since the build was interrupted; what comes of it is made anew")
        files.write_atomic(path, json.dumps(hashes, ensure_ascii=False).encode())

    def _check_some_are_left(self, documents: int) -> None:
        """Refuse a dataset without documents, with what became of the lines.

        Raises:
            DataError: no document is left.
        """
        if documents:
            return
        reasons: dict[str, int] = {}
        for counts in self.rules.values():
            for reason, count in counts.dropped.items():
                reasons[reason] = reasons.get(reason, 0) + count
        read = self.rules["read"]
        told = f"no document is left to write: {read.kept + sum(read.dropped.values()):,} lines read"
        if not reasons:
            more = f" and {len(self.inputs) - 1} more" if len(self.inputs) > 1 else ""
            raise DataError(f"{told}, {self.inputs[0].name}{more}: empty; give inputs that hold records")
        told += ", of them " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        if bad := next((outcome.facts["first_bad"] for outcome in self._read if outcome.facts["first_bad"]), None):
            told += f"; the first unusable line is {bad['input']}:{bad['line']} ({bad['detail']})"
            told += "; give one JSON object with a text on each line"
        if read.kept:
            told += "; loosen the recipe's rules"
        raise DataError(told)


def _sum_counts(outcomes: Sequence[Outcome]) -> dict[str, RuleCounts]:
    """Counts by rule over the tasks of a stage."""
    found: dict[str, RuleCounts] = {}
    for outcome in outcomes:
        for name, told in outcome.facts["rules"].items():
            counts = RuleCounts.model_validate(told)
            found[name] = add_counts(found[name], counts) if name in found else counts
    return found


def _told(file: InputFile) -> dict[str, Any]:
    """An input file for a worker."""
    entry = file.entry.model_dump(mode="json", exclude={"without"})
    return {"name": file.name, "location": file.location, "sha256": file.sha256, "entry": entry}


def _groups(inputs: Sequence[InputFile]) -> Iterator[list[InputFile]]:
    """Files in order, small ones together."""
    group: list[InputFile] = []
    total = 0
    for file in inputs:
        if group and total + file.num_bytes > _READ_BYTES:
            yield group
            group, total = [], 0
        group.append(file)
        total += file.num_bytes
    if group:
        yield group
