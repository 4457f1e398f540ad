"""Two processes save one state, see each other's failures, and restore; one process reads what two wrote."""

import json
import socket
import subprocess
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.checkpoint import list_steps, restore_subtree

_CHILD = """
import json, os, sys
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "2"
import jax
port, rank, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import maxtrain.checkpoint.store as store_module
from maxtrain.checkpoint import CheckpointStore, leaf_digest
from maxtrain.core.errors import CheckpointError

mesh = jax.make_mesh((4,), ("fsdp",), (AxisType.Auto,))
events, seen = [], {}


def place(value, *spec):
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda at: value[at])


def state(step):
    values = np.arange(4096, dtype=np.float32).reshape(8, 512) + step
    return {"w": place(values, "fsdp"), "step": place(np.int32(step)), "norm": place(values[0])}


store = CheckpointStore(directory, on_event=lambda *event: events.append(event), timeout_seconds=60)
abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state(0))
assert store.restore(abstract) is None
store.save(1, state(1), {"processes": jax.process_count()})
store.wait()

real = store_module.seal_files
if rank == 1:
    def failing(*arguments, **options):
        raise OSError(28, "No space left on device", "/far")

    store_module.seal_files = failing
store.save(2, state(2), {})
try:
    store.wait()
except CheckpointError as error:
    seen["failure"] = str(error)
store_module.seal_files = real

if rank == 0:
    def refused(*arguments):
        raise OSError(30, "Read-only file system", "/near")

    keep, store_module.sweep = store_module.sweep, refused
try:
    store.save(2, state(2), {})
except CheckpointError as error:
    seen["refused"] = str(error)
if rank == 0:
    store_module.sweep = keep

store.save(3, state(3), {"processes": jax.process_count()})
store.wait()
if rank == 0:
    victim = next((directory / "step_00000003").rglob("ocdbt.process_1/d/*"))
    victim.write_bytes(victim.read_bytes()[::-1])
step, restored, record = store.restore(abstract)
seen |= {"step": step, "record": record, "digest": leaf_digest(restored)}
seen["equal"] = leaf_digest(restored) == leaf_digest(state(1))
seen["events"] = [kind for kind, _, _ in events]
store.save(4, restored, {})
store.close()
(directory.parent / f"seen_{rank}.json").write_text(json.dumps(seen))
jax.distributed.shutdown()
"""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_commit_together_and_fail_together(directory, tmp_path, kit):
    port = str(_free_port())
    directory.parent.mkdir()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, port, str(rank), str(directory)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], "\n".join(outputs)
    first, second = (json.loads((directory.parent / f"seen_{rank}.json").read_text()) for rank in range(2))
    for seen in (first, second):
        assert "process 1: No space left on device" in seen["failure"]
        assert "Read-only file system" in seen["refused"]
        assert (seen["step"], seen["record"], seen["equal"]) == (1, {"processes": 2}, True)
    assert first["events"] == [
        "save",
        "save_failed",
        "save_failed",
        "warning",
        "save",
        "fallback",
        "restore",
    ]
    assert second["events"] == []

    assert [(info.step, info.verified) for info in list_steps(directory)] == [(1, True), (4, True)]
    sharding = NamedSharding(kit.mesh(1, 4), PartitionSpec("fsdp"))
    part = {"w": jax.ShapeDtypeStruct((8, 512), np.float32, sharding=sharding)}
    step, restored, _ = restore_subtree(directory, part)
    assert step == 4
    np.testing.assert_array_equal(restored["w"], np.arange(4096, dtype=np.float32).reshape(8, 512) + 1)
