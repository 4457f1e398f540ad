from collections import Counter

import pytest

from maxtrain.corpus.text import analyse


@pytest.fixture(scope="session")
def overlap():
    """F1 of two texts: twice the units that they share, as bags, over the units of both."""

    def overlap(one, other):
        bags = [Counter(analyse(text).unit_hashes.tolist()) for text in (one, other)]
        return 2 * (bags[0] & bags[1]).total() / max(bags[0].total() + bags[1].total(), 1)

    return overlap
