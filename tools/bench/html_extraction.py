"""Quality and speed of main-text extraction: ours beside resiliparse's and trafilatura's own.

    python -m tools.bench.html_extraction PAGES.jsonl.zst ... [--by source] [--json FILE]

A line of a file holds a page (`html`, or `html_b64` with its `charset`) and its `main_text`. F1 of a page is that of
two bags of units, those of the extracted text and of the true one: 2 · |A ∩ B| / (|A| + |B|), counted with repetition.
A unit is a word in lower case or, in a script without spaces between words, one character (`maxtrain.corpus.text`).
Order, white space and punctuation do not count. The figure of a file is the mean over its pages; speed is markup in
UTF-8 per CPU-second.
"""

import argparse
import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trafilatura
from resiliparse.extract.html2text import extract_plain_text

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.html import decode_page, main_text, quality_text
from maxtrain.corpus.text import analyse
from tools.bench.common import add_common_arguments, describe_machine, pin

EXTRACTORS: dict[str, Callable[[str], str]] = {
    "maxtrain main": lambda html: main_text(html).text,
    "maxtrain quality": lambda html: quality_text(html).text,
    "resiliparse main_content": lambda html: extract_plain_text(html, main_content=True),
    "resiliparse, no comments": lambda html: extract_plain_text(
        html, main_content=True, comments=False, alt_texts=False, list_bullets=False
    ),
    "resiliparse all": lambda html: extract_plain_text(html),
    "trafilatura": lambda html: trafilatura.extract(html) or "",
}


def bag(text: str) -> Counter[int]:
    """Units of a text with their counts."""
    return Counter(analyse(text).unit_hashes.tolist())


def scores(found: str, wanted: str) -> tuple[float, float, float]:
    """F1, precision and recall of a page."""
    one, other = bag(found), bag(wanted)
    shared = (one & other).total()
    total = one.total() + other.total()
    return 2 * shared / max(total, 1), shared / max(one.total(), 1), shared / max(other.total(), 1)


def read_pages(path: str) -> list[dict[str, Any]]:
    """Pages of a file, decoded."""
    rows = [json.loads(line) for line in iterate_lines(path)]
    for row in rows:
        if "html_b64" in row:
            row["html"] = decode_page(base64.b64decode(row["html_b64"])).text
    return rows


def mean(values: list[float]) -> float:
    """Mean, rounded."""
    return round(sum(values) / len(values), 4)


def measure(rows: list[dict[str, Any]], extract: Callable[[str], str], key: str | None) -> dict[str, Any]:
    """Figures of one extractor."""
    extract(rows[0]["html"])
    started = time.process_time()
    texts = [extract(row["html"]) for row in rows]
    seconds = time.process_time() - started
    found = [scores(text, row["main_text"]) for text, row in zip(texts, rows, strict=True)]
    groups: dict[str, list[float]] = {}
    for score, row in zip(found, rows, strict=True):
        groups.setdefault(str(row.get(key, "")) if key else "", []).append(score[0])
    size = sum(len(row["html"].encode()) for row in rows)
    f1, precision, recall = (mean([score[part] for score in found]) for part in range(3))
    result = {"f1": f1, "precision": precision, "recall": recall, "mb_per_cpu_second": round(size / 1e6 / seconds, 1)}
    return result | ({"by": {name: mean(group) for name, group in sorted(groups.items())}} if key else {})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", help="files of pages")
    parser.add_argument("--by", help="field whose values have a mean of their own, such as lang, source or style")
    add_common_arguments(parser)
    arguments = parser.parse_args()
    pin(arguments.core)
    results: dict[str, Any] = {}
    for path in arguments.pages:
        rows = read_pages(path)
        print(f"\n{path}: {len(rows)} pages\n{'':26}    F1  precision  recall  MB/CPU-s")
        for name, extract in EXTRACTORS.items():
            found = measure(rows, extract, arguments.by)
            results.setdefault(path, {})[name] = found
            print(
                f"{name:26} {found['f1']:.4f}  {found['precision']:9.4f}  {found['recall']:6.4f}  "
                f"{found['mb_per_cpu_second']:8.1f}"
            )
            for group, value in found.get("by", {}).items():
                print(f"    {group:50} {value:.4f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": describe_machine(arguments.core), **results}, indent=1))


if __name__ == "__main__":
    main()
