"""Every axis alone, every pair of axes and the triples that matter, against one device: `pytest -m campaign FILE`.

With accumulation, full remat, two documents a row and padding, windows of two kinds, shared experts and a dense first
layer, while the one device runs plainly: no accumulation, no remat.
"""

import functools
import itertools

import pytest

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


@pytest.fixture(scope="module")
def reference(build_on):
    @functools.cache
    def train(global_every: int):
        return build_on({}, model={"num_layers": 9, "global_every": global_every}).train(5)

    return train


@pytest.mark.campaign
@pytest.mark.parametrize("mesh", ALONE + PAIRS + TRIPLES, ids=name_of)
def test_layout_equals_one_device(build_on, reference, assert_parity, mesh):
    stages = mesh.get("pipeline", 1)
    global_every = 0 if stages == 8 else 2  # slots of one layer cannot have windows of two kinds
    layout = build_on(
        mesh,
        max(2, stages),
        model={"num_layers": 9, "global_every": global_every},
        remat={"policy": "full"},
    )
    assert_parity(layout.train(5), reference(global_every))
