"""A linear classifier over hashed n-grams, trained and kept so that the same texts give the same bytes.

Features are n-grams of units (1 and 2) and of letters inside units (their first and last three), hashed to a table of
weights (Weinberger et al. 2009); each counts once a text, and the vector has length 1. Logistic loss, AdaGrad (Duchi et
al. 2011), in an order of texts that follows from their hashes.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.corpus.text.analysis import Analysis, analyse
from maxtrain.corpus.text.kernels import compiled, mix

_MAGIC = b"maxtrain linear 1\n"
_BITS = 18
_MOST_UNITS = 4000


@compiled
def _features(
    codes: np.ndarray, starts: np.ndarray, ends: np.ndarray, hashes: np.ndarray, bits: int, most: int
) -> np.ndarray:
    """Sorted distinct features of a text, [features] int64 below 2^bits."""
    units = min(len(hashes), most)
    found = np.empty(4 * units, np.int64)
    shift = np.uint64(64 - bits)
    count = 0
    for unit in range(units):
        found[count] = np.int64(mix(hashes[unit] ^ np.uint64(0x51)) >> shift)
        count += 1
        if unit + 1 < units:
            pair = mix(mix(hashes[unit] ^ np.uint64(0x52)) ^ hashes[unit + 1])
            found[count] = np.int64(pair >> shift)
            count += 1
        if ends[unit] - starts[unit] > 4:
            head = np.uint64(0x53)
            tail = np.uint64(0x54)
            for offset in range(3):
                head = mix(head ^ np.uint64(codes[starts[unit] + offset]))
                tail = mix(tail ^ np.uint64(codes[ends[unit] - 1 - offset]))
            found[count] = np.int64(head >> shift)
            found[count + 1] = np.int64(tail >> shift)
            count += 2
    return np.unique(found[:count])


@compiled
def _train(
    flat: np.ndarray, bounds: np.ndarray, labels: np.ndarray, order: np.ndarray, size: int, epochs: int, decay: float
) -> np.ndarray:
    """Weights and, last, the bias, [size + 1] float64."""
    weights = np.zeros(size + 1)
    squares = np.full(size + 1, 1e-8)
    for _ in range(epochs):
        for text in order:
            first, last = bounds[text], bounds[text + 1]
            scale = 1.0 / np.sqrt(max(last - first, 1))
            total = weights[size]
            for place in range(first, last):
                total += weights[flat[place]] * scale
            error = 1.0 / (1.0 + np.exp(-total)) - labels[text]
            for place in range(first, last):
                feature = flat[place]
                slope = error * scale + decay * weights[feature]
                squares[feature] += slope * slope
                weights[feature] -= 0.5 * slope / np.sqrt(squares[feature])
            squares[size] += error * error
            weights[size] -= 0.5 * error / np.sqrt(squares[size])
    return weights


def features(analysis: Analysis) -> np.ndarray:
    """Distinct features of the first 4,000 units of a text, [features] int64."""
    return _features(analysis.codes, analysis.unit_starts, analysis.unit_ends, analysis.unit_hashes, _BITS, _MOST_UNITS)


@dataclass(frozen=True)
class LinearModel:
    """Weights of a trained classifier.

    Attributes:
        weights: [2^18 + 1] float32, the bias last.
        facts: what it was trained on and how good it is, plain values.
    """

    weights: np.ndarray
    facts: dict[str, Any]

    def probability(self, text: str) -> float:
        """Probability of the positive class, in [0, 1]; that of no text is of the bias alone."""
        found = features(analyse(text))
        total = float(self.weights[-1]) + float(self.weights[found].sum()) / max(len(found), 1) ** 0.5
        return float(1 / (1 + np.exp(-np.clip(total, -30, 30))))

    def to_bytes(self) -> bytes:
        """The model as a file: a line of JSON, then the weights, little-endian float32."""
        head = json.dumps(self.facts, sort_keys=True, ensure_ascii=False).encode()
        return _MAGIC + head + b"\n" + self.weights.astype("<f4").tobytes()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model.

        Raises:
            DataError: it is missing or none.
        """
        try:
            data = files.read_bytes(path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such model; python -m maxtrain.corpus train-quality makes one") from None
        head, _, rest = data.removeprefix(_MAGIC).partition(b"\n")
        if not data.startswith(_MAGIC) or len(rest) != 4 * (2**_BITS + 1):
            raise DataError(f"{path}: not a linear model; python -m maxtrain.corpus train-quality makes one")
        try:
            facts = json.loads(head)
        except ValueError:
            raise DataError(f"{path}: damaged; train the model again") from None
        return cls(np.frombuffer(rest, "<f4"), facts)


def train_linear(
    positive: Sequence[str], negative: Sequence[str], *, epochs: int = 5, held_out: float = 0.1
) -> LinearModel:
    """Train on texts; their order does not matter.

    Args:
        positive: texts of the class whose probability the model tells.
        negative: texts of the other.
        epochs: passes over the texts.
        held_out: share of the texts, by hash, that only measure: area under the ROC curve and calibration.

    Raises:
        DataError: a class has fewer than 20 texts.
    """
    for name, texts in (("positive", positive), ("negative", negative)):
        if len(texts) < 20:
            raise DataError(f"{len(texts)} {name} texts are too few to train on; give 20 and more")
    entries = sorted(
        (hashlib.sha256(text.encode()).digest(), label, text)
        for label, texts in ((1, positive), (0, negative))
        for text in texts
    )
    found = [features(analyse(text)) for _, _, text in entries]
    labels = np.array([label for _, label, _ in entries], np.float64)
    measured = np.array([digest[-1] / 256 < held_out for digest, _, _ in entries])
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in found])]).astype(np.int64)
    order = np.flatnonzero(~measured)
    weights = _train(np.concatenate(found), bounds, labels, order, 2**_BITS, epochs, 1e-6).astype(np.float32)
    model = LinearModel(weights, {})
    scores = np.array([model.probability(entries[number][2]) for number in np.flatnonzero(measured)])
    facts = {
        "texts": {"positive": len(positive), "negative": len(negative)},
        "epochs": epochs,
        "held_out": _measure(scores, labels[measured]),
    }
    return LinearModel(weights, facts)


def _measure(scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Area under the ROC curve (Mann and Whitney 1947) and mean probability by class."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    if not len(positive) or not len(negative):
        return {"texts": len(scores), "auc": None}
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    auc = (ranks[labels == 1].sum() - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative))
    return {
        "texts": len(scores),
        "auc": round(float(auc), 4),
        "mean_positive": round(float(positive.mean()), 4),
        "mean_negative": round(float(negative.mean()), 4),
    }
