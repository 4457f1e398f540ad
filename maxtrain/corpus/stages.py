"""The stages' tasks: what a worker does with one shard. Each is a pure function (arguments, work directory, folder)."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maxtrain.core.errors import DataError
from maxtrain.corpus.chain import Chain, Sample, with_tags
from maxtrain.corpus.decontaminate.rule import Decontaminate, load_scanner
from maxtrain.corpus.document import Document
from maxtrain.corpus.duplicates import RULE, read_removals
from maxtrain.corpus.inputs import source_of
from maxtrain.corpus.ledger import DROPPED, KEPT, Entry, write_entries
from maxtrain.corpus.read import BadRecord, RawRecord, RawTokens, Source, read_file
from maxtrain.corpus.recipe import InputConfig
from maxtrain.corpus.registry import RulesConfig, rules_of
from maxtrain.corpus.shards import ShardWriter, read_shard
from maxtrain.corpus.split import split_of
from maxtrain.dataset import QUARANTINE, TRAIN_SPLIT, document_id, token_dtype
from maxtrain.tokenizer import Tokenizer, train_tokenizer

_ENCODE_CHARACTERS = 2**20
TOKENS = "tokens.bin"
TABLE = "table.parquet"
COUNTS = "counts.npy"
LEDGER_PART = "ledger.parquet"
SAMPLES_PART = "samples.parquet"


def read(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Raw files to shards of documents; what is no usable record to the quarantine.

    Args:
        arguments: `files`: name, location, sha256 and recipe entry of each.
        work: unused.
        folder: receives the shards and `quarantine.jsonl`.

    Raises:
        DataError: a file is not the one that was hashed.
    """
    bad: dict[str, int] = {}
    first_bad: BadRecord | None = None
    with ShardWriter(folder) as writer, (folder / QUARANTINE).open("w", encoding="utf-8") as quarantine:
        for told in arguments["files"]:
            entry = InputConfig.model_validate(told["entry"], strict=False)
            source = source_of(told["name"], told["location"], entry)
            for record in _unchanged_records(source, told["sha256"]):
                if isinstance(record, BadRecord):
                    bad[record.reason] = bad.get(record.reason, 0) + 1
                    first_bad = first_bad or record
                    quarantine.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
                else:
                    writer.add(_document(record))
    return {
        "shards": writer.shards,
        "documents": sum(shard["documents"] for shard in writer.shards),
        "bad": bad,
        "first_bad": first_bad and asdict(first_bad),
    }


def _unchanged_records(source: Source, sha256: str) -> Iterator[RawRecord | BadRecord]:
    """What is in an input; the very bytes that are read must have the hash that the manifest will tell.

    Raises:
        DataError: at the end of the input, where they have another.
    """
    digest = hashlib.sha256()
    for item in read_file(source, digest.update):
        assert not isinstance(item, RawTokens), "inputs of token ids are refused where they are found"
        yield item
    if digest.hexdigest() != sha256:
        raise DataError(f"{source.path}: changed while it was read; build again when nothing writes it any more")


def _document(record: RawRecord) -> Document:
    return Document(
        doc_id=document_id(record.source, original_id=record.original_id, url=record.url, text=record.text),
        text=record.text,
        source=record.source,
        lang=record.lang,
        category=record.category,
        licence=record.licence,
        input=record.input,
        line=record.line,
        original_id=record.original_id,
        url=record.url,
        origin=record.origin,
        quality_score=record.quality_score,
    )


