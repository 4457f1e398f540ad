"""What happens beside the steps: logging, the guard, saving, evaluation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from maxtrain.checkpoint import CheckpointStore
from maxtrain.config.schema import GuardConfig
from maxtrain.core.errors import CheckpointError, StoppedError, UserError
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
        if self._journal is not None:
            self._journal.stepped(self._build(step, metrics, seconds))


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
            self._journal.skipped(step, reason=reason, loss=loss, grad_norm=norm, max_grad_norm=bound)
        if metrics["skips_in_a_row"] >= self._config.max_skips:
            raise StoppedError(
                f"step {step}: {int(metrics['skips_in_a_row'])} steps in a row were skipped ({reason}), the limit "
                "guard.max_skips; parameters are as before the first of them; see events.jsonl"
            )


@functools.cache
def _finite_check() -> Callable[[Any], jax.Array]:
    """A compiled function: whether every float of a tree is finite."""

    def check(tree: Any) -> jax.Array:
        floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all()

    return jax.jit(check)


class SaveHook(Hook):
    """Saves every so many steps and after the last one; the lines up to the step are durable before it commits.

    A save that fails is told by the store at once; the run goes on and `finish` raises.

    Args:
        store: where to save.
        record: (step, metrics of the last step, whether the state is finite) -> the checkpoint's record.
        every: steps between saves.
        flush: makes the lines durable; called by every process.
        clock: the run's clock.
    """

    def __init__(
        self,
        store: CheckpointStore,
        record: Callable[[int, Metrics, bool], dict[str, Any]],
        *,
        every: int,
        flush: Callable[[], None],
        clock: StepClock,
    ) -> None:
        self._store, self._record, self._every, self._flush, self._clock = store, record, every, flush, clock
        self._metrics: Metrics = {}
        self._failures: list[UserError] = []

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Keep the newest metrics for the record."""
        self._metrics = metrics

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Start a save."""
        with self._clock.phase("save_stall"):
            self._flush()
            self.settle()
            # The loss has no say: where it is not finite the step was skipped, and the state is that before it.
            healthy = bool(_finite_check()(state))
            try:
                self._store.save(step, to_saved(state), self._record(step, self._metrics, healthy))
            except CheckpointError as error:
                self._failures.append(error)

    def settle(self) -> None:
        """Wait for the save on its way; remember it if it failed."""
        try:
            self._store.wait()
        except UserError as error:
            self._failures.append(error)

    def finish(self) -> None:
        """Wait for the save on its way.

        Raises:
            CheckpointError: a save failed since the attempt began; it names the first one.
        """
        self.settle()
        if self._failures:
            more = f" ({len(self._failures)} saves failed in all)" if len(self._failures) > 1 else ""
            raise CheckpointError(f"{self._failures[0]}{more}; `maxtrain.checkpoint list` shows what is saved")


class EvaluateHook(Hook):
    """Evaluates held-out text every so many steps and after the last one, but not where a signal stops the run."""

    acts_on_stop = False

    def __init__(
        self,
        evaluate: Callable[[int, TrainState], HeldOutResult],
        write: Callable[[HeldOutResult], None],
        *,
        every: int,
        clock: StepClock,
    ) -> None:
        self._evaluate, self._write, self._every, self._clock = evaluate, write, every, clock

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Evaluate and record."""
        with self._clock.phase("evaluation"):
            self._write(self._evaluate(step, state))
