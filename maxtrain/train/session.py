"""A run from its config to its last checkpoint: the parts put together."""

import math
import signal
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from maxtrain import __version__
from maxtrain.checkpoint import CheckpointStore
from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import Config
from maxtrain.loader import HeldOut, Loader
from maxtrain.optim import group_of
from maxtrain.plan import training_flops_per_token
from maxtrain.train.clock import StepClock
from maxtrain.train.evaluator import make_evaluator
from maxtrain.train.feed import BatchFeeder, feed
from maxtrain.train.hooks import EvaluateHook, GuardHook, LogHook, SaveHook
from maxtrain.train.journal import Journal
from maxtrain.train.loop import Hook, run_steps
from maxtrain.train.metrics import LineBuilder, make_line_builder
from maxtrain.train.parts import Parts, build_parts
from maxtrain.train.peak import device_peak_tflops
from maxtrain.train.run_directory import RunDirectory
from maxtrain.train.state import TrainState, from_saved, to_saved
from maxtrain.train.stop import StopSignal


def run_training(
    config: Config,
    plan: BatchPlan,
    loader: Loader,
    heldout: HeldOut | None,
    stop_at: int | None = None,
    parts: Parts | None = None,
) -> int:
    """Train from the newest verified checkpoint, or from the start, to the end of the run.

    Args:
        config: the checked config.
        plan: its batches.
        loader: rows of the run.
        heldout: held-out rows, or None where evaluation is off.
        stop_at: step to save and stop after, before the end of the run; None for the end.
        parts: the config's parts, if they are built and compiled already.

    Returns:
        The exit code: 0, or 128 + the signal that stopped the run.
    """
    stop, clock = StopSignal(), StepClock()
    last = plan.num_steps if stop_at is None else min(stop_at, plan.num_steps)
    directory = Path(config.run.directory)
    with ExitStack() as stack:
        journal, changed = None, []
        if jax.process_index() == 0:
            run = stack.enter_context(RunDirectory(config, loader.fingerprint))
            changed = run.changed
            if loader.stages:
                run.keep_tokenizer(loader.stages[0].dataset.tokenizer_model())
            journal = Journal.open(directory, config.logging, plan, stack)
        _meet("run directory")
        parts = parts or build_parts(config, plan, len(loader.domains))
        store = CheckpointStore(
            directory / "checkpoints",
            keep=config.checkpoint.keep,
            keep_every=config.checkpoint.keep_every,
            asynchronous=config.checkpoint.asynchronous,
            on_event=journal.checkpoint_event if journal else None,
        )
        stack.callback(store.close)
        state, step = _restore_or_create(parts, store, config.run.seed)
        if journal is not None:
            journal.reading(step, loader.usage())
        build_line = _line_builder(config, plan, loader, parts, journal, step, changed)
        if step >= last:
            print(f"nothing to do: the run stands at step {step} of {last}", file=sys.stderr)
            return 0
        feeder = BatchFeeder(parts.mesh, config.batch.micro_batch)
        hooks = _make_hooks(config, plan, loader, heldout, parts, feeder, store, journal, clock, build_line)
        with stop.installed() if jax.process_count() == 1 else nullcontext():
            if step == 0:
                _act_before_training(hooks, state, store)
            batches = feed(loader, feeder, step, config.data.prefetch)
            clock.lap()
            state = run_steps(
                state,
                parts.train_step,
                batches,
                hooks,
                last_step=last,
                clock=clock,
                read_late=jax.default_backend() != "cpu",
                stop_requested=stop,
            )
            store.wait()
        if journal is not None:
            end = "end of the run" if int(state.step) == plan.num_steps else "stop_at"
            reason = signal.Signals(stop.number).name if stop.number else end
            journal.events.write("stop", int(state.step), reason=reason)
    return 128 + stop.number if stop.number else 0


