"""Several processes see the batches of one, and a run may move between process counts."""

import json
import socket

import numpy as np
import pytest

MESH = ("mesh.devices=4", "mesh.data=2", "mesh.fsdp=2", "batch.micro_batch=4")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(runner, directory, num_processes: int, stop_at: int) -> None:
    """Train with so many processes on four emulated devices in all."""
    config = str(runner.write(directory))
    common = ["maxtrain.train", config, *MESH, "checkpoint.healthy_after=2", "--stop-at", str(stop_at)]
    coordinator = f"127.0.0.1:{free_port()}"
    started = []
    for index in range(num_processes):
        join = ["--coordinator", coordinator, "--num-processes", str(num_processes), "--process-id", str(index)]
        started.append(
            runner.command(*common, *(join if num_processes > 1 else []), JAX_NUM_CPU_DEVICES=str(4 // num_processes))
        )
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * num_processes, errors


@pytest.mark.parametrize("counts", [(2, 1, 4)], ids=["2-1-4"])
def test_batches_do_not_depend_on_processes(runner, tmp_path, counts):
    one = tmp_path / "one"
    train(runner, one, 1, 9)
    moved = tmp_path / "moved"
    for count, stop_at in zip(counts, (3, 6, 9), strict=True):
        train(runner, moved, count, stop_at)
    lines, moved_lines = runner.lines(one), runner.lines(moved)
    assert len(lines) == len(moved_lines) == 9
    for line, other in zip(lines, moved_lines, strict=True):
        for name in ("step", "updates", "batch_digest", "tokens_seen", "target_tokens", "tokens_by_domain", "epochs"):
            assert line[name] == other[name]
        # Two processes add gradients up in another order than one.
        np.testing.assert_allclose(other["loss"], line["loss"], rtol=2e-6)
    judged = [json.loads(line) for line in (moved / "checkpoints" / "health.jsonl").read_text().splitlines()]
    assert [line["step"] for line in judged if line["health"] == "provisional"] == [0, 3, 4, 6, 8, 9]
    assert [line["step"] for line in judged if line["health"] == "healthy"] == [0, 3, 4, 6]
    assert len(judged) == 10
