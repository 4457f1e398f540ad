"""The training loop. What happens beside the step is done by hooks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from maxtrain.parallel.emulation import settle
from maxtrain.train.clock import StepClock
from maxtrain.train.state import TrainState
from maxtrain.train.step import Batch, Metrics


class Hook:
    """Work beside the steps; a hook may read the state but changes nothing of it.

    Attributes:
        acts_on_stop: Whether to act when a signal stops the run: there may be little time left.
    """

    acts_on_stop = True

    def observe(self, step: int, metrics: dict[str, Any], seconds: dict[str, float]) -> None:
        """Take the metrics of a finished step (host values) and the seconds that it took, by phase."""

    def due(self, step: int) -> bool:
        """Whether `act` must be called after this step."""
        return False

    def act(self, step: int, state: TrainState) -> None:
        """Act on the state after a due step or the last one; every step so far has been observed."""


def run_steps(
    state: TrainState,
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    batches: Iterable[tuple[int, Batch]],
    hooks: Sequence[Hook],
    *,
    last_step: int,
    clock: StepClock,
    read_late: bool = True,
    stop_requested: Callable[[int], bool] = lambda step: False,
) -> TrainState:
    """Run steps until `last_step` batches are consumed, or a stop is requested (asked after every step but the last).

    Metrics are read one step late, so that devices never wait for the host. Where host and devices are the same
    processor nothing is gained by it, and several programs in flight can starve each other: read_late=False.

    Returns:
        The state after the last step; every step has been observed, and every hook has acted on the last one (on a
        requested stop: every hook that acts then).
    """
    unread: tuple[int, Metrics] | None = None

    def observe() -> None:
        nonlocal unread
        if unread is None:
            return
        step, metrics = unread
        with clock.phase("device"):
            values = jax.device_get(settle(metrics))
        seconds, unread = clock.lap(), None
        for hook in hooks:
            hook.observe(step, values, seconds)

    iterator = iter(batches)
    while True:
        with clock.phase("data_wait"):
            step, batch = next(iterator)
        state, metrics = train_step(state, batch)
        if read_late:
            observe()
        step, unread = step + 1, (step + 1, metrics)
        finished = step >= last_step
        stopped = not finished and stop_requested(step)
        due = [hook for hook in hooks if (hook.acts_on_stop if stopped else finished or hook.due(step))]
        if due or stopped or not read_late:
            observe()
        for hook in due:
            hook.act(step, state)
        if finished or stopped:
            return state
