"""What happens beside the steps: logging, the guard, saving, evaluation."""

from collections.abc import Callable
from typing import Any

from maxtrain.checkpoint import CheckpointStore
from maxtrain.config.schema import GuardConfig
from maxtrain.core.errors import StoppedError
from maxtrain.monitor.heldout import HeldOutResult
from maxtrain.train.clock import StepClock
from maxtrain.train.journal import Journal
from maxtrain.train.loop import Hook
from maxtrain.train.metrics import LineBuilder
from maxtrain.train.state import TrainState, to_saved

Metrics = dict[str, Any]
Seconds = dict[str, float]


class LogHook(Hook):
    """Writes every step's line to metrics.jsonl, the sinks and the progress line."""

    def __init__(self, build: LineBuilder, journal: Journal | None) -> None:
        self._build, self._journal = build, journal

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Write the step's line."""
        if self._journal is None:
            return
        line = self._journal.metrics.write(self._build(step, metrics, seconds))
        for sink in self._journal.sinks:
            sink.write(line)
        self._journal.progress.update(line)


class GuardHook(Hook):
    """Records skipped steps, and stops the run after too many in a row."""

    def __init__(self, config: GuardConfig, journal: Journal | None) -> None:
        self._config, self._journal = config, journal

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Record a skipped step; raise StoppedError after too many."""
        if not metrics["skipped"]:
            return
        loss, norm = float(metrics["loss"]), float(metrics["grad_norm"])
        bound = self._config.max_grad_norm
        reason = "no target token" if metrics["target_tokens"] == 0 else f"loss {loss:g}, gradient norm {norm:g}"
        if self._journal is not None:
            self._journal.events.write("skip", step, reason=reason, loss=loss, grad_norm=norm, max_grad_norm=bound)
        if metrics["skips_in_a_row"] >= self._config.max_skips:
            raise StoppedError(
                f"step {step}: {int(metrics['skips_in_a_row'])} steps in a row were skipped ({reason}), the limit "
                "guard.max_skips; parameters are as before the first of them; see events.jsonl"
            )


class SaveHook(Hook):
    """Saves every so many steps and after the last one; the lines up to the step are durable before it commits."""

    def __init__(
        self,
        store: CheckpointStore,
        record: Callable[[int, Metrics], dict[str, Any]],
        *,
        every: int,
        flush: Callable[[], None] | None,
        clock: StepClock,
    ) -> None:
        self._store, self._record, self._every, self._flush, self._clock = store, record, every, flush, clock
        self._metrics: Metrics = {}

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Keep the newest metrics for the record."""
        self._metrics = metrics

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Start a save."""
        with self._clock.phase("save_stall"):
            if self._flush is not None:
                self._flush()
            self._store.save(step, to_saved(state), self._record(step, self._metrics))


class EvaluateHook(Hook):
    """Evaluates held-out text every so many steps and after the last one."""

    def __init__(
        self,
        evaluate: Callable[[int, TrainState], HeldOutResult],
        journal: Journal | None,
        *,
        every: int,
        clock: StepClock,
    ) -> None:
        self._evaluate, self._journal, self._every, self._clock = evaluate, journal, every, clock

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Evaluate and record."""
        with self._clock.phase("evaluation"):
            result = self._evaluate(step, state)
            if self._journal is not None:
                self._journal.evaluated(result)
