import json
from collections import Counter

import pytest

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.text import analyse
from maxtrain.tokenizer import train_tokenizer

RECIPE = """\
output: {output}
inputs:
  - files: in/*.jsonl
    licence: MIT
tokenizer:
  train: {{vocab_size: 4096, character_coverage: 0.98}}
splits: {{heldout: 0.2, test: 0.1}}
shard_tokens: 20K
"""


@pytest.fixture(scope="session")
def records(root):
    """Real records of every kind."""
    chosen = []
    for path in sorted((root / "data" / "sample").glob("*.jsonl.zst")):
        lines = iterate_lines(path)
        chosen += [json.loads(next(lines)) for _ in range(12)]
    return [{**record, "text": record["text"][:4000]} for record in chosen]


@pytest.fixture(scope="session")
def tokenizer_model(records):
    """A small tokenizer's model."""
    return train_tokenizer([record["text"] for record in records], vocab_size=4096, character_coverage=0.98).model


@pytest.fixture
def recipe(tmp_path, records):
    """A recipe with two input files; its output is `out` beside it."""
    (tmp_path / "in").mkdir()
    for name, part in (("a", records[::2]), ("b", records[1::2])):
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in part)
        (tmp_path / "in" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(output=tmp_path / "out"))
    return path


@pytest.fixture(scope="session")
def overlap():
    """F1 of two texts: twice the units that they share, as bags, over the units of both."""

    def overlap(one, other):
        bags = [Counter(analyse(text).unit_hashes.tolist()) for text in (one, other)]
        return 2 * (bags[0] & bags[1]).total() / max(bags[0].total() + bags[1].total(), 1)

    return overlap
