"""Two processes of several devices each against one process with the same mesh, step by step.

`tests/e2e/test_processes.py` takes a run through the command line; here every leaf is compared.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MESHES = [
    {"data": 2, "fsdp": 2},
    {"expert": 4},
    {"tensor": 4},
    {"context": 4},
    {"pipeline": 4},
]
STEPS = 5
PATIENCE_SECONDS = 240
"""For both processes together: what CPU devices exchange over gloo now and then never connects (jax 0.10)."""


def train(mesh: dict[str, int], output: Path, coordinator: str = "", index: int = 0) -> None:
    """What one process does: train, and write metrics, the first gradient and the parameters, every leaf whole."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from maxtrain.parallel.agreement import ProcessGroup
    from maxtrain.parallel.emulation import settle
    from maxtrain.parallel.start import start_devices, start_processes

    num_processes = start_processes(coordinator, 2, index) if coordinator else 1
    start_devices(4, num_processes=num_processes)
    spec = importlib.util.spec_from_file_location("layouts", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    layouts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layouts)
    stages = mesh.get("pipeline", 1)
    config = layouts.parity_config(mesh, stages, model={"num_layers": 5, "global_every": 0})
    layout = layouts.OnMesh(config)
    step = layout.step
    # Who is done compiling waits here: a collective would give up.
    ProcessGroup(PATIENCE_SECONDS, "compiling").agree(None)

    gather = jax.jit(lambda tree: tree, out_shardings=NamedSharding(layout.parts.mesh, PartitionSpec()))
    state = settle(layout.parts.create_state(config.run.seed))
    found: dict[str, jax.Array] = {}
    for number in range(STEPS):
        state, metrics = settle(step(state, layout.batch(number)))
        found |= {f"{name} {number}": metrics[name] for name in ("loss", "grad_norm", "expert_load")}
        if number == 0:
            moments = layouts.leaf_paths(settle(gather(state.opt_state)))
            found |= {f"gradient/{name}": leaf for name, leaf in moments if name.startswith("mu/")}
    found |= {f"params/{name}": leaf for name, leaf in layouts.leaf_paths(settle(gather(state.params)))}
    with output.open("wb") as file:
        np.savez(file, **jax.device_get(found))
    ProcessGroup(PATIENCE_SECONDS, "finishing").agree(None)


def run(root: Path, mesh: dict[str, int], folder: Path, num_processes: int) -> list[dict[str, np.ndarray]]:
    """Train in so many processes; what each of them found."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}" if num_processes > 1 else ""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "JAX_NUM_CPU_DEVICES": str(4 // num_processes),
    }
    outputs = [folder / f"{num_processes}-{index}" for index in range(num_processes)]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, json.dumps(mesh), str(output), coordinator, str(index)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, output in enumerate(outputs)
    ]
    try:
        told = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in started]
    except subprocess.TimeoutExpired:
        pytest.fail(f"{num_processes} processes did not end within {PATIENCE_SECONDS} s: did gloo connect them?")
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * num_processes, told
    return [dict(np.load(output)) for output in outputs]


@pytest.mark.campaign
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "-".join(f"{axis}{size}" for axis, size in mesh.items()))
def test_two_processes_equal_one(root, tmp_path, farthest_leaf, relative_to, mesh):
    (one,) = run(root, mesh, tmp_path, 1)
    for other in run(root, mesh, tmp_path, 2):
        for number in range(STEPS):
            np.testing.assert_array_equal(other[f"expert_load {number}"], one[f"expert_load {number}"])
            for name in (f"loss {number}", f"grad_norm {number}"):
                assert relative_to(other[name], one[name]) < 2e-6, name
        leaves = [{name: leaf for name, leaf in found.items() if "/" in name} for found in (other, one)]
        assert len(leaves[0]) > 2 * STEPS
        assert farthest_leaf(*leaves)[1] < 1e-5, farthest_leaf(*leaves)


if __name__ == "__main__":
    _, mesh, output, coordinator, index = sys.argv
    train(json.loads(mesh), Path(output), coordinator, int(index))
