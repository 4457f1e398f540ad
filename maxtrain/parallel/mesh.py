"""The device mesh, and which rows of a batch a process holds."""

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtrain.config.schema import BATCH_AXES, MESH_AXES, MeshConfig
from maxtrain.core.errors import UserError

_NOT_YET = {"pipeline": "use fsdp or tensor instead", "context": "use tensor, or shorter sequences, instead"}


def resolve_sizes(config: MeshConfig, num_devices: int) -> dict[str, int]:
    """Sizes of all mesh axes for so many devices, -1 replaced by what is left.

    Raises:
        UserError: the sizes do not multiply to the number of devices, more than one is -1, one is 0, or an axis that
            is not available yet is over 1.
    """
    sizes = {axis: getattr(config, axis) for axis in MESH_AXES}
    for axis, cure in _NOT_YET.items():
        if sizes[axis] not in (1, -1):
            raise UserError(f"mesh.{axis} = {sizes[axis]}: over 1 is not available yet; {cure}")
    if 0 in sizes.values():
        axis = next(axis for axis, size in sizes.items() if size == 0)
        raise UserError(f"mesh.{axis} = 0: should be at least 1, or -1 for what is left of the devices")
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(f"mesh.{free[0]} and mesh.{free[1]} are both -1: only one axis can take what is left")
    fixed = math.prod(size for size in sizes.values() if size > 0)
    text = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size != 1) or "all axes 1"
    if free and num_devices % fixed == 0:
        sizes[free[0]] = num_devices // fixed
        if free[0] in _NOT_YET and sizes[free[0]] > 1:
            raise UserError(f"mesh.{free[0]} = -1 would be {sizes[free[0]]}: over 1 is not available yet")
    elif free or fixed != num_devices:
        raise UserError(f"mesh ({text}) does not fit {num_devices} devices: {_cure(sizes, fixed, num_devices)}")
    return sizes


def _cure(sizes: dict[str, int], fixed: int, num_devices: int) -> str:
    """Name the nearest value of one axis that fits, or say that the device count has to change."""
    cures = []
    for axis, size in sizes.items():
        others = fixed // size if size > 0 else fixed
        if axis in _NOT_YET or size in (-1, 1) or num_devices % others:
            continue
        cures.append(f"mesh.{axis}={num_devices // others}")
    if num_devices % fixed == 0 and -1 not in sizes.values():
        cures.append(f"mesh.data={sizes['data'] * (num_devices // fixed)}")
    below = max(1, num_devices // fixed) * fixed if -1 in sizes.values() else fixed
    cures.append(f"mesh.devices={below}" if below <= num_devices else f"at least {fixed} devices")
    return "use " + " or ".join(dict.fromkeys(cures))


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh of a config over the devices of the backend, all six axes present, all of type Auto.

    With `mesh.devices` under what the backend has, a single process uses the first so many.

    Raises:
        UserError: sizes and devices do not fit.
    """
    devices = jax.devices()
    wanted = config.devices or len(devices)
    if wanted > len(devices):
        raise UserError(f"mesh.devices = {wanted} but the backend has {len(devices)}: lower it or add devices")
    if wanted < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"mesh.devices = {wanted} but {jax.process_count()} processes have {len(devices)}: they must all be used"
        )
    sizes = resolve_sizes(config, wanted)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices[:wanted]
    )


def local_rows(mesh: Mesh, num_rows: int) -> np.ndarray:
    """Positions of a batch's rows that this process must supply, ascending, int64.

    The rows are divided over the batch axes; a row may belong to several processes where another axis spans them.

    Raises:
        UserError: the batch axes do not divide the rows.
    """
    ranks = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if num_rows % ranks:
        raise UserError(f"{num_rows} rows do not divide over {ranks} data-parallel ranks: use a multiple of {ranks}")
    return _local_positions(NamedSharding(mesh, PartitionSpec(BATCH_AXES)), (num_rows,))[0]


def make_global(mesh: Mesh, spec: PartitionSpec, local: np.ndarray, global_shape: tuple[int, ...]) -> jax.Array:
    """A global array from each process's part of it.

    Args:
        mesh: the device mesh.
        spec: how the array is divided.
        local: what this process holds: along each dimension, the positions that any of its devices needs, ascending
            (for rows divided over the batch axes: `local_rows`).
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
