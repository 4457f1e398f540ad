"""What a mesh divides beside its axes against one device: loss, every gradient leaf, parameters after five steps.

The axes themselves are those of test_matrix.
"""

import pytest

from maxtrain.train.state import to_saved

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
