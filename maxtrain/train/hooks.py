"""What happens beside the steps: logging, the guard, saving, evaluation."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from maxtrain.checkpoint import CheckpointStore
from maxtrain.checkpoint.health import Health, Probation, Verdict
from maxtrain.config.schema import CheckpointConfig, GuardConfig
from maxtrain.core.errors import CheckpointError, StoppedError, UserError
from maxtrain.core.trees import leaf_paths
from maxtrain.model import Model
from maxtrain.monitor.heldout import HeldOutResult
from maxtrain.parallel.emulation import settle
from maxtrain.parallel.xla_flags import quick_compile
from maxtrain.train.clock import StepClock
from maxtrain.train.journal import Journal
from maxtrain.train.loop import Hook
from maxtrain.train.metrics import LineBuilder
from maxtrain.train.state import TrainState, to_saved

Metrics = dict[str, Any]
Seconds = dict[str, float]

_CURE = "lower schedule.lr, or lengthen the warm-up"


def _is_ruined(metrics: Metrics) -> bool:
    """Whether the parameters after a step are beyond use: one is not finite, or their squares have no sum."""
    return not math.isfinite(metrics["param_norm"])


class LogHook(Hook):
    """Writes every step's line to metrics.jsonl, the sinks and the progress line."""

    def __init__(self, build: LineBuilder, journal: Journal | None, profiled: tuple[int, int] | None = None) -> None:
        self._build, self._journal = build, journal
        self._profiled = range(profiled[0], profiled[1] + 1) if profiled else range(0)
        self._kept: dict[int, dict[str, Any]] = {}

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Write the step's line."""
        if self._journal is not None:
            line = self._build(step, metrics, seconds)
            if step in self._profiled:
                self._kept[step] = line
            self._journal.stepped(line)

    def add_communication(self, steps: range, fraction: float) -> None:
        """Write the lines of profiled steps again, with the share of their time that was communication."""
        for step in steps:
            if self._journal is not None and step in self._kept:
                self._journal.restated({**self._kept.pop(step), "communication_fraction": fraction})


