"""Two datasets compared: recipe, inputs, rules, and which documents are in one only."""

from typing import Any

import numpy as np
import pyarrow.parquet as pq

from maxtrain.config.merge import flatten
from maxtrain.core import files
from maxtrain.corpus.ledger import DROPPED, KEPT
from maxtrain.corpus.report.explain import ledger_path
from maxtrain.dataset import Dataset

_EXAMPLES = 5


def _fates(dataset: Dataset) -> dict[str, tuple[str, str, str]]:
    """(action, rule, reason) of the last row of each document."""
    table = pq.read_table(
        files.local_path(ledger_path(dataset)), columns=["doc_id", "action", "rule", "reason"], use_threads=False
    )
    rows = zip(*(table[name].to_pylist() for name in ("doc_id", "action", "rule", "reason")), strict=True)
    return {doc_id: (action, rule, reason or "") for doc_id, action, rule, reason in rows if action in (KEPT, DROPPED)}


def _differences(first: Any, second: Any) -> dict[str, list[Any]]:
    one, two = dict(flatten(first)), dict(flatten(second))
    return {
        key: [one.get(key), two.get(key)] for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key)
    }


def compare(first: Dataset, second: Dataset) -> dict[str, Any]:
    """What differs between two local datasets, as plain values; see `as_text`."""
    fates = _fates(first), _fates(second)
    ids = [dataset.documents.doc_id for dataset in (first, second)]
    moved: dict[str, dict[str, Any]] = {}
    for doc_id in np.setxor1d(ids[0], ids[1]).astype(str).tolist():
        told = [fate.get(doc_id) for fate in fates]
        name = " -> ".join(_fate_name(fate) for fate in told)
        entry = moved.setdefault(name, {"documents": 0, "examples": []})
        entry["documents"] += 1
        if len(entry["examples"]) < _EXAMPLES:
            entry["examples"].append(doc_id)
    return {
        "datasets": [
            {
                "location": dataset.location,
                "manifest_hash": dataset.manifest_hash,
                **dataset.manifest.totals.model_dump(),
            }
            for dataset in (first, second)
        ],
        "recipe": _differences(first.manifest.recipe, second.manifest.recipe),
        "inputs": _differences(*({file.file: file.sha256 for file in d.manifest.inputs} for d in (first, second))),
        "tokenizer": first.tokenizer_hash != second.tokenizer_hash,
        "rules": _differences(
            *({name: c.model_dump() for name, c in d.manifest.rules.items()} for d in (first, second))
        ),
        "both": len(np.intersect1d(ids[0], ids[1])),
        "changed": _num_changed(first, second),
        "moved": dict(sorted(moved.items())),
    }


def _fate_name(fate: tuple[str, str, str] | None) -> str:
    if fate is None:
        return "not read"
    action, rule, reason = fate
    return KEPT if action == KEPT else f"{rule} {reason}"


def _num_changed(first: Dataset, second: Dataset) -> int:
    """Documents in both whose number of bytes differs."""
    _, one, two = np.intersect1d(first.documents.doc_id, second.documents.doc_id, return_indices=True)
    return int((first.documents.num_bytes[one] != second.documents.num_bytes[two]).sum())


def as_text(told: dict[str, Any]) -> str:
    """The comparison for people."""
    lines = []
    for name, dataset in zip("AB", told["datasets"], strict=True):
        size = f"{dataset['documents']:,} documents, {dataset['tokens']:,} tokens, {dataset['bytes']:,} bytes"
        lines.append(f"{name}  {dataset['location']}  {dataset['manifest_hash'][:16]}  {size}")
    for title in ("recipe", "inputs", "rules"):
        for key, (one, two) in told[title].items():
            lines.append(f"{title} {key}: {one} -> {two}")
    if told["tokenizer"]:
        lines.append("the tokenizers differ")
    lines.append(f"{told['both']:,} documents are in both, {told['changed']:,} of them with another length")
    for name, entry in told["moved"].items():
        lines.append(f"{name}: {entry['documents']:,} documents, such as {', '.join(entry['examples'])}")
    return "\n".join(lines)