def _meet(where: str) -> None:
    """Wait for every process, so that none goes on where process 0 has failed."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def _restore_or_create(parts: Parts, store: CheckpointStore, seed: int) -> tuple[TrainState, int]:
    """State of the newest verified checkpoint, or the initial one where none was ever committed."""
    abstract = parts.abstract_state()
    found = store.restore(to_saved(abstract))
    if found is None:
        return parts.create_state(seed), 0
    step, saved, _ = found
    return from_saved(saved, abstract), step


def _act_before_training(hooks: list[Hook], state: TrainState, store: CheckpointStore) -> None:
    """Save and commit step 0, and evaluate it."""
    for hook in hooks:
        hook.act(0, state)
    store.wait()


def _line_builder(
    config: Config, plan: BatchPlan, loader: Loader, parts: Parts, journal: Journal | None, step: int, changed: list
) -> LineBuilder:
    """Measure the devices' peak, announce the attempt and build the function that makes metrics lines."""
    peak, source = device_peak_tflops(config.logging.peak_tflops, config.precision)
    num_parameters = sum(math.prod(spec.shape) for spec in parts.model.table)
    if journal is not None:
        journal.start(
            step,
            parts.mesh,
            changed,
            parameters=num_parameters,
            peak_tflops=peak,
            peak_source=source,
            seed=config.run.seed,
        )
        journal.progress.message(
            f"{num_parameters:,} parameters on {parts.mesh.size} device(s) of {peak:.3g} TFLOP/s ({source}); "
            f"{plan.num_steps} steps, from step {step}; run directory {config.run.directory}"
        )
    return make_line_builder(
        plan,
        domains=loader.domains,
        groups=sorted({group_of(spec.path, spec.axes) for spec in parts.model.table}),
        epochs=loader.epochs,
        flops_per_token=lambda length: training_flops_per_token(config.model, length).total,
        peak_flops=peak * 1e12,
        num_devices=parts.mesh.size,
    )


def _make_hooks(
    config: Config,
    plan: BatchPlan,
    loader: Loader,
    heldout: HeldOut | None,
    parts: Parts,
    feeder: BatchFeeder,
    store: CheckpointStore,
    journal: Journal | None,
    clock: StepClock,
    build_line: LineBuilder,
) -> list[Hook]:
    """The hooks in the order in which they act."""

    def record(step: int, metrics: dict[str, Any]) -> dict[str, Any]:
        return make_record(config, plan, loader.fingerprint, parts, step, metrics)

    hooks: list[Hook] = [LogHook(build_line, journal), GuardHook(config.guard, journal)]
    if heldout is not None:
        evaluate = make_evaluator(parts, heldout, feeder, plan.tokens_at)
        hooks.append(EvaluateHook(evaluate, journal, every=config.evaluation.every, clock=clock))
    flush = journal.metrics.flush if journal else None
    hooks.append(SaveHook(store, record, every=config.checkpoint.every, flush=flush, clock=clock))
    return hooks


def make_record(
    config: Config, plan: BatchPlan, fingerprint: dict[str, Any], parts: Parts, step: int, metrics: dict[str, Any]
) -> dict[str, Any]:
    """What a checkpoint says of itself beside its arrays.

    Args:
        config: the run's config.
        plan: its batches.
        fingerprint: the loader's.
        parts: the step's parts.
        step: batches consumed.
        metrics: host metrics of the last step; empty before the first one.
    """
    finite = [math.isfinite(float(metrics[name])) for name in ("loss", "param_norm") if name in metrics]
    return {
        "step": step,
        "updates": int(metrics["updates"]) if metrics else 0,
        "tokens_seen": plan.tokens_at(step),
        "stage": plan.segment_at(step).stage.name,
        "seed": config.run.seed,
        "healthy": all(finite),
        "fingerprint": fingerprint,
        "amendments": 0,
        "monitor": {},
        "config": config.model_dump(mode="json"),
        "code_version": __version__,
        "jax_version": jax.__version__,
        "mesh": dict(parts.mesh.shape),
        "num_processes": jax.process_count(),
    }
