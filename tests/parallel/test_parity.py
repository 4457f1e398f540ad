"""Every mesh against one device, in float32: loss, every gradient leaf, parameters after five steps."""

import pytest

from maxtrain.train.state import to_saved

MESHES = [
    {"data": 8},
    {"fsdp": 8},
    {"expert": 8},
    {"context": 8},
    {"tensor": 4, "fsdp": 2},
    {"data": 2, "fsdp": 2, "expert": 2},
    {"context": 2, "fsdp": 2, "tensor": 2, "sequence_parallel": True},
    {"context": 2, "fsdp": 2, "expert": 2},
]
NAMES = ["-".join(f"{axis}{size}" for axis, size in mesh.items()) for mesh in MESHES] + ["fsdp2-expert2-accumulation2"]


@pytest.mark.parametrize(
    ("mesh", "num_micro"), [(mesh, 1) for mesh in MESHES] + [({"fsdp": 2, "expert": 2}, 2)], ids=NAMES
)
def test_mesh_equals_one_device(on_mesh, one_device, assert_parity, mesh, num_micro):
    assert_parity(on_mesh(num_micro, **mesh).train(5), one_device)


def test_experts_folded_onto_fsdp_equal_one_device(build_on, one_device, assert_parity):
    assert_parity(build_on({"fsdp": 8}, mesh={"expert_fold": ("fsdp",)}).train(5), one_device)


def test_parameters_are_born_sharded(on_mesh):
    parts = on_mesh(data=2, fsdp=2, expert=2).parts
    saved = to_saved(parts.create_state(0), parts.model)
    up = saved["params"]["layers"]["moe"]["feed_forward"]["experts"]["up"]
    assert up.addressable_shards[0].data.size * 4 == up.size  # experts over `expert`, width over `fsdp`
    moment = saved["opt_state"]["nu/layers/moe/feed_forward/experts/up"]
    assert moment.sharding == up.sharding
