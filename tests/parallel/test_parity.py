"""Every mesh against one device, in float32: loss, every gradient leaf, parameters after five steps."""

import jax
import numpy as np
import pytest

MESHES = [
    {"data": 8},
    {"fsdp": 8},
    {"expert": 8},
    {"tensor": 4, "fsdp": 2},
    {"data": 2, "fsdp": 2, "expert": 2},
]
NAMES = ["-".join(f"{axis}{size}" for axis, size in mesh.items()) for mesh in MESHES]


def relative(a, b) -> float:
    """Relative L2 distance of two leaves; a zero leaf must be matched exactly."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not np.any(b):
        return float(np.abs(a).max(initial=0.0))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def leaves(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize("mesh", MESHES, ids=NAMES)
def test_mesh_equals_one_device(on_mesh, one_device, mesh):
    (grads, total, aux), (state, lines) = one_device
    sharded = on_mesh(**mesh)
    mesh_grads, mesh_total, mesh_aux = sharded.gradient()
    assert relative(mesh_total, total) < 2e-6
    np.testing.assert_array_equal(mesh_aux.expert_load, aux.expert_load)  # a flipped expert would show here
    far = {name: relative(leaf, leaves(grads)[name]) for name, leaf in leaves(mesh_grads).items()}
    assert max(far.values()) < 1e-5, max(far.items(), key=lambda item: item[1])

    mesh_state, mesh_lines = sharded.train(5)
    for line, mesh_line in zip(lines, mesh_lines, strict=True):
        np.testing.assert_array_equal(mesh_line["expert_load"], line["expert_load"])
        assert relative(mesh_line["loss"], line["loss"]) < 2e-6
        assert relative(mesh_line["grad_norm"], line["grad_norm"]) < 1e-5
    far = {name: relative(leaf, leaves(state.params)[name]) for name, leaf in leaves(mesh_state.params).items()}
    assert max(far.values()) < 1e-5, max(far.items(), key=lambda item: item[1])


@pytest.mark.parametrize("num_micro", [2, 4])
def test_accumulation_on_a_mesh_equals_one_device(on_mesh, one_device, num_micro):
    (grads, total, _), _ = one_device
    mesh_grads, mesh_total, _ = on_mesh(num_micro, fsdp=2, expert=2).gradient()
    assert relative(mesh_total, total) < 2e-6
    far = {name: relative(leaf, leaves(grads)[name]) for name, leaf in leaves(mesh_grads).items()}
    assert max(far.values()) < 1e-5, max(far.items(), key=lambda item: item[1])


def test_parameters_are_born_sharded(on_mesh):
    state = on_mesh(data=2, fsdp=2, expert=2).parts.create_state(0)
    up = leaves(state.params)["layers/moe/experts/up"]
    assert up.addressable_shards[0].data.size * 4 == up.size  # experts over `expert`, width over `fsdp`
    moments = [leaf for name, leaf in leaves(state.opt_state).items() if name.endswith("nu/layers/moe/experts/up")]
    assert [leaf.sharding for leaf in moments] == [up.sharding]
