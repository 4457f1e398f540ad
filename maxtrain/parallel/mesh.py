"""The device mesh, and which rows of a batch a process holds."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtrain.config.checks.mesh import axis_sizes, check_axes
from maxtrain.config.schema import BATCH_AXES, MeshConfig
from maxtrain.config.violations import ConfigError
from maxtrain.core.errors import UserError
from maxtrain.parallel.device_order import arrange
from maxtrain.parallel.rules import ACTIVATION_RULES, to_partition_spec


def resolve_sizes(config: MeshConfig, num_devices: int) -> dict[str, int]:
    """Sizes of all mesh axes for so many devices, -1 replaced by what is left.

    Raises:
        ConfigError: the sizes do not multiply to the number of devices, more than one is -1, or one is 0.
    """
    violations = list(check_axes(config, num_devices))
    if violations:
        raise ConfigError("mesh", violations)
    sizes = axis_sizes(config, num_devices)
    assert sizes is not None
    return sizes


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a config over devices, by default all of the backend; all six axes present, all of type Auto.

    Slow axes lie across nodes and fast ones inside (`device_order`).

    With `mesh.devices` under what the backend has, a single process uses the first so many.

    Raises:
        UserError: sizes and devices do not fit, or nodes have different numbers of devices.
    """
    devices = jax.devices() if devices is None else devices
    wanted = config.devices or len(devices)
    if wanted > len(devices):
        raise UserError(f"mesh.devices = {wanted} but the backend has {len(devices)}: lower it or add devices")
    if wanted < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"mesh.devices = {wanted} but {jax.process_count()} processes have {len(devices)}: they must all be used"
        )
    sizes = resolve_sizes(config, wanted)
    return Mesh(arrange(devices[:wanted], sizes), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def local_rows(mesh: Mesh, num_rows: int) -> np.ndarray:
    """Positions of a batch's rows that this process must supply, ascending, int64.

    The rows are divided over the batch axes; a row may belong to several processes where another axis spans them.

    Raises:
        UserError: the batch axes do not divide the rows.
    """
    ranks = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if num_rows % ranks:
        raise UserError(f"{num_rows} rows do not divide over {ranks} data-parallel ranks: use a multiple of {ranks}")
    sharding = NamedSharding(mesh, to_partition_spec(("batch",), ACTIVATION_RULES))
    return _local_positions(sharding, (num_rows,))[0]


def local_columns(mesh: Mesh, num_tokens: int) -> np.ndarray:
    """Positions along the sequence, which the context axis divides, that this process must supply; ascending, int64."""
    sharding = NamedSharding(mesh, to_partition_spec(("sequence",), ACTIVATION_RULES))
    return _local_positions(sharding, (num_tokens,))[0]


def make_global(mesh: Mesh, spec: PartitionSpec, local: np.ndarray, global_shape: tuple[int, ...]) -> jax.Array:
    """A global array from each process's part of it.

    Args:
        mesh: the device mesh.
        spec: how the array is divided.
        local: what this process holds: along each dimension, the positions that any of its devices needs, ascending
            (`local_rows`, `local_columns`).
        global_shape: shape of the whole.

    Raises:
        ValueError: local does not have the shape of this process's part.
    """
    sharding = NamedSharding(mesh, spec)
    positions = _local_positions(sharding, global_shape)
    expected = tuple(len(p) for p in positions)
    if local.shape != expected:
        raise ValueError(f"this process holds {expected} of an array of shape {global_shape}, not {local.shape}")

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        found = tuple(
            slice(*np.searchsorted(held, np.array(piece.indices(size)[:2])))
            for held, piece, size in zip(positions, index, global_shape, strict=True)
        )
        return local[found]

    return jax.make_array_from_callback(global_shape, sharding, part)


def _local_positions(sharding: NamedSharding, shape: tuple[int, ...]) -> list[np.ndarray]:
    indices = sharding.addressable_devices_indices_map(shape).values()
    positions = []
    for dim, size in enumerate(shape):
        needed = np.zeros(size, bool)
        for index in indices:
            assert index is not None
            needed[index[dim]] = True
        positions.append(np.flatnonzero(needed))
    return positions
