"""Make the trigram table of Latin and Cyrillic letters that gibberish is told by.

    python -m tools.data.make_letter_model MULTILINGUAL.jsonl.zst...

Counts the texts of the Universal Declaration of Human Rights (public domain, unicode.org) in the given files of tagged
JSON lines, and the sample corpus's prose; every language weighs the same. Writes maxtrain/corpus/score/data/letters.npy
and prints its SHA-256: the same inputs give the same bytes.
"""

import sys

import numpy as np

from maxtrain.core import files
from maxtrain.corpus.score.letters import CYRILLIC, LATIN, count_trigrams, to_bits
from maxtrain.corpus.text import analyse
from tools.data.languages import ROOT, texts_by_language

TARGET = ROOT / "maxtrain" / "corpus" / "score" / "data" / "letters.npy"
LEAST_LETTERS = 3000
"""Languages with fewer letters of a script have no say in it."""


def main(paths: list[str]) -> int:
    """Count, weigh, write."""
    texts = texts_by_language(paths, {"book_en": "en"})
    latin, cyrillic = np.zeros((LATIN,) * 3), np.zeros((CYRILLIC,) * 3)
    for lang in sorted(texts):
        one, two = np.zeros((LATIN,) * 3, np.int64), np.zeros((CYRILLIC,) * 3, np.int64)
        for text in texts[lang]:
            latin_part, cyrillic_part = count_trigrams(analyse(text).codes)
            one += latin_part
            two += cyrillic_part
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
