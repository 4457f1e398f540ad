"""A save killed with SIGKILL at its decisive moments, and at arbitrary ones: a verified step is always left."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from maxtrain.checkpoint import CheckpointStore, list_steps

_CHILD = """
import os, signal, sys
from pathlib import Path

import jax, jax.numpy as jnp
import maxtrain.checkpoint.store as store_module

directory, point = Path(sys.argv[1]), sys.argv[2]
store = store_module.CheckpointStore(directory, keep=1)
state = {"w": jnp.arange(300_000, dtype=jnp.float32)}
store.save(1, state, {"step": 1})
store.wait()
print("ready", flush=True)
if point != "any":
    real = getattr(store_module, point)

    def die(*arguments):
        if point == "fsync_directory":  # after the rename, before the ledger
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(store_module, point, die)
for step in range(2, 1000):
    store.save(step, {"w": state["w"] + step}, {"step": step})
"""


def _run(directory: Path, point: str, delay: float | None) -> None:
    process = subprocess.Popen([sys.executable, "-c", _CHILD, str(directory), point], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        if delay is not None:
            time.sleep(delay)
            process.kill()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "delay", "newest"),
    [
        ("finish_write", None, 1),
        ("append_health", None, 1),
        ("fsync_directory", None, 2),
        ("any", 0.31, None),
    ],
)
def test_a_killed_save_leaves_the_step_before(directory, kit, point, delay, newest):
    _run(directory, point, delay)
    verified = [info for info in list_steps(directory) if info.verified]
    assert verified
    assert newest is None or verified[-1].step == newest
    assert len(verified) == len(list_steps(directory))
    with CheckpointStore(directory, keep=9) as store:
        one = kit.abstract(kit.mesh(1, 1))["step"].sharding
        abstract = {"w": jax.ShapeDtypeStruct((300_000,), np.float32, sharding=one)}
        found = store.restore(abstract)
        assert found is not None
        step, restored, record = found
        assert step == record["step"] == verified[-1].step
        expected = np.arange(300_000, dtype=np.float32) + (step if step > 1 else 0)
        np.testing.assert_array_equal(restored["w"], expected)
        store.save(step + 1, restored, {"step": step + 1})
    assert list_steps(directory)[-1].step == step + 1
