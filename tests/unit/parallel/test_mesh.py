import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from maxtrain.config.schema import BATCH_AXES, MESH_AXES, MeshConfig
from maxtrain.core.errors import UserError
from maxtrain.parallel.mesh import local_rows, make_global, make_mesh, resolve_sizes


def sizes(num_devices=8, **axes):
    return resolve_sizes(MeshConfig(**axes), num_devices)


def test_all_axes_are_there_and_auto():
    mesh = make_mesh(MeshConfig(data=2, fsdp=-1))
    assert mesh.axis_names == MESH_AXES
    assert dict(mesh.shape) == {"data": 2, "fsdp": 4, "pipeline": 1, "expert": 1, "context": 1, "tensor": 1}
    assert set(mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize("axis", ["data", "fsdp", "expert", "context", "tensor"])
def test_what_is_left(axis):
    assert sizes(**{axis: -1})[axis] == 8
    others = {"tensor": 2} if axis != "tensor" else {"data": 2}
    assert sizes(**{axis: -1}, **others)[axis] == 4


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"data": 3}, r"mesh = 8 devices: the axes \(data 3\) multiply to 3; set mesh.data or mesh.fsdp to -1"),
        ({"data": 4, "tensor": 4}, r"the axes \(data 4 × tensor 4\) multiply to 16; .* or mesh.devices to 16"),
        ({}, r"mesh = 8 devices: the axes \(every axis 1\) multiply to 1"),
        ({"data": -1, "tensor": 3}, r"mesh.data = -1: the other axes \(tensor 3\) are 3 .* does not divide 8"),
        ({"data": -1, "fsdp": -1}, r"mesh.fsdp = -1: only one axis may be -1, and mesh.data is"),
        ({"tensor": 0}, r"mesh.tensor = 0: an axis has a size of at least 1"),
    ],
)
def test_sizes_that_do_not_fit(axes, text):
    with pytest.raises(UserError, match=text) as caught:
        sizes(**axes)
    assert "\n" not in str(caught.value)


def test_fewer_devices_than_there_are_and_more():
    assert make_mesh(MeshConfig(devices=2, fsdp=2)).size == 2
    with pytest.raises(UserError, match=r"mesh.devices = 16 but the backend has 8"):
        make_mesh(MeshConfig(devices=16, data=16))


def test_one_process_holds_every_row():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, expert=2))
    np.testing.assert_array_equal(local_rows(mesh, 16), np.arange(16))
    with pytest.raises(UserError, match=r"12 rows do not divide over 8 data-parallel ranks: use a multiple of 8"):
        local_rows(mesh, 12)


def test_a_global_array_lies_where_its_spec_says():
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    local = np.arange(3 * 8 * 2).reshape(3, 8, 2)
    whole = make_global(mesh, PartitionSpec(None, BATCH_AXES), local, (3, 8, 2))
    np.testing.assert_array_equal(whole, local)
    assert {shard.data.shape for shard in whole.addressable_shards} == {(3, 2, 2)}
    assert isinstance(whole, jax.Array)
    with pytest.raises(ValueError, match=r"holds \(3, 8, 2\) of an array of shape \(3, 8, 2\), not \(3, 4, 2\)"):
        make_global(mesh, PartitionSpec(None, BATCH_AXES), local[:, :4], (3, 8, 2))
