"""What is in a dataset, in numbers, for people and programs."""

import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np

from maxtrain.dataset import Dataset

_TAGS = ("source", "lang", "category", "split")


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Documents, tokens and bytes of a dataset, in all and by tag; plain JSON values."""
    manifest, table = dataset.manifest, dataset.documents
    by_tag: dict[str, Any] = {}
    for tag in _TAGS:
        column = getattr(table, tag)
        sums = [
            np.bincount(column.codes, weights=weights, minlength=len(column.names)).astype(np.int64).tolist()
            for weights in (None, table.num_tokens, table.num_bytes)
        ]
        by_tag[tag] = {
            name: {"documents": documents, "tokens": tokens, "bytes": num_bytes}
            for name, documents, tokens, num_bytes in zip(column.names, *sums, strict=True)
        }
    return {
        "location": dataset.location,
        "manifest_hash": dataset.manifest_hash,
        "format_version": manifest.format_version,
        "code_version": manifest.code_version,
        "tokenizer": manifest.tokenizer.model_dump(),
        "dtype": manifest.dtype,
        "shards": len(manifest.shards),
        **manifest.totals.model_dump(),
        "longest_document_tokens": int(table.num_tokens.max()),
        "by": by_tag,
        "splits": {name: split.model_dump() for name, split in manifest.splits.items()},
        "licences": {name: totals.model_dump() for name, totals in manifest.licences.items()},
        "rules": {name: counts.model_dump() for name, counts in manifest.rules.items()},
        "inputs": [record.model_dump() for record in manifest.inputs],
    }


def as_text(summary: dict[str, Any]) -> str:
    """The summary as a page of text."""
    return "\n".join(_lines(summary))


def _pad(text: str, width: int) -> str:
    """Pad to a width on the terminal, where East Asian characters take two columns."""
    return text + " " * (width - _columns(text))


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    yield f"dataset    {summary['location']}"
    yield f"manifest   {summary['manifest_hash']}"
    yield f"tokenizer  {summary['tokenizer']['sha256']} ({summary['tokenizer']['vocab_size']:,} ids)"
    yield f"shards     {summary['shards']} ({summary['dtype']})"
    yield ""
    groups = {"": {"all": summary}, **summary["by"], "licence": summary["licences"]}
    width = max(_columns(name) for group in groups.values() for name in group) + 2
    yield f"{'':<{width + 10}}{'documents':>12}{'tokens':>16}{'bytes':>16}{'bytes/token':>13}"
    for tag, group in groups.items():
        for number, (name, row) in enumerate(group.items()):
            ratio = row["bytes"] / row["tokens"] if row["tokens"] else 0.0
            yield (
                f"{tag if number == 0 else '':<10}{_pad(name, width)}{row['documents']:>12,}{row['tokens']:>16,}"
                f"{row['bytes']:>16,}{ratio:>13.2f}"
            )
    yield ""
    for name, counts in summary["rules"].items():
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts["dropped"].items()) or "none"
        yield f"rule {name}: kept {counts['kept']:,}, changed {counts['changed']:,}, dropped: {dropped}"
