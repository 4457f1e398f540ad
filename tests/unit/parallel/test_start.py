import json
import os
import socket
import subprocess
import sys

import pytest

from maxtrain.core.errors import UserError
from maxtrain.parallel.start import Processes, find_processes, start_devices, start_processes


def find(environment, *arguments):
    return find_processes(*arguments, environment=environment)


def test_a_single_process():
    assert find({}) is None
    assert find({}, "host:1", 1, 0) is None
    assert find({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "one"}) is None
    assert start_processes("host:1", 1, 0) == 1


def test_arguments_come_first():
    environment = {"SLURM_STEP_NUM_TASKS": "4", "MAXTRAIN_COORDINATOR": "other:9"}
    assert find(environment, "host:1", 2, 1) == Processes("host:1", 2, 1)


def test_environment():
    own = {"MAXTRAIN_COORDINATOR": "host:1234", "MAXTRAIN_NUM_PROCESSES": "3"}
    assert find({**own, "MAXTRAIN_PROCESS_ID": "2"}) == Processes("host:1234", 3, 2)
    assert find({**own, "JOB_COMPLETION_INDEX": "1"}) == Processes("host:1234", 3, 1)
    assert find({"SLURM_STEP_NUM_TASKS": "4"}) == Processes(num_processes=4)
    assert find({"TPU_WORKER_HOSTNAMES": "a,b"}) == Processes()
    assert find({"MEGASCALE_NUM_SLICES": "2"}) == Processes()


@pytest.mark.parametrize(
    ("environment", "arguments", "text"),
    [
        ({}, ("host:1", 2, None), "process_id missing: give coordinator, num_processes, process_id together"),
        ({}, ("host", 2, 0), "coordinator = 'host': should be host:port"),
        ({}, ("host:1", 2, 2), "process_id = 2 with num_processes = 2: should be from 0 to num_processes - 1"),
        ({"MAXTRAIN_COORDINATOR": "host:1"}, (), "MAXTRAIN_NUM_PROCESSES and MAXTRAIN_PROCESS_ID missing"),
        (
            {"MAXTRAIN_COORDINATOR": "host:1", "MAXTRAIN_NUM_PROCESSES": "two", "MAXTRAIN_PROCESS_ID": "0"},
            (),
            "MAXTRAIN_NUM_PROCESSES = 'two': should be a whole number",
        ),
        ({"SLURM_STEP_NUM_TASKS": "many"}, (), "SLURM_STEP_NUM_TASKS = 'many'"),
    ],
)
def test_what_is_not_enough(environment, arguments, text):
    with pytest.raises(UserError, match=text):
        find(environment, *arguments)


def test_devices_that_processes_do_not_divide():
    with pytest.raises(UserError, match=r"mesh.devices = 8 over 3 processes: should be a multiple of 3"):
        start_devices(8, num_processes=3)


def test_devices_after_the_backend_runs():
    import jax

    assert jax.device_count() == 8
    start_devices(4)
    with pytest.raises(UserError, match=r"mesh.devices = 16 but JAX already runs with 8"):
        start_devices(16)


WORKER = """
import json, sys
from pathlib import Path
import numpy as np
from maxtrain.parallel.start import enable_compilation_cache, start_devices, start_processes
num = start_processes(sys.argv[1], 2, int(sys.argv[2]), timeout_seconds=60)
start_devices(8, num_processes=num)
enable_compilation_cache(Path(sys.argv[3]))
import jax
from jax.sharding import PartitionSpec
from maxtrain.config.schema import BATCH_AXES, MeshConfig
from maxtrain.parallel.emulation import settle
from maxtrain.parallel.mesh import local_rows, make_global, make_mesh
report = []
for axes in ({"data": 8}, {"tensor": 8}, {"tensor": 4, "fsdp": 2}, {"data": 2, "expert": 2, "tensor": 2}):
    mesh = make_mesh(MeshConfig(devices=8, **axes))
    rows = local_rows(mesh, 16)
    data = np.arange(3 * 16 * 2).reshape(3, 16, 2)
    whole = make_global(mesh, PartitionSpec(None, BATCH_AXES), data[:, rows], data.shape)
    total = int(settle(jax.jit(lambda a: (a * a).sum())(whole)))
    assert total == (data**2).sum(), (axes, total)
    report.append([*axes, len(rows)])
report.append([jax.device_count(), jax.local_device_count()])
Path(sys.argv[4]).write_text(json.dumps(report))
"""


def test_two_processes_share_a_mesh(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, address, str(rank), str(tmp_path / "cache"), str(tmp_path / str(rank))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, worker in enumerate(workers):
        _, err = worker.communicate(timeout=240)
        assert worker.returncode == 0, err
        # Two processes of four devices: replicas halve the rows, a tensor axis across both needs all of them twice.
        assert json.loads((tmp_path / str(rank)).read_text()) == [
            ["data", 8],
            ["tensor", 16],
            ["tensor", "fsdp", 8],
            ["data", "expert", "tensor", 8],
            [8, 4],
        ]
    assert list((tmp_path / "cache").iterdir())


def test_an_absent_coordinator_is_one_line():
    code = (
        "from maxtrain.core.errors import run_command\n"
        "from maxtrain.parallel.start import start_processes\n"
        "import sys\n"
        "sys.exit(run_command(lambda: start_processes('127.0.0.1:9', 2, 1, timeout_seconds=1)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert "error: coordinator 127.0.0.1:9 did not answer within 1 s" in done.stderr


def test_more_devices_than_a_process_can_emulate_are_refused():
    with pytest.raises(UserError, match=r"mesh.devices = 1,048,576 over 2 process\(es\): at most 1,024 of them share"):
        start_devices(2**20, num_processes=2)
