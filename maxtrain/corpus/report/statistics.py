"""A dataset in numbers: funnel, mixture by tags, lengths, quality, and what a threshold on quality would keep."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from maxtrain.core import files
from maxtrain.corpus.ledger import CHANGED, DROPPED, KEPT
from maxtrain.corpus.report.explain import ledger_path
from maxtrain.dataset import LENGTH_BUCKETS, Dataset

THRESHOLDS = tuple(round(0.1 * number, 1) for number in range(1, 10))
"""Of `quality_score`, for which the kept share is told."""
_TAGS = ("source", "lang", "category", "split")


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Everything that the page shows, as plain values."""
    table = dataset.documents
    lengths = np.searchsorted(LENGTH_BUCKETS, table.num_tokens)
    buckets = [*(f"up to {bound:,}" for bound in LENGTH_BUCKETS), f"over {LENGTH_BUCKETS[-1]:,}"]
    quality = table.quality_score[~np.isnan(table.quality_score)]
    return {
        "location": dataset.location,
        "manifest_hash": dataset.manifest_hash,
        "totals": dataset.manifest.totals.model_dump(),
        "funnel": _funnel(dataset),
        "mixture": {tag: _by_tag(dataset, tag) for tag in _TAGS},
        "licences": {name: totals.model_dump() for name, totals in dataset.manifest.licences.items()},
        "lengths": {
            name: {
                "documents": int((lengths == number).sum()),
                "tokens": int(table.num_tokens[lengths == number].sum()),
            }
            for number, name in enumerate(buckets)
        },
        "quality": {
            f"{low / 10:.1f} to {(low + 1) / 10:.1f}": int(count)
            for low, count in enumerate(np.histogram(quality, bins=10, range=(0, 1))[0])
        },
        "thresholds": _thresholds(dataset, lengths, buckets),
        "dropped_by": _dropped_by(dataset),
    }


def _funnel(dataset: Dataset) -> list[dict[str, Any]]:
    rows = []
    for name, counts in dataset.manifest.rules.items():
        dropped = sum(counts.dropped.values())
        rows.append(
            {
                "rule": name,
                "seen": counts.kept + dropped,
                "changed": counts.changed,
                "dropped": dropped,
                "reasons": dict(sorted(counts.dropped.items(), key=lambda item: (-item[1], item[0]))),
            }
        )
    return rows


def _by_tag(dataset: Dataset, tag: str) -> list[dict[str, Any]]:
    column, table = getattr(dataset.documents, tag), dataset.documents
    sums = [
        np.bincount(column.codes, weights=weights, minlength=len(column.names)).astype(np.int64).tolist()
        for weights in (None, table.num_tokens, table.num_bytes)
    ]
    rows = [
        {"name": name, "documents": documents, "tokens": tokens, "bytes": size}
        for name, documents, tokens, size in zip(column.names, *sums, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row["tokens"], row["name"]))


def _thresholds(dataset: Dataset, lengths: np.ndarray, buckets: list[str]) -> dict[str, dict[str, list[float]]]:
    """Share of the scored documents that each threshold keeps, by language, category and length."""
    table = dataset.documents
    scored = ~np.isnan(table.quality_score)
    result: dict[str, dict[str, list[float]]] = {}
    groups = {
        "lang": (table.lang.codes, table.lang.names),
        "category": (table.category.codes, table.category.names),
        "length": (lengths, tuple(buckets)),
    }
    for tag, (codes, names) in groups.items():
        result[tag] = {}
        for code, name in enumerate(names):
            scores = table.quality_score[(codes == code) & scored]
            if len(scores):
                result[tag][name] = [round(float((scores >= limit).mean()), 4) for limit in THRESHOLDS]
    return result


def _dropped_by(dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    """Documents read, kept and dropped by language, category and source, so that a rule that is hard on one is seen."""
    names = ("doc_id", "action", "rule", "lang", "category", "source")
    counts: dict[str, dict[str, Counter[str]]] = {tag: defaultdict(Counter) for tag in ("lang", "category", "source")}
    with pq.ParquetFile(files.local_path(ledger_path(dataset))) as ledger:
        for number in range(ledger.num_row_groups):
            table = ledger.read_row_group(number, columns=list(names), use_threads=False).to_pydict()
            for row in zip(*(table[name] for name in names), strict=True):
                told = dict(zip(names, row, strict=True))
                if told["action"] == CHANGED:
                    continue
                for tag, found in counts.items():
                    found[told[tag]][KEPT if told["action"] == KEPT else f"{DROPPED} {told['rule']}"] += 1
    return {
        tag: [
            {
                "name": name,
                "read": counter.total(),
                "kept": counter[KEPT],
                "rules": {
                    key.removeprefix(f"{DROPPED} "): count for key, count in counter.most_common(6) if key != KEPT
                },
            }
            for name, counter in sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
        ]
        for tag, found in counts.items()
    }


def card(dataset: Dataset) -> str:
    """A data card in Markdown: what is in the dataset, where from, under which licences, what was done to it."""
    manifest = dataset.manifest
    told = statistics(dataset)
    totals = manifest.totals
    lines = [
        f"# Dataset {dataset.manifest_hash[:16]}",
        "",
        f"{totals.documents:,} documents, {totals.tokens:,} tokens, {totals.bytes:,} bytes of text.",
        "",
        f"- manifest: SHA-256 `{dataset.manifest_hash}`",
        f"- tokenizer: SHA-256 `{manifest.tokenizer.sha256}`, {manifest.tokenizer.vocab_size:,} ids",
        f"- made by maxtrain {manifest.code_version}, build {manifest.build_version}, format {manifest.format_version}",
        "",
        *_markdown("Licences", "licence", told["licences"]),
    ]
    for tag in _TAGS:
        rows = {row.pop("name"): row for row in told["mixture"][tag]}
        lines += _markdown(f"By {tag}", tag, rows)
    lines += ["## What was done", "", "| rule | seen | changed | dropped | reasons |", "|---|---:|---:|---:|---|"]
    for row in told["funnel"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in row["reasons"].items())
        lines.append(f"| {row['rule']} | {row['seen']:,} | {row['changed']:,} | {row['dropped']:,} | {reasons} |")
    lines += ["", "## Inputs", "", "| file | licence | SHA-256 |", "|---|---|---|"]
    lines += [f"| {_cell(file.file)} | {_cell(file.licence)} | `{file.sha256}` |" for file in manifest.inputs]
    return "\n".join(lines) + "\n"


def _markdown(title: str, tag: str, rows: dict[str, dict[str, int]]) -> list[str]:
    lines = [f"## {title}", "", f"| {tag} | documents | tokens | bytes |", "|---|---:|---:|---:|"]
    for name, row in rows.items():
        lines.append(f"| {_cell(name)} | {row['documents']:,} | {row['tokens']:,} | {row['bytes']:,} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    """A text that cannot break out of a cell of a table."""
    clean = " ".join(text.split())
    return clean.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
