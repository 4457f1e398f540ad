"""tools/oracles/ngram.py against the textbook recursion over dictionaries."""

import importlib.util
import math
import sys
from collections import Counter

import numpy as np
import pytest


@pytest.fixture(scope="module")
def ngram(root):
    spec = importlib.util.spec_from_file_location("ngram_oracle", root / "tools" / "oracles" / "ngram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ngram_oracle"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ngram_oracle"]


def plain_probability(counts, history, word, vocab):
    """Absolute discounting with interpolation; counts: {history: Counter of words}."""
    lower = 1 / vocab if not history else plain_probability(counts, history[1:], word, vocab)
    seen = counts.get(history)
    if not seen:
        return lower
    total = sum(seen.values())
    return max(seen[word] - 0.75, 0) / total + 0.75 * len(seen) / total * lower


def histories(dataset, loader, rows):
    """(history, target, domain) of every counted target, by a loop over pieces."""
    found = []
    for row in rows:
        for piece in loader.trace(row):
            document = dataset.tokens(piece.document).tolist()
            for place in range(piece.start_in_document, piece.start_in_document + piece.num_tokens):
                if place + 1 < len(document):
                    history = tuple(document[max(place - 1, piece.start_in_document) : place + 1])
                    found.append((history, document[place + 1]))
    return found


def test_probabilities_equal_the_recursion(ngram, make_dataset, make_loader, domain):
    dataset = make_dataset([{"length": 5 + i % 40} for i in range(60)])
    loader = make_loader((dataset, {"all": domain()}, 32, [(12, 2)]))
    consumed = histories(dataset, loader, range(20))
    scored = histories(dataset, loader, range(20, 24))
    counts: dict = {}
    for history, target in consumed:
        for order in range(len(history) + 1):
            counts.setdefault(history[len(history) - order :], Counter())[target] += 1
    expected = [-math.log(plain_probability(counts, history, target, 1000)) for history, target in scored]

    model = ngram.Trigram(ngram.events_of(loader.batch(step) for step in range(10)), 1000)
    nats = model.nats(ngram.events_of(loader.batch(step) for step in range(10, 12)))
    assert np.allclose(np.sort(nats), np.sort(expected), rtol=1e-12)


def test_probabilities_add_up_to_one(ngram):
    rng = np.random.default_rng(0)
    vocab = 12
    second, first, target = rng.integers(0, vocab, (3, 300)) % np.array([[3], [5], [9]])
    model = ngram.Trigram(ngram.Events(second, first, target, np.zeros(300, np.int64)), vocab)
    for context in [(0, 0), (2, 4), (11, 3), (11, 11), (-1, 2)]:
        words = np.arange(vocab)
        events = ngram.Events(np.full(vocab, context[0]), np.full(vocab, context[1]), words, np.zeros(vocab, np.int64))
        assert np.exp(-model.nats(events)).sum() == pytest.approx(1)
