"""The order of devices on the mesh: slow axes across nodes, fast ones inside.

A node is what fast links connect: a slice of TPUs, the GPUs of one machine (JAX numbers both as slices), and on CPU one
process.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils

from maxtrain.core.errors import UserError

SLOW_FIRST = ("data", "pipeline", "fsdp", "expert", "context", "tensor")
"""Which axes are laid across nodes first: what they exchange in a step grows from left to right."""


def node_of(device: Any) -> int:
    """Number of the node that a device stands in."""
    return device.slice_index if _has_slices(device) else device.process_index


def _has_slices(device: Any) -> bool:
    return getattr(device, "slice_index", None) is not None


def split_axes(sizes: Mapping[str, int], num_nodes: int) -> dict[str, int]:
    """How many nodes each axis spans, so that the slowest axes span all they can.

    Args:
        sizes: size of every axis; num_nodes divides their product.
        num_nodes: nodes of the mesh.
    """
    across, left = dict.fromkeys(sizes, 1), num_nodes
    for axis in SLOW_FIRST:
        across[axis] = math.gcd(sizes[axis], left)
        left //= across[axis]
    assert left == 1, f"{num_nodes} nodes do not divide {dict(sizes)}"
    return across


def arrange(devices: Sequence[Any], sizes: Mapping[str, int]) -> np.ndarray:
    """The devices as an array with one dimension for each axis.

    Args:
        devices: as many as the sizes multiply to.
        sizes: size of every axis, slowest first.

    Raises:
        UserError: the nodes have different numbers of devices.
    """
    counts = Counter(node_of(device) for device in devices)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{count} on node {node}" for node, count in sorted(counts.items()))
        raise UserError(f"mesh: nodes have different numbers of devices ({each}): start as many on each")
    across = split_axes(sizes, len(counts))
    inside = [size // across[axis] for axis, size in sizes.items()]
    if len(counts) == 1:
        return mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
    return mesh_utils.create_hybrid_device_mesh(
        inside,
        list(across.values()),
        devices,
        process_is_granule=not _has_slices(devices[0]),
        allow_split_physical_axes=True,
    )


def nodes_spanned(devices: np.ndarray, axes: Sequence[str]) -> dict[str, int]:
    """Most nodes that the ranks of one group of each axis stand on: 1 where it stays inside nodes."""
    nodes = np.vectorize(node_of, otypes=[int])(devices)
    spanned = {}
    for dim, axis in enumerate(axes):
        groups = np.moveaxis(nodes, dim, -1).reshape(-1, nodes.shape[dim])
        spanned[axis] = max(len(set(group)) for group in groups.tolist())
    return spanned


def describe_order(mesh: Any) -> str:
    """A mesh's order in words, such as `2 nodes of 8 devices: across them data 2; inside fsdp 4, tensor 2`."""
    spanned = nodes_spanned(mesh.devices, mesh.axis_names)
    num_nodes = len({node_of(device) for device in mesh.devices.flat})
    across = [f"{axis} {count}" for axis, count in spanned.items() if count > 1]
    inside = [f"{axis} {mesh.shape[axis] // count}" for axis, count in spanned.items() if mesh.shape[axis] > count]
    if num_nodes == 1:
        return f"1 node of {mesh.size} device(s): {', '.join(inside) or 'every axis 1'}"
    return (
        f"{num_nodes} nodes of {mesh.size // num_nodes} device(s): across them {', '.join(across)}; "
        f"inside {', '.join(inside) or 'nothing'}"
    )
