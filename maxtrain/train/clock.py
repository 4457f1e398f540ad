"""Where the wall time of a step goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("data_wait", "device", "save_stall", "evaluation", "profile")
"""What is timed apart; the rest of a step is the host's."""


class StepClock:
    """Splits the time between two finished steps into phases (seconds)."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spent = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as this phase; phases do not nest."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] += time.perf_counter() - start

    def lap(self) -> dict[str, float]:
        """End the step: seconds by phase, `host`, and `step`, which leaves saves, evaluation and profiling out."""
        now = time.perf_counter()
        spent = self._spent
        whole = now - self._start
        host = max(whole - sum(spent.values()), 0.0)
        step = whole - spent["save_stall"] - spent["evaluation"] - spent["profile"]
        self._start, self._spent = now, dict.fromkeys(PHASES, 0.0)
        return {**spent, "host": host, "step": step}
