"""The mesh: sizes of the axes, and what each must divide."""

from collections.abc import Iterator
from math import gcd, prod

from maxtrain.config.checks.numbers import divisors, say_either
from maxtrain.config.checks.unused import check_unused
from maxtrain.config.schema import MESH_AXES, Config, MeshConfig, ModelConfig
from maxtrain.config.violations import Violation


def axis_sizes(mesh: MeshConfig, num_devices: int | None = None) -> dict[str, int] | None:
    """Size of every mesh axis, an axis of -1 resolved.

    Args:
        mesh: the declared sizes.
        num_devices: devices of the run in all; None takes mesh.devices.

    Returns:
        Sizes in the order of MESH_AXES, or None where an axis of -1 cannot be resolved.
    """
    sizes = {axis: getattr(mesh, axis) for axis in MESH_AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    if not free:
        return sizes if min(sizes.values()) > 0 else None
    devices = num_devices or mesh.devices
    fixed = prod(size for size in sizes.values() if size != -1)
    if devices is None or len(free) > 1 or fixed <= 0 or devices % fixed:
        return None
    return sizes | {free[0]: devices // fixed}


def check_axes(mesh: MeshConfig, num_devices: int | None = None) -> Iterator[Violation]:
    """What the sizes of the axes break by themselves, whatever the model.

    Args:
        mesh: the declared sizes.
        num_devices: devices of the run in all; None takes mesh.devices.
    """
    sizes = {axis: getattr(mesh, axis) for axis in MESH_AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    zero = [axis for axis, size in sizes.items() if size == 0]
    for axis in zero:
        yield Violation(f"mesh.{axis}", 0, "an axis has a size of at least 1", "set 1 for an axis that is not used")
    for axis in free[1:]:
        yield Violation(
            f"mesh.{axis}", -1, f"only one axis may be -1, and mesh.{free[0]} is", "give this axis its size"
        )
    if mesh.devices is not None and num_devices is not None and mesh.devices != num_devices:
        yield Violation(
            "mesh.devices", mesh.devices, f"the run has {num_devices} devices", f"set {num_devices}, or null"
        )
        return
    devices = num_devices or mesh.devices
    if devices is None or zero or len(free) > 1:
        return
    product = prod(size for size in sizes.values() if size != -1)
    shape = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "every axis 1"
    if free and devices % product:
        near = [divisor for divisor in divisors(devices) if divisor <= product][-1]
        yield Violation(
            f"mesh.{free[0]}",
            -1,
            f"the other axes ({shape}) are {product} devices together, which does not divide {devices}",
            f"make their product a divisor of {devices}, such as {near}",
        )
    elif not free and product != devices:
        path, value = ("mesh.devices", devices) if mesh.devices else ("mesh", f"{devices} devices")
        yield Violation(
            path,
            value,
            f"the axes ({shape}) multiply to {product}",
            f"set mesh.data or mesh.fsdp to -1 (what is left), or mesh.devices to {product}",
        )


def _tensor_sizes(model: ModelConfig, expert_axes: tuple[str, ...]) -> dict[str, int]:
    """What mesh.tensor divides, by key."""
    sizes = {
        "model.num_heads": model.num_heads,
        "model.num_kv_heads": model.kv_heads,
        "model.vocab_size": model.vocab_size,
    }
    moe = model.moe
    if moe is None or moe.first_dense > 0:
        sizes["model.d_ff"] = model.d_ff
    if moe is not None:
        if "tensor" not in expert_axes:
            sizes["model.moe.d_expert"] = moe.d_expert
        if moe.num_shared:
            sizes["model.moe.d_shared × num_shared"] = moe.num_shared * (moe.d_shared or moe.d_expert)
    return sizes


def _divides(axis: str, size: int, sizes: dict[str, int]) -> Iterator[Violation]:
    common = gcd(*sizes.values())
    for key, value in sizes.items():
        if value % size:
            yield Violation(
                f"mesh.{axis}",
                size,
                f"must divide {key} = {value:,}",
                f"set mesh.{axis} to {say_either(divisors(common)[-6:])}, or change {key}",
            )


def check_mesh(config: Config, num_devices: int | None) -> Iterator[Violation]:
    """Sizes, and divisibility of the model by the mesh."""
    mesh, model = config.mesh, config.model
    yield from check_axes(mesh, num_devices)
    sizes = axis_sizes(mesh, num_devices) or {axis: max(getattr(mesh, axis), 1) for axis in MESH_AXES}
    yield from _divides("tensor", sizes["tensor"], _tensor_sizes(model, mesh.expert_axes))
    yield from _divides("fsdp", sizes["fsdp"], {"model.d_model": model.d_model})
    if mesh.fsdp == 1:
        yield from check_unused(mesh, "mesh", ("zero",), " with mesh.fsdp = 1", "give mesh.fsdp")
    if model.moe is None and sizes["expert"] > 1:
        yield Violation(
            "mesh.expert", sizes["expert"], "the model has no experts (model.moe is null)", "use mesh.data or mesh.fsdp"
        )
