import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.loader.permutation import KeyedBijection


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), key=st.text(max_size=8))
def test_is_a_bijection_with_its_inverse(size, key):
    bijection = KeyedBijection(size, key)
    values = bijection(np.arange(size))
    assert np.array_equal(np.sort(values), np.arange(size))
    assert np.array_equal(bijection.invert(values), np.arange(size))


@pytest.mark.parametrize("size", [2**40 + 12345, 2**62 - 1])
def test_reaches_sizes_that_no_memory_holds(size):
    positions = np.random.default_rng(0).integers(0, size, 1000)
    bijection = KeyedBijection(size, "key")
    values = bijection(positions)
    assert values.min() >= 0
    assert values.max() < size
    assert np.array_equal(bijection.invert(values), positions)


def test_a_value_depends_on_neither_its_company_nor_the_machine():
    bijection = KeyedBijection(1000, "seed 7")
    together = bijection(np.arange(1000))
    assert [int(bijection(np.array([place]))[0]) for place in range(1000)] == together.tolist()
    # The function is named in the fingerprint: other values need another name.
    assert KeyedBijection(10, "0")(np.arange(10)).tolist() == PINNED


PINNED = [1, 3, 6, 2, 8, 0, 9, 7, 5, 4]


def test_tabulated_values_are_those_of_the_walk(monkeypatch):
    size = 5000
    tabulated = KeyedBijection(size, "key")(np.arange(size))
    monkeypatch.setattr("maxtrain.loader.permutation._TABULATED", 0)
    assert np.array_equal(KeyedBijection(size, "key")(np.arange(size)), tabulated)


def test_every_order_of_a_small_set_occurs():
    orders = {tuple(KeyedBijection(4, f"{key}")(np.arange(4)).tolist()) for key in range(400)}
    assert orders == set(itertools.permutations(range(4)))


def test_neighbours_are_scattered_and_keys_differ():
    size = 10_000
    first, second = (KeyedBijection(size, key)(np.arange(size)) for key in ("a", "b"))
    assert abs(np.corrcoef(np.arange(size), first)[0, 1]) < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    steps = np.abs(np.diff(first))
    assert abs(steps.mean() / (size / 3) - 1) < 0.05  # mean distance of two random points


def test_an_empty_set_has_no_order():
    with pytest.raises(ValueError, match="at least 1"):
        KeyedBijection(0, "key")
