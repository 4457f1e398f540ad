"""Make the tables of classes and characters that wrong decodings are told by.

    python -m tools.data.make_character_model MULTILINGUAL.jsonl.zst...

Counts the texts of the Universal Declaration of Human Rights (public domain, unicode.org) in the given files of tagged
JSON lines, and the sample corpus's English and Chinese prose; every language weighs the same, Chinese more, for it has
more characters. Writes maxtrain/corpus/clean/data/characters.npz and prints its SHA-256: the same inputs give the same
bytes.
"""

import sys

import numpy as np

from maxtrain.core import files
from maxtrain.corpus.clean.plausible import BITS_UNIT, NUM_CLASSES, count_kinds, kind_table
from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import TABLE_SIZE
from tools.data.languages import ROOT, texts_by_language

TARGET = ROOT / "maxtrain" / "corpus" / "clean" / "data" / "characters.npz"
WEIGHT = 10_000
CHINESE_WEIGHT = 200_000
"""Characters that a language counts for."""
UNSEEN = 0.05
"""Count of a character that was not seen."""


def main(paths: list[str]) -> int:
    """Count, weigh, write."""
    texts = texts_by_language(paths, {"book_en": "en", "book_zh": "sample zh"})
    kinds = kind_table()
    pairs, characters = np.zeros((NUM_CLASSES, NUM_CLASSES)), np.zeros(TABLE_SIZE)
    for lang in sorted(texts):
        two, one = np.zeros((NUM_CLASSES, NUM_CLASSES), np.int64), np.zeros(TABLE_SIZE, np.int64)
        for text in texts[lang]:
            count_kinds(analyse(text).codes, kinds, two, one)
        total = int(one.sum())
        pairs += two * (WEIGHT / total)
        characters += one * ((CHINESE_WEIGHT if lang == "sample zh" else WEIGHT) / total)
        print(lang, total)
    pair_bits = -np.log2((pairs + 0.02) / (pairs.sum(1, keepdims=True) + 0.02 * NUM_CLASSES + 1))
    sizes = np.bincount(kinds, minlength=NUM_CLASSES)
    # A class's unseen characters share what the basic ones among them would need: at most 4,000.
    totals = np.bincount(kinds, characters, NUM_CLASSES) + UNSEEN * np.minimum(sizes, 4000)
    seen = np.flatnonzero(characters)
    bits = -np.log2((characters[seen] + UNSEEN) / totals[kinds[seen]])
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        TARGET,
        unseen=_scale(-np.log2(UNSEEN / totals)),
        codes=seen.astype(np.uint32),
        bits=_scale(bits),
        pairs=_scale(pair_bits),
    )
    print(f"{TARGET}: {files.sha256_file(TARGET)}")
    return 0


def _scale(bits: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(bits * BITS_UNIT), 0, 255).astype(np.uint8)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
