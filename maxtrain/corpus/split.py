"""Held-out splits, chosen by a hash of each document's id."""

import hashlib
from collections.abc import Mapping

from maxtrain.dataset import TRAIN_SPLIT


def split_of(doc_id: str, splits: Mapping[str, float]) -> str:
    """The split of a document: a hash of its id falls in one of the shares laid end to end, or in the rest."""
    digest = hashlib.sha256(b"split\0" + doc_id.encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    edge = 0.0
    for name, fraction in splits.items():
        edge += fraction
        if place < edge:
            return name
    return TRAIN_SPLIT
