"""What process 0 writes of a run beside its checkpoints."""

import platform
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
        """Record that an attempt begins at a step."""
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
        self.events.write(kind, step, **fields)
        if kind == "save":
            self.progress.saved(step or 0, float(fields["seconds"]))
        elif "reason" in fields:
            self.progress.message(f"{kind.replace('_', ' ')}: step {step}: {fields['reason']}")

    def evaluated(self, result: HeldOutResult) -> None:
        """Record a held-out evaluation."""
        self.heldout.write(result)
        self.events.write("evaluate", result.step, loss=result.total.loss)
        self.progress.evaluation(result)
        for sink in self.sinks:
            sink.write_heldout(result)
