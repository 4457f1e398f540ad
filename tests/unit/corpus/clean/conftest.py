import io
import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import zstandard

from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change


@pytest.fixture(scope="session")
def rows(shared):
    """Rows of a file of real text, every `step`-th."""

    def load(name, step=1):
        with zstandard.open(shared / "corpora" / f"{name}.jsonl.zst", "rb") as file:
            lines = io.TextIOWrapper(file, encoding="utf-8")
            return [json.loads(line) for number, line in enumerate(lines) if number % step == 0]

    return load


@pytest.fixture(scope="session")
def dirty(rows):
    """Rows with a known defect and the undamaged text, by defect."""
    found = defaultdict(list)
    for row in rows("dirty"):
        found[row["dirt"]].append(row)
    return found


@pytest.fixture(scope="session")
def run():
    """The text that rules make of a text, None where one drops it."""

    def apply(rules, text, lang="en", category="web"):
        document = Document("0", text, "s", lang, category, "MIT", "in", 1)
        for rule in rules:
            result = rule.apply(document)
            if isinstance(result, Change):
                document.text = result.text
            elif result is not None:
                return None
        return document.text

    return apply


def _pairs(text):
    text = " ".join(text.translate(str.maketrans("‘’“”", "''\"\"")).split())
    return Counter(pairwise(text))


@pytest.fixture(scope="session")
def similarity():
    """F1 of the pairs of characters of two texts, white space and the form of quotes aside."""

    def measure(first, second):
        one, two = _pairs(first), _pairs(second)
        total = one.total() + two.total()
        return 2 * (one & two).total() / total if total else 1.0

    return measure
