"""The fate of one document, from the ledger."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.corpus.ledger import CHANGED, DROPPED, KEPT
from maxtrain.dataset import LEDGER, Dataset

_MOST = 20


@dataclass(frozen=True)
class Story:
    """What became of a document.

    Attributes:
        doc_id: the document.
        entries: its rows of the ledger, in order.
        tokens: where its tokens are; null where it was dropped.
    """

    doc_id: str
    entries: list[dict[str, Any]]
    tokens: dict[str, Any] | None


def ledger_path(dataset: Dataset) -> str:
    """The ledger's file.

    Raises:
        DataError: the dataset has none.
    """
    if LEDGER not in {attachment.file for attachment in dataset.manifest.attachments}:
        raise DataError(f"{dataset.location}: has no ledger; build the dataset again")
    return files.join(dataset.location, LEDGER)


def explain(dataset: Dataset, asked: str) -> list[Story]:
    """Stories of the documents with this doc_id, URL or place (`file:line`); several where a URL has several.

    Args:
        dataset: local.
        asked: what to look for.

    Raises:
        DataError: no document of the inputs has it.
    """
    path = files.local_path(ledger_path(dataset))
    file, _, line = asked.rpartition(":")
    found: dict[str, list[dict[str, Any]]] = {}
    with pq.ParquetFile(path) as ledger:
        for number in range(ledger.num_row_groups):
            table = ledger.read_row_group(number, use_threads=False)
            mask = pc.or_kleene(pc.equal(table["doc_id"], asked.lower()), pc.equal(table["url"], asked))
            if file and line.isdecimal():
                here = pc.and_kleene(pc.equal(table["input"], file), pc.equal(table["line"], int(line)))
                mask = pc.or_kleene(mask, here)
            for row in table.filter(mask).to_pylist():
                found.setdefault(row["doc_id"], []).append(row)
    if not found:
        raise DataError(
            f"{asked}: no document of {dataset.location} has this doc_id, URL or place; give 32 hex digits, the URL as "
            "it was read, or FILE:LINE as the quarantine names it"
        )
    return [Story(doc_id, found[doc_id], _place(dataset, doc_id)) for doc_id in sorted(found)[:_MOST]]


def _place(dataset: Dataset, doc_id: str) -> dict[str, Any] | None:
    table = dataset.documents
    number = int(np.searchsorted(table.doc_id, doc_id.encode()))
    if number == len(table) or table.doc_id[number] != doc_id.encode():
        return None
    return {
        "shard": dataset.manifest.shards[table.shard[number]].file,
        "offset": int(table.offset[number]),
        "num_tokens": int(table.num_tokens[number]),
        "split": table.split[number],
        "licence": table.licence(number),
        "origin": table.origin(number),
    }


def as_text(story: Story) -> str:
    """A story for people."""
    first, last = story.entries[0], story.entries[-1]
    lines = [f"document {story.doc_id}", f"read from {first['input']}:{first['line']}"]
    if first["url"]:
        lines.append(f"url {first['url']}")
    for entry in story.entries:
        lines.append("  " + _told(entry))
    if last["action"] == KEPT:
        tags = f"source {last['source']}, lang {last['lang']}, category {last['category']}"
        quality = "" if last["quality_score"] is None else f", quality {last['quality_score']:.3f}"
        lines.append(f"tags: {tags}{quality}")
    if story.tokens:
        place = story.tokens
        lines.append(
            f"{place['num_tokens']:,} tokens at {place['offset']:,} of {place['shard']}, split {place['split']}"
        )
        lines.append(f"licence {place['licence']}")
    return "\n".join(lines)


def _told(entry: dict[str, Any]) -> str:
    if entry["action"] == KEPT:
        return f"kept: {entry['num_bytes']:,} bytes"
    if entry["action"] == CHANGED:
        return f"changed by {entry['rule']}: {entry['count']:,} places, {entry['num_bytes']:,} bytes after it"
    assert entry["action"] == DROPPED, "the ledger has three actions"
    told = f"dropped by {entry['rule']}: {entry['reason']}"
    if entry["score"] is not None:
        told += f" ({entry['score']:.4g})"
    if entry["start"] is not None:
        told += f", characters {entry['start']:,} to {entry['end']:,}"
    if entry["survivor"]:
        told += f"; {entry['survivor']} stays"
    return told
