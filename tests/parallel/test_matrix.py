"""Every axis alone, every pair of axes and the triples that matter, against one device.

The default suite has every axis alone over four devices, and the triples; `pytest -m campaign FILE` runs the rest.

With accumulation, full remat, two documents a row and padding, windows of two kinds, shared experts and a dense first
layer, while the one device runs plainly: no accumulation, no remat. The collectives of each compiled step are held
against `tests/golden/collectives`, which MAXTRAIN_WRITE_GOLDEN=1 writes anew; another version of JAX may merge them
otherwise, so that counts are compared for the version that a file names.
"""

import collections
import functools
import itertools
import json
import os

import jax
import pytest

from maxtrain.monitor.step_profile import parse_program

AXES = ("data", "fsdp", "pipeline", "expert", "context", "tensor")
ALONE = [{axis: size} for axis in AXES for size in (2, 4, 8) if (axis, size) != ("tensor", 8)]
"""Four kv heads do not divide by eight."""
PAIRS = [{one: 2, other: 2} for one, other in itertools.combinations(AXES, 2)]
TRIPLES = [
    dict.fromkeys(axes, 2)
    for axes in (
        ("data", "pipeline", "expert"),
        ("fsdp", "pipeline", "tensor"),
        ("fsdp", "expert", "context"),
    )
]


def name_of(mesh: dict[str, int]) -> str:
    """Such as `fsdp2-tensor2`."""
    return "-".join(f"{axis}{size}" for axis, size in mesh.items())


LAYOUTS = [
    pytest.param(mesh, id=name_of(mesh), marks=() if mesh in TRIPLES or 4 in mesh.values() else pytest.mark.campaign)
    for mesh in ALONE + PAIRS + TRIPLES
]


@pytest.fixture(scope="module")
def reference(build_on):
    @functools.cache
    def train(global_every: int):
        return build_on({}, model={"num_layers": 9, "global_every": global_every}).train(5)

    return train


def inventory(layout) -> dict[str, int]:
    """Collectives of the compiled step by kind and mesh axes, such as `all-reduce (data)`."""
    operations = parse_program(layout.step.as_text(), dict(layout.parts.mesh.shape)).values()
    return dict(collections.Counter(operation.row for operation in operations if operation.is_collective))


@pytest.mark.parametrize("mesh", LAYOUTS)
def test_layout_equals_one_device(root, build_on, reference, assert_parity, mesh):
    stages = mesh.get("pipeline", 1)
    global_every = 0 if stages == 8 else 2  # slots of one layer cannot have windows of two kinds
    layout = build_on(
        mesh,
        max(2, stages),
        model={"num_layers": 9, "global_every": global_every},
        remat={"policy": "full"},
    )
    assert_parity(layout.train(5), reference(global_every))
    found = inventory(layout)
    assert not [row for row in found if row.startswith("all-gather") and "pipeline" in row]
    golden = root / "tests" / "golden" / "collectives" / f"{name_of(mesh)}.json"
    if os.environ.get("MAXTRAIN_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps({"jax": jax.__version__, "collectives": found}, indent=1, sort_keys=True) + "\n")
    stored = json.loads(golden.read_text())
    assert set(found) == set(stored["collectives"])
    if stored["jax"] == jax.__version__:
        assert found == stored["collectives"]
