from types import SimpleNamespace

import jax
import numpy as np
import pytest

from maxtrain.config.schema import MESH_AXES, MeshConfig
from maxtrain.core.errors import UserError
from maxtrain.parallel.device_order import arrange, describe_order, node_of, nodes_spanned, split_axes
from maxtrain.parallel.mesh import make_mesh


def sizes(**axes):
    return {axis: axes.get(axis, 1) for axis in MESH_AXES}


def cluster(num_nodes, each, platform="gpu", slices=True, processes_per_node=1):
    """Devices as JAX lists them: by process."""
    return [
        SimpleNamespace(
            id=number,
            platform=platform,
            device_kind=platform,
            process_index=number * processes_per_node // each,
            slice_index=number // each if slices else None,
        )
        for number in range(num_nodes * each)
    ]


@pytest.mark.parametrize(
    ("axes", "nodes", "across"),
    [
        ({"data": 2, "tensor": 8}, 2, {"data": 2}),
        ({"data": 8, "fsdp": 8}, 4, {"data": 4}),
        ({"data": 2, "fsdp": 8, "pipeline": 4}, 8, {"data": 2, "pipeline": 4}),
        ({"fsdp": 4, "expert": 8}, 8, {"fsdp": 4, "expert": 2}),
        ({"data": 3, "fsdp": 2, "tensor": 4}, 2, {"fsdp": 2}),
        ({"tensor": 16}, 2, {"tensor": 2}),
        ({"data": 6, "context": 2}, 4, {"data": 2, "context": 2}),
    ],
)
def test_slow_axes_span_the_nodes(axes, nodes, across):
    found = split_axes(sizes(**axes), nodes)
    assert {axis: count for axis, count in found.items() if count > 1} == across
    each = int(np.prod(list(axes.values()))) // nodes
    placed = arrange(cluster(nodes, each), sizes(**axes))
    assert placed.shape == tuple(sizes(**axes).values())
    assert sorted(device.id for device in placed.flat) == list(range(nodes * each))
    assert {axis: n for axis, n in nodes_spanned(placed, MESH_AXES).items() if n > 1} == across


def test_each_tensor_group_stays_on_its_node():
    placed = arrange(cluster(4, 8, processes_per_node=8), sizes(data=2, fsdp=4, tensor=4))
    nodes = np.vectorize(node_of)(placed).reshape(-1, 4)
    assert (nodes == nodes[:, :1]).all()


def test_processes_are_nodes_where_there_are_no_slices():
    placed = arrange(cluster(2, 4, "cpu", slices=False), sizes(data=2, tensor=4))
    assert [device.process_index for device in placed.flat] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_one_node_keeps_the_order_of_its_devices():
    placed = arrange(cluster(1, 8), sizes(fsdp=4, tensor=2))
    assert [device.id for device in placed.flat] == list(range(8))


def test_unequal_nodes_are_refused():
    with pytest.raises(UserError, match=r"different numbers of devices \(4 on node 0, 2 on node 1\)"):
        arrange(cluster(2, 4)[:6], sizes(data=6))


def test_the_order_in_words():
    assert describe_order(make_mesh(MeshConfig(fsdp=4, tensor=2))) == "1 node of 8 device(s): fsdp 4, tensor 2"
    fake = SimpleNamespace(devices=arrange(cluster(2, 8), sizes(data=2, fsdp=4, tensor=2)), axis_names=MESH_AXES)
    fake.shape, fake.size = sizes(data=2, fsdp=4, tensor=2), 16
    assert describe_order(fake) == "2 nodes of 8 device(s): across them data 2; inside fsdp 4, tensor 2"
    fake.devices, fake.shape = arrange(cluster(2, 8), sizes(tensor=16)), sizes(tensor=16)
    assert describe_order(fake) == "2 nodes of 8 device(s): across them tensor 2; inside tensor 8"


def test_real_devices_have_a_node():
    assert {node_of(device) for device in jax.devices()} == {0}
