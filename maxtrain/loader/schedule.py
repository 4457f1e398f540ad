"""Which domain each row of a stage belongs to: proportions within one row on every prefix."""

import heapq
from collections.abc import Mapping
from fractions import Fraction
from math import gcd

import numpy as np

from maxtrain.config.schema import WEIGHT_UNITS
from maxtrain.core.errors import UserError

SCHEDULE_VERSION = "tijdeman-65536-v1"
"""Name of the rounding and the order; part of the loader's fingerprint."""


def round_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Shares as k / 65,536 by largest remainder; ties go to the earlier domain.

    Args:
        weights: positive relative weights by domain.

    Returns:
        Numerators by domain; they add up to 65,536.

    Raises:
        UserError: a domain's share is under 1 / 65,536.
    """
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    total = sum(exact.values())
    shares = {name: weight * WEIGHT_UNITS / total for name, weight in exact.items()}
    for name, share in shares.items():
        if share < 1:
            raise UserError(
                f"mixture.{name}.weight: {weights[name]} is {float(share / WEIGHT_UNITS):.2g} of the mixture, under "
                f"the least share of 1/{WEIGHT_UNITS:,}; raise it, or remove the domain"
            )
    units = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: units[name] - shares[name])
    for name in by_remainder[: WEIGHT_UNITS - sum(units.values())]:
        units[name] += 1
    return units


class Schedule:
    """Tijdeman's order (The chairman assignment problem, 1980) of one period, by earliest deadline.

    After any number of rows k, a domain has had k × weight / period rows to within 1 - 1/(2D - 2), D >= 2 domains.
    """

    def __init__(self, units: np.ndarray) -> None:
        """Tabulate one period.

        Args:
            units: int64 [D], positive numerators of the domains' shares.
        """
        divisor = gcd(*(int(unit) for unit in units))
        self.units = np.asarray(units, dtype=np.int64) // divisor
        self.period = int(self.units.sum())
        self._domain = _tijdeman([int(unit) for unit in self.units])
        self._positions = [np.flatnonzero(self._domain == domain) for domain in range(len(self.units))]
        self._rank = np.empty(self.period, dtype=np.int64)
        for positions in self._positions:
            self._rank[positions] = np.arange(len(positions))

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Domain of each row, and how many rows of that domain come before it.

        Args:
            rows: int64 [R], rows of the stage.

        Returns:
            int64 [R] domains and int64 [R] row numbers inside the domain.
        """
        turns, place = np.divmod(rows, self.period)
        domain = self._domain[place]
        return domain, turns * self.units[domain] + self._rank[place]

    def counts(self, num_rows: int) -> np.ndarray:
        """Rows of each domain among the first num_rows: int64 [D]."""
        turns, place = divmod(num_rows, self.period)
        part = [np.searchsorted(positions, place) for positions in self._positions]
        return turns * self.units + np.array(part, dtype=np.int64)


def _tijdeman(units: list[int]) -> np.ndarray:
    """One period of domains, int64 [sum(units)].

    The x-th row of a domain must lie in a window of slots: not so early that the domain would be ahead by more than
    1 - 1/m, not so late that it would be behind by more than that (m = 2D - 2). Earliest deadline first meets every
    window, because Tijdeman proved that some order does.
    """
    period, num_domains = sum(units), len(units)
    order = np.zeros(period, dtype=np.int64)
    if num_domains == 1:
        return order
    m = 2 * num_domains - 2
    # Heap entries: (slot of release, deadline, domain, x) and (deadline, domain, x); slots count from 1.
    waiting = [(*_window(0, unit, period, m), domain, 0) for domain, unit in enumerate(units)]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    for slot in range(1, period + 1):
        while waiting and waiting[0][0] <= slot:
            _, deadline, domain, x = heapq.heappop(waiting)
            heapq.heappush(ready, (deadline, domain, x))
        deadline, domain, x = heapq.heappop(ready)
        assert slot <= deadline
        order[slot - 1] = domain
        if x + 1 < units[domain]:
            heapq.heappush(waiting, (*_window(x + 1, units[domain], period, m), domain, x + 1))
    return order


def _window(x: int, unit: int, period: int, m: int) -> tuple[int, int]:
    """First and last slot of a domain's x-th row."""
    release = -(-period * (m * x + 1) // (m * unit))
    deadline = period * (m * (x + 1) - 1) // (m * unit) + 1
    return release, deadline
