"""Starting JAX: how many processes, how many devices, where compiled programs are kept.

Call `start_processes`, then `start_devices`, before anything else touches a device.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from maxtrain.config.checks.backend import Backend
from maxtrain.core.errors import UserError
from maxtrain.parallel.emulation import keep_collectives_in_order


class Processes(NamedTuple):
    """How this process joins the others; empty fields are detected by JAX from the cluster's environment."""

    coordinator: str | None = None
    """host:port of process 0."""
    num_processes: int | None = None
    process_id: int | None = None


_VARIABLES = ("MAXTRAIN_COORDINATOR", "MAXTRAIN_NUM_PROCESSES", "MAXTRAIN_PROCESS_ID")


def find_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
) -> Processes | None:
    """Decide from arguments or the environment how many processes there are.

    In this order: the arguments; MAXTRAIN_COORDINATOR, MAXTRAIN_NUM_PROCESSES and MAXTRAIN_PROCESS_ID (process id from
    JOB_COMPLETION_INDEX where a Kubernetes JobSet or indexed Job sets it); a Slurm step of several tasks; a TPU pod or
    several TPU slices.

    Returns:
        How to join, or None for a single process.

    Raises:
        UserError: only a part is given, or a number is not one or is out of range.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is not None for value in given):
        names = ("coordinator", "num_processes", "process_id")
        return _checked(Processes(*given), dict(zip(names, given, strict=True)))
    values = {name: environment.get(name) for name in _VARIABLES}
    if any(values.values()):
        values[_VARIABLES[2]] = values[_VARIABLES[2]] or environment.get("JOB_COMPLETION_INDEX")
        found = Processes(values[_VARIABLES[0]], *(_whole_number(name, values[name]) for name in _VARIABLES[1:]))
        return _checked(found, values)
    tasks, slices = (
        _whole_number(name, environment.get(name, "1")) or 1
        for name in ("SLURM_STEP_NUM_TASKS", "MEGASCALE_NUM_SLICES")
    )
    if tasks > 1:
        return Processes(num_processes=tasks)
    return Processes() if slices > 1 or "," in environment.get("TPU_WORKER_HOSTNAMES", "") else None


def _whole_number(name: str, value: str | None) -> int | None:
    if value is not None and not value.isdecimal():
        raise UserError(f"{name} = {value!r}: should be a whole number")
    return None if value is None else int(value)


def _checked(found: Processes, values: Mapping[str, object]) -> Processes | None:
    absent = [name for name, value in values.items() if value in (None, "")]
    if absent:
        raise UserError(f"{' and '.join(absent)} missing: give {', '.join(values)} together, or none of them")
    assert found.coordinator is not None
    assert found.num_processes is not None
    assert found.process_id is not None
    names = list(values)
    host, _, port = found.coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"{names[0]} = {found.coordinator!r}: should be host:port of process 0")
    if found.num_processes < 1 or not 0 <= found.process_id < found.num_processes:
        raise UserError(
            f"{names[2]} = {found.process_id} with {names[1]} = {found.num_processes}: should be from 0 to "
            f"{names[1]} - 1"
        )
    return found if found.num_processes > 1 else None


def start_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_seconds: int = 300,
    heartbeat_timeout_seconds: int = 100,
) -> int:
    """Join the other processes of the run, if there are any (gloo on CPU, NCCL on GPU, ICI on TPU).

    Args:
        coordinator: host:port of process 0; with the next two, or none of them (see `find_processes`).
        num_processes: processes in all.
        process_id: number of this one.
        timeout_seconds: how long to wait for the others.
        heartbeat_timeout_seconds: silence after which a process counts as dead.

    Returns:
        The number of processes.

    Raises:
        UserError: see `find_processes`; or the others do not answer in time.
    """
    found = find_processes(coordinator, num_processes, process_id)
    if found is None:
        return 1
    if found.coordinator is not None and found.process_id != 0:
        _wait_for(found.coordinator, timeout_seconds)
    try:
        jax.distributed.initialize(
            *found,
            initialization_timeout=timeout_seconds,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        )
    except (RuntimeError, ValueError) as error:
        where = f"coordinator {found.coordinator}" if found.coordinator else "the cluster's environment"
        reason = str(error).splitlines()[0]
        raise UserError(f"could not join the other processes through {where}: {reason}") from error
    return found.num_processes or jax.process_count()


def _wait_for(coordinator: str, timeout_seconds: int) -> None:
    """Wait until process 0 listens: JAX itself would abort the process without a word that a user can use."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"coordinator {coordinator} did not answer within {timeout_seconds} s ({error}): start process 0 "
                    "there, or give its address"
                ) from error
        time.sleep(0.2)


_MOST_DEVICES = 1024
"""Most devices of a process, emulated ones too."""


def start_devices(num_devices: int | None, *, num_processes: int = 1) -> None:
    """Emulate so many CPU devices in all, each process its share; accelerators are unaffected.

    Args:
        num_devices: devices of all processes together; None for what the backend has.
        num_processes: as returned by `start_processes`.

    Raises:
        UserError: the processes do not divide the devices, or JAX already runs with fewer.
    """
    if num_devices is None:
        return
    if num_devices % num_processes:
        raise UserError(
            f"mesh.devices = {num_devices} over {num_processes} processes: should be a multiple of {num_processes}"
        )
    each = num_devices // num_processes
    if each > _MOST_DEVICES:
        raise UserError(
            f"mesh.devices = {num_devices:,} over {num_processes} process(es): at most {_MOST_DEVICES:,} of them share "
            "a process; start more processes, or lower it"
        )
    if num_devices > 1:
        keep_collectives_in_order()
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", each)
    except RuntimeError as error:
        if jax.local_device_count() < each:
            raise UserError(
                f"mesh.devices = {num_devices} but JAX already runs with {jax.local_device_count()}: start afresh"
            ) from error


def find_backend() -> Backend:
    """What the devices are; they start if they have not."""
    device = jax.local_devices()[0]
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    return Backend(device.platform, device.device_kind, capability)


def enable_compilation_cache(directory: Path) -> None:
    """Keep every compiled program in a directory, which is made when the first is written."""
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
