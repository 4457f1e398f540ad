"""Whether a saved state can be trusted: a first verdict at its commit, the last one by the steps that follow.

Nothing here imports JAX or reads a clock: verdicts follow from the run's steps alone.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self


class Health(StrEnum):
    """What is thought of a step's state."""

    PROVISIONAL = "provisional"
    """Finite, but too few steps have followed to tell more; it may be restored."""
    HEALTHY = "healthy"
    """Enough clean steps have followed."""
    UNHEALTHY = "unhealthy"
    """Damaged, or suspected of it; it is restored only where it is asked for by number."""


class Verdict(NamedTuple):
    """A step's health and why."""

    health: Health
    reason: str = ""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self | None:
        """The verdict among JSON values; None where there is none that is known."""
        try:
            return cls(Health(values["health"]), str(values.get("reason", "")))
        except (KeyError, ValueError):
            return None


def first_verdict(record: Mapping[str, Any]) -> Verdict:
    """The verdict at the commit, by the record's `finite`: whether every float of the state is."""
    if record.get("finite", True) is True:
        return Verdict(Health.PROVISIONAL)
    return Verdict(Health.UNHEALTHY, "a value of its state is not finite")


class Probation(NamedTuple):
    """What the steps of a run so far tell of the states saved before them.

    A step is clean where its update was applied, and failed where it was skipped though there was something to learn:
    loss or gradient norm was not finite, or the norm was over its bound. The rule:

    - `healthy_after` clean steps in a row make every state saved before them healthy.
    - A skipped step is no damage, as it leaves the state as it was. Yet nobody knows whether the batch or the state
      caused it, so the count of clean steps starts again.
    - `max_skips` failed steps in a row, without a clean one between, make every state that is still provisional
      unhealthy: the one state that they all met failed on each of their batches, so batches are no longer likely to
      blame, and whatever damaged it may have come before any state that is not proven. What is healthy lies before.
    - A batch without a target tells nothing of the state: it is neither clean nor failed.
    - Step 0 never becomes unhealthy by what follows: there is no state before it to go back to.
    """

    clean_steps: int = 0
    """Clean steps in a row that end with the newest step."""
    failed_steps: int = 0
    """Failed steps since the newest clean one."""
    proven_step: int = -1
    """Newest step that enough clean steps in a row have followed."""

    def after(self, step: int, *, clean: bool, failed: bool, healthy_after: int) -> "Probation":
        """Take in the step that made the counter reach `step`."""
        clean_steps = self.clean_steps + 1 if clean else 0
        return Probation(
            clean_steps,
            0 if clean else self.failed_steps + failed,
            step - healthy_after if clean_steps >= healthy_after else self.proven_step,
        )

    def verdict(self, saved: int, *, max_skips: int) -> Verdict:
        """The verdict on a finite state that was saved at step `saved` or before the newest one."""
        if saved <= self.proven_step:
            return Verdict(Health.HEALTHY, "clean steps followed")
        if self.failed_steps >= max_skips and saved > 0:
            return Verdict(Health.UNHEALTHY, f"{self.failed_steps} steps in a row failed before it was proven")
        return Verdict(Health.PROVISIONAL)
