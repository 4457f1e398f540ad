"""A run from its config to its last checkpoint: the parts put together."""

import math
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from maxtrain import __version__
from maxtrain.checkpoint import CheckpointStore
from maxtrain.checkpoint.health import Probation
from maxtrain.checkpoint.restore import DEFAULT_TIMEOUT_SECONDS
from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import BATCH_AXES, Config
from maxtrain.loader import HeldOut, Loader
from maxtrain.monitor.heldout import HeldOutResult, read_heldout
from maxtrain.monitor.step_profile import StepProfile, to_markdown, write_profile
from maxtrain.monitor.units import human_bytes
from maxtrain.optim import group_of
from maxtrain.parallel.agreement import ProcessGroup
from maxtrain.parallel.device_order import describe_order, nodes_spanned
from maxtrain.parallel.pipeline import Pipeline
from maxtrain.plan import LINK_FORMULAS, slow_link_bytes, training_flops_per_token
from maxtrain.train.clock import StepClock
from maxtrain.train.evaluator import make_evaluator
from maxtrain.train.feed import BatchFeeder, feed
from maxtrain.train.hooks import EvaluateHook, GuardHook, LogHook, SaveHook
from maxtrain.train.journal import Journal
from maxtrain.train.loop import Hook, run_steps
from maxtrain.train.memory import out_of_memory_explained
from maxtrain.train.metrics import LineBuilder, make_line_builder
from maxtrain.train.parts import Parts, build_parts
from maxtrain.train.peak import device_peak_tflops
from maxtrain.train.profile import ProfileHook
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

    Raises:
        CheckpointError: no checkpoint is usable, or one could not be saved (told at the end).
        OutOfMemoryError: a device's memory does not hold the run.
        StoppedError: the guard stopped the run.
        UserError: the directory cannot be written or is in use, or the config may not change so.
    """
    last = stop_at or plan.num_steps
    processes = ProcessGroup(DEFAULT_TIMEOUT_SECONDS, "process 0 handled the run's files")
    with ExitStack() as stack:
        opened = processes.on_main(lambda: _open(config, plan, loader, stack))
        journal = opened[1] if opened else None
        try:
            parts = parts or build_parts(config, plan, len(loader.domains))
            build_line = _announce(config, plan, loader, parts, opened)
            attempt = _Attempt(config, plan, loader, heldout, parts, processes, journal, build_line)
            with out_of_memory_explained(config, plan, parts):
                step, reason, number = attempt.run(last, stack)
        except BaseException as error:
            if journal is not None:
                journal.stop(None, f"{type(error).__name__}: {error}")
            raise
        if journal is not None:
            journal.stop(step, reason)
    return 128 + number if number else 0


def _open(config: Config, plan: BatchPlan, loader: Loader, stack: ExitStack) -> tuple[RunDirectory, Journal]:
    """Take the run directory and open its files; on process 0."""
    run = stack.enter_context(RunDirectory(config, loader.fingerprint))
    if loader.stages:
        run.keep_tokenizer(loader.stages[0].dataset.tokenizer_model())
    return run, Journal.open(run.path, config.logging, plan, stack)


def _announce(
    config: Config, plan: BatchPlan, loader: Loader, parts: Parts, opened: tuple[RunDirectory, Journal] | None
) -> LineBuilder:
    """Measure the devices' peak, record that the attempt begins, and build the function that makes metrics lines."""
    peak, source = device_peak_tflops(config.logging.peak_tflops, config.precision)
    num_parameters = sum(math.prod(spec.shape) for spec in parts.model.table)
    if opened is not None:
        run, journal = opened
        journal.start(
            run.newest["step"] if run.newest else 0,
            parts.mesh,
            run.changed,
            parameters=num_parameters,
            peak_tflops=peak,
            peak_source=source,
            seed=config.run.seed,
        )
        pipeline = parts.model.pipeline
        if pipeline is not None:
            journal.progress.message(_describe_pipeline(config, plan, pipeline))
        journal.progress.message(
            f"{num_parameters:,} parameters on {parts.mesh.size} device(s) of {peak:.3g} TFLOP/s ({source}); "
            f"{plan.num_steps} steps; run directory {config.run.directory}"
        )
        if parts.mesh.size > 1:
            journal.progress.message(f"mesh: {describe_order(parts.mesh)}")
        spanned = nodes_spanned(parts.mesh.devices, parts.mesh.axis_names)
        for axis, count in slow_link_bytes(config, parts.mesh.shape, spanned).items():
            journal.warn(
                f"mesh.{axis} spans {spanned[axis]} nodes: each device sends about {human_bytes(count)} a step over "
                f"the links between them ({LINK_FORMULAS[axis]}); keep it inside a node where it fits"
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


def _describe_pipeline(config: Config, plan: BatchPlan, pipeline: Pipeline) -> str:
    """Stages, microbatches in flight and the bubble, of the run's last batch size."""
    ranks = math.prod(pipeline.mesh.shape[axis] for axis in BATCH_AXES)
    num_micro = plan.segments[-1].batch_rows // (config.batch.micro_batch * ranks)
    in_flight = config.pipeline.microbatches or num_micro
    return (
        f"pipeline of {pipeline.stages} stages × {pipeline.rounds} round(s) of {pipeline.slot_layers} layer(s); "
        f"{in_flight} of {num_micro} microbatches in flight; bubble {pipeline.bubble(in_flight):.1%}"
    )


@dataclass(frozen=True)
class _Attempt:
    """One start of a run, its directory taken and its files open."""

    config: Config
    plan: BatchPlan
    loader: Loader
    heldout: HeldOut | None
    parts: Parts
    processes: ProcessGroup
    journal: Journal | None
    """On process 0."""
    build_line: LineBuilder
    clock: StepClock = field(default_factory=StepClock)

    def run(self, last: int, stack: ExitStack) -> tuple[int, str, int | None]:
        """Restore, train and save.

        Returns:
            The step reached, why it stopped there, and the signal that stopped it before `last`, if one did.
        """
        store = self._open_store(stack)
        state, step, probation = self._restore_or_create(store)
        if self.journal is not None:
            self.journal.reading(step, self.loader.usage())
        if step >= last:
            print(f"nothing to do: the run stands at step {step} of {last}", file=sys.stderr)
            return step, f"nothing to do: the run stands at step {step} of {last}", None
        feeder = BatchFeeder(self.parts.mesh, self.config.batch.micro_batch)
        save = self._save_hook(store, step, probation)
        evaluate = self._evaluate_hook(feeder, save)
        log = LogHook(self.build_line, self.journal, self.config.profile.steps)
        profile = self._profile_hook(log, step, last, stack)
        hooks: list[Hook] = [
            log,
            save,
            GuardHook(self.config.guard, self.journal),
            *([evaluate] if evaluate else []),
            *([profile] if profile else []),
        ]
        stop = StopSignal()
        try:
            with stop.installed():
                if step == 0:
                    save.act(step, state)
                    save.finish()
                # Not at step 0: it would tell the vocabulary's logarithm and keep the first step waiting.
                if evaluate is not None and step > 0 and evaluate.due(step) and not self._is_evaluated(step):
                    evaluate.act(step, state)
                batches = feed(self.loader, feeder, step, self.config.data.prefetch)
                self.clock.lap()
                state = run_steps(
                    state,
                    self.parts.train_step,
                    batches,
                    hooks,
                    last_step=last,
                    clock=self.clock,
                    read_late=jax.default_backend() != "cpu",
                    stop_requested=stop,
                )
                save.finish()
        except BaseException:
            save.settle()  # so that closing the store does not replace the error
            raise
        step = int(state.step)
        if step < last and stop.number is not None:
            return step, signal.Signals(stop.number).name, stop.number
        return step, "end of the run" if step == self.plan.num_steps else "stop_at", None

    def _open_store(self, stack: ExitStack) -> CheckpointStore:
        store = CheckpointStore(
            Path(self.config.run.directory) / "checkpoints",
            keep=self.config.checkpoint.keep,
            keep_every=self.config.checkpoint.keep_every,
            asynchronous=self.config.checkpoint.asynchronous,
            on_event=self.journal.checkpoint_event if self.journal else None,
        )
        stack.callback(store.close)
        return store

    def _restore_or_create(self, store: CheckpointStore) -> tuple[TrainState, int, Probation]:
        """State, step and probation of the newest checkpoint, or the initial ones where none was ever committed."""
        abstract = self.parts.abstract_state
        found = store.restore(to_saved(abstract, self.parts.model))
        if found is None:
            # Waited for, so that a lack of memory is told here: who reads such arrays later may wait for ever.
            return jax.block_until_ready(self.parts.create_state(self.config.run.seed)), 0, Probation()
        step, saved, record = found
        return from_saved(saved, abstract, self.parts.model), step, Probation(**record["monitor"].get("probation", {}))

    def _save_hook(self, store: CheckpointStore, start: int, probation: Probation) -> SaveHook:
        def record(step: int, metrics: dict[str, Any], finite: bool, probation: Probation) -> dict[str, Any]:
            return make_record(
                self.config,
                self.plan,
                self.loader,
                self.parts,
                step,
                updates=int(metrics.get("updates", 0)),
                finite=finite,
                probation=probation,
            )

        def flush() -> None:
            self.processes.on_main(lambda: self.journal.flush() if self.journal else None)

        return SaveHook(
            store,
            self.parts.model,
            record,
            self.config.checkpoint,
            max_skips=self.config.guard.max_skips,
            start=start,
            probation=probation,
            flush=flush,
            clock=self.clock,
        )

    def _evaluate_hook(self, feeder: BatchFeeder, save: SaveHook) -> EvaluateHook | None:
        if self.heldout is None:
            return None

        def write(result: HeldOutResult) -> None:
            self.processes.on_main(lambda: self.journal.evaluated(result) if self.journal else None)

        evaluate = make_evaluator(self.parts, self.heldout, feeder, self.plan.tokens_at)
        return EvaluateHook(evaluate, write, save.condemn, every=self.config.evaluation.every, clock=self.clock)

    def _profile_hook(self, log: LogHook, start: int, last: int, stack: ExitStack) -> ProfileHook | None:
        steps = self.config.profile.steps
        if steps is None:
            return None
        if not start + 2 <= steps[0] <= last:
            if self.journal is not None and last >= steps[0]:
                self.journal.progress.message(
                    f"profile.steps = {list(steps)}: traces nothing in this attempt, which begins after step "
                    f"{start} and compiles in step {start + 1}; set [{start + 2}, …] or later"
                )
            return None
        directory = Path(self.config.run.directory) / "profile"

        def report(profile: StepProfile) -> None:
            if self.journal is not None:
                write_profile(directory, profile)
                log.add_communication(range(profile.first_step, profile.last_step + 1), profile.communication_fraction)
                self.journal.progress.message(to_markdown(profile))

        mesh = dict(self.parts.mesh.shape)
        hook = ProfileHook(steps, directory, mesh, report, end=last, clock=self.clock)
        stack.callback(hook.close)
        return hook

    def _is_evaluated(self, step: int) -> bool:
        """Whether the results of a step are written: a stop may have come between its save and its evaluation."""
        answer = ""
        if self.journal is not None:
            path = Path(self.config.run.directory) / "eval" / "heldout.jsonl"
            answer = "yes" if any(result.step == step for result in read_heldout(path)) else ""
        return self.processes.from_main(answer) == "yes"


def make_record(
    config: Config,
    plan: BatchPlan,
    loader: Loader,
    parts: Parts,
    step: int,
    *,
    updates: int,
    finite: bool,
    probation: Probation,
) -> dict[str, Any]:
    """What a checkpoint says of itself beside its arrays.

    Args:
        config: the run's config.
        plan: its batches.
        loader: its rows.
        parts: the step's parts.
        step: batches consumed.
        updates: updates applied.
        finite: whether every float of the state is finite.
        probation: what the steps so far tell of the states saved before.
    """
    return {
        "step": step,
        "updates": updates,
        "tokens_seen": plan.tokens_at(step),
        "stage": plan.segment_at(step).stage.name,
        "seed": config.run.seed,
        "finite": finite,
        "fingerprint": loader.fingerprint,
        "bos_id": loader.stages[0].dataset.bos_id if loader.stages else None,
        "amendments": 0,
        "monitor": {"probation": probation._asdict()},
        "config": config.model_dump(mode="json"),
        "code_version": __version__,
        "jax_version": jax.__version__,
        "mesh": dict(parts.mesh.shape),
        "num_processes": jax.process_count(),
    }
