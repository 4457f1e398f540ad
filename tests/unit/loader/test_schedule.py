import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.core.errors import UserError
from maxtrain.loader.schedule import WEIGHT_UNITS, Schedule, round_weights


def deviations(schedule: Schedule) -> np.ndarray:
    """Rows had minus rows due, of every domain after every prefix of a period: [period, D]."""
    domains, _ = schedule.locate(np.arange(schedule.period))
    had = np.cumsum(domains[:, None] == np.arange(len(schedule.units)), axis=0)
    due = np.arange(1, schedule.period + 1)[:, None] * schedule.units / schedule.period
    return had - due


@settings(max_examples=60, deadline=None)
@given(units=st.lists(st.integers(1, 120), min_size=1, max_size=20))
def test_every_prefix_is_within_one_row(units):
    schedule = Schedule(np.array(units))
    bound = 1 - 1 / (2 * len(units) - 2) if len(units) > 1 else 0
    assert np.abs(deviations(schedule)).max() <= bound + 1e-9


@pytest.mark.parametrize("num_domains", [2, 3, 16, 40])
def test_full_period_of_rounded_weights_is_within_one_row(num_domains):
    rng = np.random.default_rng(num_domains)
    weights = {f"d{i}": float(weight) for i, weight in enumerate(rng.pareto(1.0, num_domains) + 0.01)}
    schedule = Schedule(np.array(list(round_weights(weights).values())))
    off = deviations(schedule)
    assert np.abs(off).max() < 1
    assert np.abs(off[-1]).max() < 1e-6  # so that the next period starts afresh


@settings(max_examples=40, deadline=None)
@given(units=st.lists(st.integers(1, 9), min_size=1, max_size=6), rows=st.integers(0, 400))
def test_counts_and_ranks_agree_with_the_order(units, rows):
    schedule = Schedule(np.array(units))
    domains, ranks = schedule.locate(np.arange(rows))
    assert schedule.counts(rows).tolist() == [int((domains == d).sum()) for d in range(len(units))]
    for domain in range(len(units)):
        assert np.array_equal(ranks[domains == domain], np.arange((domains == domain).sum()))


def test_common_divisors_shorten_the_period():
    assert Schedule(np.array([WEIGHT_UNITS // 2, WEIGHT_UNITS // 4, WEIGHT_UNITS // 4])).period == 4


@settings(max_examples=80, deadline=None)
@given(weights=st.lists(st.floats(0.1, 100), min_size=1, max_size=30))
def test_weights_are_rounded_to_the_nearest_units(weights):
    units = round_weights({f"d{i}": weight for i, weight in enumerate(weights)})
    assert sum(units.values()) == WEIGHT_UNITS
    for unit, weight in zip(units.values(), weights, strict=True):
        assert abs(unit - weight * WEIGHT_UNITS / sum(weights)) < 1 + 1e-6


def test_a_share_under_one_unit_is_refused_by_name():
    assert round_weights({"common": WEIGHT_UNITS - 1.0, "rare": 1.0})["rare"] == 1
    limit = r"mixture\.rare\.weight: 1e-06 is 1e-06 of the mixture, under the least share of 1/65,536"
    with pytest.raises(UserError, match=limit):
        round_weights({"common": 1.0, "rare": 1e-6})
    with pytest.raises(UserError, match="rare"):
        round_weights({"common": 1.0, "rare": 0.9 / WEIGHT_UNITS})
