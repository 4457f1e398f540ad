"""The profile of some steps: a trace by jax.profiler, and its table."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from maxtrain.monitor.step_profile import Event, StepProfile, parse_program, summarise
from maxtrain.train.clock import StepClock
from maxtrain.train.loop import Hook
from maxtrain.train.state import TrainState

PROGRAM = "jit_train_step"
"""Name of the compiled step."""


class ProfileHook(Hook):
    """Traces the steps first … last of an attempt that began early enough to have compiled before.

    Args:
        steps: first and last step.
        directory: where the trace goes.
        mesh: the mesh's axis sizes, in device order.
        report: takes the table, on every process.
        end: the attempt's last step, after which nothing is traced.
        clock: the run's clock.
    """

    acts_on_stop = False

    def __init__(
        self,
        steps: tuple[int, int],
        directory: Path,
        mesh: dict[str, int],
        report: Callable[[StepProfile], None],
        *,
        end: int,
        clock: StepClock,
    ) -> None:
        self._first, self._last = steps[0], min(steps[1], end)
        self._directory, self._mesh, self._report, self._clock = directory, mesh, report, clock
        self._seconds: dict[int, dict[str, float]] = {}
        self._tracing = False

    def observe(self, step: int, metrics: dict[str, Any], seconds: dict[str, float]) -> None:
        """Keep the seconds of a traced step."""
        if self._tracing:
            self._seconds[step] = seconds

    def due(self, step: int) -> bool:
        """Just before the first step, and after the last one."""
        return step == self._first - 1 or (self._tracing and step == self._last)

    def act(self, step: int, state: TrainState) -> None:
        """Begin the trace, or end it and report; the devices have no work then."""
        with self._clock.phase("profile"):
            if not self._tracing and step == self._first - 1 and step < self._last:
                options = jax.profiler.ProfileOptions()
                options.python_tracer_level = 0
                jax.profiler.start_trace(str(self._directory), profiler_options=options)
                self._tracing = True
            elif self._tracing and step == self._last:
                self.close()
                self._report(self._table())

    def close(self) -> None:
        """End a trace that is still going on, as when the run stops inside it."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()

    def _table(self) -> StepProfile:
        steps = sorted(self._seconds)
        mean = {name: sum(self._seconds[step][name] for step in steps) / len(steps) for name in self._seconds[steps[0]]}
        events = list(read_trace(self._directory))
        return summarise(
            events,
            parse_program(_program_text({event.name for event in events}), self._mesh),
            steps=(steps[0], steps[-1]),
            num_devices=len(jax.local_devices()),
            step_seconds=mean["step"],
            host_seconds=mean["data_wait"] + mean["host"],
        )


def read_trace(directory: Path) -> Iterator[Event]:
    """Operations of the compiled step in the newest trace of a directory."""
    traces = sorted(directory.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not traces:
        return
    for plane in jax.profiler.ProfileData.from_file(str(traces[-1])).planes:
        prefix, _, number = plane.name.rpartition(":")
        of_plane = int(number) if prefix.startswith("/device") and number.isdecimal() else 0
        for line in plane.lines:
            for event in line.events:
                stats = {str(key): value for key, value in event.stats}
                if str(stats.get("hlo_module", "")).startswith(PROGRAM) and "hlo_op" in stats:
                    device = int(stats.get("device_ordinal", of_plane))
                    yield Event(str(stats["hlo_op"]), device, event.start_ns / 1e9, event.duration_ns / 1e9)


def _program_text(names: set[str]) -> str:
    """Text of the compiled step; of several (batches of several sizes) the one that has most of the names."""
    best, most = "", -1
    for executable in jax.local_devices()[0].client.live_executables():
        for module in executable.hlo_modules():
            if module.name.startswith(PROGRAM):
                text = module.to_string()
                held = sum(f"{name} = " in text for name in names)
                if held > most:
                    best, most = text, held
    return best
