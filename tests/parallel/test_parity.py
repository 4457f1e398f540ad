"""Every mesh against one device, in float32: loss, every gradient leaf, parameters after five steps."""

import numpy as np
import pytest

from maxtrain.train.state import to_saved

MESHES = [
    {"data": 8},
    {"fsdp": 8},
    {"expert": 8},
    {"tensor": 4, "fsdp": 2},
    {"data": 2, "fsdp": 2, "expert": 2},
]
NAMES = ["-".join(f"{axis}{size}" for axis, size in mesh.items()) for mesh in MESHES] + ["fsdp2-expert2-accumulation2"]


def relative(a, b) -> float:
    """Relative L2 distance of two leaves; a zero leaf must be matched exactly."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not np.any(b):
        return float(np.abs(a).max(initial=0.0))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def farthest(a: dict, b: dict) -> tuple[str, float]:
    """The leaf with the greatest distance."""
    assert a.keys() == b.keys()
    return max(((name, relative(leaf, b[name])) for name, leaf in a.items()), key=lambda item: item[1])


@pytest.mark.parametrize(
    ("mesh", "num_micro"), [(mesh, 1) for mesh in MESHES] + [({"fsdp": 2, "expert": 2}, 2)], ids=NAMES
)
def test_mesh_equals_one_device(on_mesh, one_device, mesh, num_micro):
    trained = on_mesh(num_micro, **mesh).train(5)
    for line, other in zip(one_device.lines, trained.lines, strict=True):
        np.testing.assert_array_equal(other["expert_load"], line["expert_load"])  # a flipped expert would show here
        assert other["batch_digest"] == line["batch_digest"]
        assert relative(other["loss"], line["loss"]) < 2e-6
        assert relative(other["grad_norm"], line["grad_norm"]) < 2e-6
    assert farthest(trained.gradient, one_device.gradient)[1] < 1e-5, farthest(trained.gradient, one_device.gradient)
    assert farthest(trained.params, one_device.params)[1] < 1e-5, farthest(trained.params, one_device.params)


def test_parameters_are_born_sharded(on_mesh):
    parts = on_mesh(data=2, fsdp=2, expert=2).parts
    saved = to_saved(parts.create_state(0), parts.model)
    up = saved["params"]["layers"]["moe"]["feed_forward"]["experts"]["up"]
    assert up.addressable_shards[0].data.size * 4 == up.size  # experts over `expert`, width over `fsdp`
    moment = saved["opt_state"]["nu/layers/moe/feed_forward/experts/up"]
    assert moment.sharding == up.sharding
