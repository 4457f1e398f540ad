"""What a mesh divides beside its axes against one device: loss, every gradient leaf, parameters after five steps.

The axes themselves are those of test_matrix. And a mesh in mxfp8.
"""

import numpy as np
import pytest

from maxtrain.train.state import to_saved
from tests.parallel.conftest import OnMesh, parity_config, relative

CASES = [
    ({"context": 2, "fsdp": 2, "tensor": 2, "sequence_parallel": True}, 1),
    ({"fsdp": 2, "expert": 2, "zero": 1}, 2),
    ({"fsdp": 2, "expert": 2, "zero": 2}, 2),
]
NAMES = ["-".join(f"{axis}{size}" for axis, size in {**mesh, "accumulation": micro}.items()) for mesh, micro in CASES]


@pytest.mark.parametrize(("mesh", "num_micro"), CASES, ids=NAMES)
def test_mesh_equals_one_device(on_mesh, one_device, assert_parity, mesh, num_micro):
    assert_parity(on_mesh(num_micro, **mesh).train(5), one_device)


def test_experts_folded_onto_fsdp_equal_one_device(build_on, one_device, assert_parity):
    assert_parity(build_on({"fsdp": 8}, mesh={"expert_fold": ("fsdp",)}).train(5), one_device)


@pytest.mark.campaign
@pytest.mark.parametrize("mesh", [{"data": 2, "fsdp": 2, "tensor": 2}, {"data": 2, "fsdp": 2, "expert": 2}])
@pytest.mark.parametrize("zero", [1, 2])
def test_zero_with_every_axis_equals_one_device(on_mesh, one_device, assert_parity, mesh, zero):
    assert_parity(on_mesh(**mesh, zero=zero).train(5), one_device)


@pytest.mark.campaign
@pytest.mark.parametrize("zero", [2, 1])
def test_zero_with_stages_equals_one_device(build_on, assert_parity, zero):
    model = {"global_every": 0}  # the stages have the same windows
    stages = build_on({"pipeline": 2, "fsdp": 2, "expert": 2, "zero": zero}, 2, model=model)
    assert_parity(stages.train(3), build_on({}, model=model).train(3), params=5e-5)


def test_parameters_are_born_sharded(on_mesh):
    parts = on_mesh(data=2, fsdp=2, expert=2).parts
    saved = to_saved(parts.create_state(0), parts.model)
    up = saved["params"]["layers"]["moe"]["feed_forward"]["experts"]["up"]
    assert up.addressable_shards[0].data.size * 4 == up.size  # experts over `expert`, width over `fsdp`
    moment = saved["opt_state"]["nu/layers/moe/feed_forward/experts/up"]
    assert moment.sharding == up.sharding


def test_blocks_of_eight_bits_lie_alike_on_every_mesh():
    """Blocks of 32 follow channels and tokens, of which ranks hold whole ones; a sum in another order may still round
    an operand to its neighbour, 2⁻³ away."""
    model = parity_config({}).model.model_dump()
    model["moe"]["d_expert"] = 64
    sections = {"model": model, "precision": {"compute": "mxfp8", "emulate": True}}
    one = OnMesh(parity_config({}, 2, **sections)).train(1)
    other = OnMesh(parity_config({"fsdp": 2, "expert": 2, "tensor": 2}, 2, **sections)).train(1)
    assert relative(other.lines[0]["loss"], one.lines[0]["loss"]) < 1e-6
    np.testing.assert_array_equal(other.lines[0]["expert_load"], one.lines[0]["expert_load"])
    distances = {path: relative(other.gradient[path], one.gradient[path]) for path in one.gradient}
    assert max(distances.values()) < 2e-3, distances
