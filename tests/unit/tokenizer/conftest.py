import json

import pytest

from maxtrain.core.lines import iterate_lines
from maxtrain.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def texts(root):
    """Some real texts of every kind in the sample."""
    chosen = []
    for path in sorted((root / "data" / "sample").glob("*.jsonl.zst")):
        lines = iterate_lines(path)
        chosen += [json.loads(next(lines))["text"] for _ in range(12)]
    return chosen


@pytest.fixture(scope="session")
def tokenizer(texts):
    return train_tokenizer(texts, vocab_size=4096)
