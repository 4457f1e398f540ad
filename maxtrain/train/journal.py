"""What process 0 writes of a run beside its checkpoints."""

import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import jax

from maxtrain import __version__
from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import LoggingConfig
from maxtrain.loader import DomainUse
from maxtrain.monitor.events import EventLog
from maxtrain.monitor.heldout import HeldOutResult, HeldOutWriter
from maxtrain.monitor.metrics import MetricsWriter, next_attempt
from maxtrain.monitor.progress import Progress
from maxtrain.monitor.sinks import Sink, TensorBoardSink

_MANY_EPOCHS = 4
"""Epochs of a domain beyond which repetition costs (Muennighoff 2023)."""


@dataclass(frozen=True)
class Journal:
    """The open files of one attempt, and the progress line."""

    events: EventLog
    metrics: MetricsWriter
    heldout: HeldOutWriter
    sinks: list[Sink]
    progress: Progress
    failures: list[OSError] = field(default_factory=list)
    """Writings that failed and have not ended the run yet."""

    @classmethod
    def open(cls, directory: Path, config: LoggingConfig, plan: BatchPlan, stack: ExitStack) -> Self:
        """Open every file for appending; the stack closes them."""
        attempt = next_attempt(directory / "metrics.jsonl", directory / "events.jsonl")
        events = EventLog(directory / "events.jsonl", attempt)
        metrics = MetricsWriter(directory / "metrics.jsonl", attempt)
        heldout = HeldOutWriter(directory / "eval" / "heldout.jsonl", attempt)
        for name, writer in (("metrics.jsonl", metrics), ("eval/heldout.jsonl", heldout)):
            if writer.removed_bytes:
                events.write("repair", file=name, removed_bytes=writer.removed_bytes)
        sinks: list[Sink] = [TensorBoardSink(directory / "tensorboard")] if config.tensorboard else []
        progress = Progress(plan.num_steps, plan.num_tokens, every=config.every, stream=sys.stderr)
        journal = cls(events, metrics, heldout, sinks, progress)
        for close in (events.close, metrics.close, heldout.close, *(sink.close for sink in sinks), progress.close):
            stack.callback(close)
        return journal

    def start(self, step: int, mesh: jax.sharding.Mesh, changed: list[str], **facts: Any) -> None:
        """Record that an attempt begins; `step` is that of the newest checkpoint, 0 for none."""
        self.events.write(
            "start",
            step,
            devices=mesh.size,
            device_kind=mesh.devices.flat[0].device_kind,
            processes=jax.process_count(),
            mesh={axis: size for axis, size in mesh.shape.items() if size > 1},
            code_version=__version__,
            jax_version=jax.__version__,
            python_version=platform.python_version(),
            **facts,
        )
        if changed:
            self.events.write("warning", step, reason="the config changed since the last checkpoint", keys=changed)
            self.progress.message(f"note: changed since the last checkpoint: {', '.join(changed)}")

    def warn(self, text: str) -> None:
        """Tell, and record, something a person should read."""
        self.events.write("warning", None, reason=text)
        self.progress.message(f"warning: {text}")

    def reading(self, step: int, usage: list[DomainUse]) -> None:
        """Record what each stage reads of each domain, padding and splits counted."""
        self.events.write("data", step, usage=[asdict(use) for use in usage])
        for use in usage:
            if use.epochs > _MANY_EPOCHS:
                self.progress.message(
                    f"note: domain {use.domain} is read {use.epochs:.1f} times by the end of stage {use.stage}"
                )

    def checkpoint_event(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        """Record what the checkpoint store did; it tells from its own thread too."""
        if kind == "save":
            self.progress.saved(step or 0, float(fields["seconds"]))
        elif "moved_to" in fields:
            self.progress.message(f"{kind}: step {step}: {fields['reason']}; moved to {fields['moved_to']}")
        elif "reason" in fields:
            self.progress.message(f"{kind.replace('_', ' ')}: step {step}: {fields['reason']}")
        # Last, as a full disk may refuse it: then the message was shown at least.
        self.events.write(kind, step, **fields)

    def stepped(self, values: dict[str, Any]) -> None:
        """Write the line of a step."""
        with self._remembering():
            line = self.metrics.write(values)
            for sink in self.sinks:
                sink.write(line)
            self.progress.update(line)

    def restated(self, values: dict[str, Any]) -> None:
        """Write the line of a step again, which now counts; neither sinks nor the progress line repeat it."""
        with self._remembering():
            self.metrics.write(values)

    def skipped(self, step: int, **facts: Any) -> None:
        """Record a skipped step."""
        with self._remembering():
            self.events.write("skip", step, **facts)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """With several processes, keep a failure for `flush`: they would wait in their next step for one that left."""
        try:
            yield
        except OSError as error:
            if jax.process_count() == 1:
                raise
            self.failures.append(error)

    def flush(self) -> None:
        """Make every line so far durable.

        Raises:
            OSError: that cannot be done, or an earlier line could not be written.
        """
        if self.failures:
            raise self.failures[0]
        self.metrics.flush()

    def stop(self, step: int | None, reason: str) -> None:
        """Record that the attempt ends, if the disk still takes it."""
        try:
            self.events.write("stop", step, reason=reason)
        except OSError as error:
            self.progress.message(f"stopped ({reason}); events.jsonl cannot be written: {error.strerror}")

    def evaluated(self, result: HeldOutResult) -> None:
        """Record a held-out evaluation."""
        self.heldout.write(result)
        self.events.write("evaluate", result.step, loss=result.total.loss)
        self.progress.evaluation(result)
        for sink in self.sinks:
            sink.write_heldout(result)