class GuardHook(Hook):
    """Records skipped steps; stops the run after too many in a row, or after an update that ruins the parameters."""

    def __init__(self, config: GuardConfig, journal: Journal | None) -> None:
        self._config, self._journal = config, journal

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Record a skipped step; raise StoppedError after too many, or where the parameters are ruined."""
        if _is_ruined(metrics):
            raise StoppedError(
                f"step {step}: the norm of the parameters is {float(metrics['param_norm']):g} after an update with "
                f"learning rate {float(metrics['lr']):g}; {_CURE}; the next start goes on from the newest checkpoint"
            )
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
    """A compiled function: whether each float leaf of a tree is finite."""

    def check(tree: Any) -> jax.Array:
        return jnp.stack([jnp.isfinite(leaf).all() for _, leaf in _floats(tree)])

    return jax.jit(check, compiler_options=quick_compile(jax.default_backend()))


def _floats(tree: Any) -> list[tuple[str, Any]]:
    return [(path, leaf) for path, leaf in leaf_paths(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _not_finite(state: TrainState) -> list[str]:
    """Paths of the leaves that hold a value which is not finite."""
    finite = jax.device_get(settle(_finite_check()(state)))
    return [path for (path, _), good in zip(_floats(state), finite, strict=True) if not good]


class SaveHook(Hook):
    """Saves every so many steps and after the last one, and judges what is saved by the steps that follow.

    The lines up to a step are durable before it commits. A save that fails is told by the store at once; the run goes
    on and `finish` raises. It observes a step before the guard does, which may stop the run for it.

    Args:
        store: where to save.
        model: the model, which knows how the state lies in memory.
        record: (step, metrics of the last step, whether the state is finite, probation) -> the checkpoint's record.
        config: how often to save, and how many clean steps make a step healthy.
        max_skips: failed steps in a row that make a provisional step unhealthy.
        start: the step that the attempt begins from.
        probation: the probation at that step.
        flush: makes the lines durable; called by every process.
        clock: the run's clock.
    """

    def __init__(
        self,
        store: CheckpointStore,
        model: Model,
        record: Callable[[int, Metrics, bool, Probation], dict[str, Any]],
        config: CheckpointConfig,
        *,
        max_skips: int,
        start: int,
        probation: Probation,
        flush: Callable[[], None],
        clock: StepClock,
    ) -> None:
        self._store, self._model, self._record, self._config = store, model, record, config
        self._flush, self._clock = flush, clock
        self._max_skips, self._probation = max_skips, probation
        self._unproven = [start]
        self._metrics: Metrics = {}
        self._failures: list[UserError] = []

    def observe(self, step: int, metrics: Metrics, seconds: Seconds) -> None:
        """Keep the newest metrics for the record, and judge a step as soon as it is proven and committed."""
        self._metrics = metrics
        ruined = _is_ruined(metrics)
        self._probation = self._probation.after(
            step,
            clean=not (metrics["skipped"] or ruined),
            failed=ruined or bool(metrics["skipped"] and metrics["target_tokens"] != 0),
            healthy_after=self._config.healthy_after,
        )
        if self._unproven and self._unproven[0] <= self._probation.proven_step:
            self._judge()

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._config.every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Start a save.

        Raises:
            StoppedError: a value of the state is not finite; it is saved, as unhealthy, to be looked at.
        """
        with self._clock.phase("save_stall"):
            self._flush()
            self.settle()
            # The loss has no say: where it is not finite the step was skipped, and the state is that before it. A new
            # state is finite by construction, and compiling the check would keep the first step waiting.
            wrong = _not_finite(state) if step else []
            self._unproven.append(step)
            try:
                record = self._record(step, self._metrics, not wrong, self._probation)
                self._store.save(step, to_saved(state, self._model), record)
            except CheckpointError as error:
                self._failures.append(error)
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise StoppedError(
                f"step {step}: the state is not finite ({wrong[0]}{more}), and its checkpoint unhealthy; {_CURE}; "
                "the next start goes on from the newest checkpoint that is not unhealthy"
            )

    def condemn(self, step: int, reason: str) -> None:
        """Make the step's checkpoint unhealthy, if it is saved and was not proven meanwhile."""
        self.settle()
        self._store.judge(
            lambda saved: Verdict(Health.UNHEALTHY, reason) if saved == step else Verdict(Health.PROVISIONAL)
        )

    def settle(self) -> None:
        """Wait for the save on its way, remember it if it failed, and judge what is saved."""
        try:
            self._store.wait()
        except UserError as error:
            self._failures.append(error)
        self._judge()

    def _judge(self) -> None:
        def verdict(saved: int) -> Verdict:
            return self._probation.verdict(saved, max_skips=self._max_skips)

        if self._store.judge(verdict):
            self._unproven = [saved for saved in self._unproven if saved > self._probation.proven_step]

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
    """Evaluates held-out text every so many steps and after the last one, but not where a signal stops the run.

    Args:
        evaluate: (step, state) -> the result.
        write: keeps it.
        condemn: (step, reason): makes the step's checkpoint unhealthy.
        every: steps between evaluations.
        clock: the run's clock.
    """

    acts_on_stop = False

    def __init__(
        self,
        evaluate: Callable[[int, TrainState], HeldOutResult],
        write: Callable[[HeldOutResult], None],
        condemn: Callable[[int, str], None],
        *,
        every: int,
        clock: StepClock,
    ) -> None:
        self._evaluate, self._write, self._condemn, self._every, self._clock = evaluate, write, condemn, every, clock

    def due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._every == 0

    def act(self, step: int, state: TrainState) -> None:
        """Evaluate and record.

        Raises:
            StoppedError: a loss is not finite; a checkpoint of this step is unhealthy now.
        """
        with self._clock.phase("evaluation"):
            result = self._evaluate(step, state)
            self._write(result)
            wrong = {name: score.loss for name, score in result.by_domain.items() if not math.isfinite(score.loss)}
            if wrong:
                told = ", ".join(f"{name} {loss:g}" for name, loss in wrong.items())
                self._condemn(step, f"its held-out loss is not finite ({told})")
                raise StoppedError(
                    f"step {step}: the held-out loss is not finite ({told}); {_CURE}; the next start goes on from the "
                    "newest checkpoint that is not unhealthy"
                )
