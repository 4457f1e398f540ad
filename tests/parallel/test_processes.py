"""Two processes of several devices each against one process with the same mesh, step by step.

`tests/e2e/test_processes.py` takes a run through the command line; here every leaf is compared.
"""

import importlib.util
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
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
    """What one process does: train, and write what it holds of every leaf."""
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

    def held(leaf):
        return leaf.shape, [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards]

    state, lines, gradient = settle(layout.parts.create_state(config.run.seed)), [], {}
    for number in range(STEPS):
        state, metrics = settle(step(state, layout.batch(number)))
        lines.append({name: np.asarray(metrics[name]) for name in ("loss", "grad_norm", "expert_load")})
        if number == 0:
            gradient = {
                name: held(leaf) for name, leaf in layouts.leaf_paths(state.opt_state) if name.startswith("mu/")
            }
    params = {name: held(leaf) for name, leaf in layouts.leaf_paths(state.params)}
    output.write_bytes(pickle.dumps((lines, gradient, params)))
    ProcessGroup(PATIENCE_SECONDS, "finishing").agree(None)


def together(parts: Sequence[dict]) -> dict[str, np.ndarray]:
    """Whole leaves from what each process held of them."""
    whole = {}
    for name, (shape, _) in parts[0].items():
        whole[name] = np.full(shape, np.nan, np.float32)
        for part in parts:
            for index, values in part[name][1]:
                whole[name][index] = values
    return whole


def run(root: Path, mesh: dict[str, int], folder: Path, num_processes: int):
    """Train in so many processes; lines of the first, and whole leaves of gradient and parameters."""
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
            [sys.executable, __file__, repr(mesh), str(output), coordinator, str(index)],
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
    lines, gradients, params = zip(*(pickle.loads(output.read_bytes()) for output in outputs), strict=True)
    return lines, together(gradients), together(params)


@pytest.mark.campaign
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "-".join(f"{axis}{size}" for axis, size in mesh.items()))
def test_two_processes_equal_one(root, tmp_path, farthest_leaf, relative_to, mesh):
    (one,), one_gradient, one_params = run(root, mesh, tmp_path, 1)
    both, gradient, params = run(root, mesh, tmp_path, 2)
    for lines in both:
        for line, other in zip(one, lines, strict=True):
            np.testing.assert_array_equal(other["expert_load"], line["expert_load"])
            assert relative_to(other["loss"], line["loss"]) < 2e-6
            assert relative_to(other["grad_norm"], line["grad_norm"]) < 2e-6
    assert farthest_leaf(gradient, one_gradient)[1] < 1e-5, farthest_leaf(gradient, one_gradient)
    assert farthest_leaf(params, one_params)[1] < 1e-5, farthest_leaf(params, one_params)


if __name__ == "__main__":
    _, mesh, output, coordinator, index = sys.argv
    train(dict(eval(mesh)), Path(output), coordinator, int(index))
