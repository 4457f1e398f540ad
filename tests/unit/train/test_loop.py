"""The loop: order of calls, metrics one step late, the last step, stops."""

import numpy as np

from maxtrain.train.clock import PHASES, StepClock
from maxtrain.train.loop import Hook, run_steps


class Recorder(Hook):
    def __init__(self, calls: list, every: int, acts_on_stop: bool = True) -> None:
        self.calls, self.every, self.acts_on_stop = calls, every, acts_on_stop

    def observe(self, step, metrics, seconds):
        assert set(seconds) == {*PHASES, "host", "step"}
        self.calls.append(("observe", step, int(metrics["step"])))

    def due(self, step):
        return step % self.every == 0

    def act(self, step, state):
        self.calls.append(("act", step, int(state)))


def run(
    last_step: int,
    *,
    first: int = 0,
    every: int = 3,
    stop_after: int | None = None,
    read_late: bool = True,
    acts_on_stop: bool = True,
) -> list:
    calls: list = []

    def train_step(state, batch):
        calls.append(("step", int(state) + 1, int(batch)))
        return state + 1, {"step": state + 1}

    batches = ((step, np.int64(step)) for step in range(first, 100))
    done = lambda step: stop_after is not None and any(call[:2] == ("step", stop_after) for call in calls)  # noqa: E731
    state = run_steps(
        np.int64(first),  # type: ignore[arg-type]
        train_step,
        batches,  # type: ignore[arg-type]
        [Recorder(calls, every, acts_on_stop)],
        last_step=last_step,
        clock=StepClock(),
        read_late=read_late,
        stop_requested=done,
    )
    calls.append(("end", int(state)))  # type: ignore[call-overload]
    return calls


def test_metrics_are_read_one_step_late_and_before_a_hook_acts():
    assert run(4) == [
        ("step", 1, 0),
        ("step", 2, 1),
        ("observe", 1, 1),
        ("step", 3, 2),
        ("observe", 2, 2),
        ("observe", 3, 3),
        ("act", 3, 3),
        ("step", 4, 3),
        ("observe", 4, 4),
        ("act", 4, 4),  # the last step, though it is not due
        ("end", 4),
    ]


def test_metrics_may_be_read_at_once():
    assert run(2, every=100, read_late=False) == [
        ("step", 1, 0),
        ("observe", 1, 1),
        ("step", 2, 1),
        ("observe", 2, 2),
        ("act", 2, 2),
        ("end", 2),
    ]


def test_every_step_is_observed_once_after_a_resume():
    calls = run(9, first=5, every=100)
    assert [call[1] for call in calls if call[0] == "observe"] == [6, 7, 8, 9]
    assert [call[2] for call in calls if call[0] == "step"] == [5, 6, 7, 8]


def test_a_stop_ends_with_observation_and_action():
    calls = run(50, every=100, stop_after=7)
    assert calls[-3:] == [("observe", 7, 7), ("act", 7, 7), ("end", 7)]


def test_what_can_wait_is_left_out_on_a_stop_but_not_at_the_end():
    calls = run(50, every=7, stop_after=7, acts_on_stop=False)
    assert calls[-2:] == [("observe", 7, 7), ("end", 7)]
    assert run(7, every=100, stop_after=7, acts_on_stop=False)[-2:] == [("act", 7, 7), ("end", 7)]


def test_clock_accounts_for_all_time():
    clock = StepClock()
    with clock.phase("evaluation"):
        sum(range(100_000))
    with clock.phase("device"):
        sum(range(100_000))
    seconds = clock.lap()
    assert seconds["evaluation"] > 0
    assert seconds["device"] + seconds["host"] + seconds["data_wait"] <= seconds["step"] + 1e-9
    assert clock.lap()["evaluation"] == 0