def clean(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Apply the rules about single documents to a shard.

    Args:
        arguments: `shard`; `rules`; `without`: rules that an input file's documents are spared; `samples`.
        work: where the shard is.
        folder: receives a shard of what stays, its part of the ledger, samples.
    """
    rules = rules_of(RulesConfig.model_validate(arguments["rules"], strict=False))
    without = {name: frozenset(names) for name, names in arguments["without"].items()}
    chain = Chain(rules, arguments["samples"])
    seen = 0
    with ShardWriter(folder, limit=2**62) as writer:
        for document in read_shard(work / arguments["shard"]):
            seen += 1
            if chain.run(document, without.get(document.input, frozenset())):
                writer.add(document)
    write_entries(folder / LEDGER_PART, chain.entries)
    write_samples(folder / SAMPLES_PART, chain.samples.all())
    return {"shards": writer.shards, "documents": seen, "rules": chain.tally.to_json()}


_SAMPLE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("rule", "action", "reason")),
        ("rank", pa.int64()),
        *((name, pa.string()) for name in ("doc_id", "lang", "source", "before", "after")),
    ]
)


def write_samples(path: Path, samples: list[Sample]) -> None:
    """Write samples in the order given."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in _SAMPLE_SCHEMA.names}
    pq.write_table(pa.Table.from_pydict(columns, schema=_SAMPLE_SCHEMA), path, compression="zstd")


def read_samples(path: Path) -> Iterator[Sample]:
    """Samples of a file, in order."""
    for row in pq.read_table(path, use_threads=False).to_pylist():
        yield Sample(**row)


def count_grams(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Count the documents of a shard that hold each n-gram of the evaluation list.

    Args:
        arguments: `shard` and `removals`; `decontaminate`: the recipe's section.
        work: where the shard is.
        folder: receives `counts.npy`.
    """
    rule = Decontaminate.model_validate(arguments["decontaminate"], strict=False)
    scanner = load_scanner(rule.index, rule.tasks, rule.scan, None)
    counts = scanner.count_documents(document.text for document in _surviving(work, arguments))
    np.save(folder / COUNTS, counts, allow_pickle=False)
    return {}


def sum_counts(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Add the counts of all shards.

    Args:
        arguments: `counts`: folders of `count_grams`.
        work: where they are.
        folder: receives `counts.npy`.
    """
    first, *others = [work / name / COUNTS for name in arguments["counts"]]
    total = np.load(first, allow_pickle=False)
    for path in others:
        total += np.load(path, allow_pickle=False)
    np.save(folder / COUNTS, total, allow_pickle=False)
    return {}


def select(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Take duplicates and what touches the evaluation list out of a shard.

    Args:
        arguments: `shard`; `removals`: the file of `duplicates.find`, or null; `decontaminate`: the recipe's section
            or null, with the counts' file; `samples`.
        work: where the shard is.
        folder: receives a shard of what stays, its part of the ledger, samples.
    """
    told = arguments["decontaminate"]
    rules = []
    if told is not None:
        rules.append(Decontaminate.model_validate(told | {"counts": str(work / told["counts"])}, strict=False))
    chain = Chain(rules, arguments["samples"])

    def on_drop(document: Document, reason: str, score: float, survivor: str) -> None:
        entry = Entry(document.doc_id, RULE, DROPPED, reason=reason, score=score, survivor=survivor)
        chain.entries.append(with_tags(entry, document))
        chain.samples.offer(RULE, DROPPED, reason, document, document.text, "")

    with ShardWriter(folder, limit=2**62) as writer:
        for document in _surviving(work, arguments, on_drop):
            if chain.run(document):
                writer.add(document)
    write_entries(folder / LEDGER_PART, chain.entries)
    write_samples(folder / SAMPLES_PART, chain.samples.all())
    return {"shards": writer.shards, "rules": chain.tally.to_json()}


def _surviving(
    work: Path, arguments: dict[str, Any], on_drop: Callable[[Document, str, float, str], None] | None = None
) -> Iterator[Document]:
    """Documents of a shard that are no duplicates; `on_drop` is called with each that is one."""
    removals = read_removals(work / arguments["removals"]) if arguments["removals"] else {}
    for row, document in enumerate(read_shard(work / arguments["shard"])):
        if row not in removals:
            yield document
        elif on_drop is not None:
            on_drop(document, *removals[row])


def train(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Train the tokenizer on the documents of the train split.

    Args:
        arguments: `shards`; `training`: the recipe's section; `splits`.
        work: where the shards are.
        folder: receives `tokenizer.model`.
    """
    training = arguments["training"]
    tokenizer = train_tokenizer(
        (
            document.text
            for shard in arguments["shards"]
            for document in read_shard(work / shard)
            if split_of(document.doc_id, arguments["splits"]) == TRAIN_SPLIT
        ),
        vocab_size=training["vocab_size"],
        sample_bytes=training["sample_bytes"],
        character_coverage=training["character_coverage"],
        num_reserved=training["reserved"],
    )
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    return {"sha256": tokenizer.hash}


def encode(arguments: dict[str, Any], work: Path, folder: Path) -> dict[str, Any]:
    """Encode the surviving documents of a shard.

    Args:
        arguments: `shard`; `tokenizer`: model file and its hash.
        work: where the shard is.
        folder: receives the ids, the documents' tags and a part of the ledger.
    """
    tokenizer = Tokenizer.load(work / arguments["tokenizer"], expected_hash=arguments["tokenizer_sha256"])
    dtype = token_dtype(tokenizer.vocab_size)
    rows: list[dict[str, Any]] = []
    entries: list[Entry] = []
    with (folder / TOKENS).open("wb") as out:
        for batch in _batches(read_shard(work / arguments["shard"])):
            encoded = tokenizer.encode_many([document.text for document in batch], num_threads=1)
            for document, ids in zip(batch, encoded, strict=True):
                out.write(np.asarray(ids, dtype).tobytes())
                rows.append(_row(document, len(ids)))
                entries.append(with_tags(Entry(document.doc_id, "", KEPT), document))
    write_entries(folder / LEDGER_PART, entries)
    pq.write_table(pa.Table.from_pylist(rows, schema=TABLE_SCHEMA), folder / TABLE, compression="zstd")
    return {"documents": len(rows)}


TABLE_SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("doc_id", "source", "lang", "category", "licence", "origin", "url", "input")
        ),
        *((name, pa.int64()) for name in ("line", "num_bytes", "num_ids")),
        ("quality_score", pa.float64()),
    ]
)


def _row(document: Document, num_ids: int) -> dict[str, Any]:
    row = {name: getattr(document, name, None) for name in TABLE_SCHEMA.names}
    return row | {"num_bytes": len(document.text.encode()), "num_ids": num_ids}


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= _ENCODE_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
