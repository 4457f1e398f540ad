"""Make the trigram table of Latin and Cyrillic letters that gibberish is told by.

    python tools/data/make_letter_model.py MULTILINGUAL.jsonl.zst...

Counts the texts of the Universal Declaration of Human Rights (public domain, unicode.org) in the given files of tagged
JSON lines, and the sample corpus's prose; every language weighs the same. Writes maxtrain/corpus/score/data/letters.npy
and prints its SHA-256: the same inputs give the same bytes.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from maxtrain.core import files
from maxtrain.core.records import parse_record, record_lines
from maxtrain.corpus.score.letters import CYRILLIC, LATIN, count_trigrams, letter_table, to_bits
from maxtrain.corpus.text import analyse

ROOT = Path(__file__).parent.parent.parent
TARGET = ROOT / "maxtrain" / "corpus" / "score" / "data" / "letters.npy"
UDHR = "public domain (UDHR texts"
LEAST_LETTERS = 3000
"""Languages with fewer letters of a script have no say in it."""


def main(paths: list[str]) -> int:
    """Count, weigh, write."""
    texts: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for _, line in record_lines(path):
            record = parse_record(line)
            if record["licence"].startswith(UDHR):
                texts[record["lang"]].append(record["text"])
    for _, line in record_lines(ROOT / "data" / "sample" / "book_en.jsonl.zst"):
        texts["en"].append(parse_record(line)["text"])
    latin, cyrillic = np.zeros((LATIN,) * 3), np.zeros((CYRILLIC,) * 3)
    for lang in sorted(texts):
        one, two = np.zeros((LATIN,) * 3, np.int64), np.zeros((CYRILLIC,) * 3, np.int64)
        for text in texts[lang]:
            count_trigrams(analyse(text).codes, letter_table(), one, two)
        for counts, total in ((one, latin), (two, cyrillic)):
            if (letters := counts.sum()) >= LEAST_LETTERS:
                total += counts * (10_000 / letters)
                print(lang, "Latin" if counts is one else "Cyrillic", int(letters))
    tables = [to_bits(np.rint(counts)) for counts in (latin, cyrillic)]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with TARGET.open("wb") as file:
        np.save(file, np.concatenate([table.reshape(-1) for table in tables]), allow_pickle=False)
    print(f"{TARGET}: {files.sha256_file(TARGET)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
