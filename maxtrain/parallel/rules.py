"""Which mesh axes a tensor's logical dimensions are divided over: one table for parameters, one for activations."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtrain.config.schema import BATCH_AXES

MeshAxes = str | tuple[str, ...] | None
Rules = Mapping[str, MeshAxes]

PARAMETER_RULES: Rules = MappingProxyType(
    {
        "layers": "pipeline",
        "leading_layers": None,
        "vocab": "tensor",
        "embed": "fsdp",
        "heads": "tensor",
        "kv_heads": "tensor",
        "head_dim": None,
        "mlp": "tensor",
        "expert": "expert",
        "norm": None,
        "router": None,
    }
)
"""How parameters and optimizer state are stored."""

ACTIVATION_RULES: Rules = MappingProxyType(
    {
        "batch": BATCH_AXES,
        "sequence": "context",
        "residual_sequence": ("context", "tensor"),
        "embed": None,
        "heads": "tensor",
        "kv_heads": "tensor",
        "head_dim": None,
        "mlp": "tensor",
        "vocab": "tensor",
        "expert": None,
        "router": None,
    }
)
"""How activations, and weights gathered for use, lie on the mesh."""


def parameter_rules(axes: Sequence[str | None], expert_axes: Sequence[str] = ("expert",), zero: int = 3) -> Rules:
    """Rules of one parameter: a mesh axis that divides the experts divides nothing else of their tensors.

    Args:
        axes: its logical axes.
        expert_axes: mesh axes over which the experts are divided.
        zero: as mesh.zero: under 3 parameters are stored whole along `fsdp`.
    """
    stored = PARAMETER_RULES if zero == 3 else MappingProxyType({**PARAMETER_RULES, "embed": None})
    if "expert" not in axes:
        return stored
    rules = {name: _without(entry, expert_axes) for name, entry in stored.items()}
    return MappingProxyType(rules | {"expert": _entry(expert_axes)})


def _without(entry: MeshAxes, taken: Sequence[str]) -> MeshAxes:
    names = (entry,) if isinstance(entry, str) else entry or ()
    return _entry([name for name in names if name not in taken])


def _entry(names: Sequence[str]) -> MeshAxes:
    return tuple(names) if len(names) > 1 else next(iter(names), None)


def to_partition_spec(axes: Sequence[str | None], rules: Rules) -> PartitionSpec:
    """Map one tensor's logical axes to mesh axes.

    Args:
        axes: a logical name for each dimension, or None for a dimension that is never divided.
        rules: one of the tables above.

    Raises:
        ValueError: a name is not in the table, or a mesh axis would serve the tensor twice.
    """
    unknown = [axis for axis in axes if axis is not None and axis not in rules]
    if unknown:
        raise ValueError(f"{tuple(axes)} has no rule for {unknown[0]!r}; known are {', '.join(sorted(rules))}")
    entries = [None if axis is None else rules[axis] for axis in axes]
    owners: dict[str, str | None] = {}
    for axis, entry in zip(axes, entries, strict=True):
        for name in (entry,) if isinstance(entry, str) else entry or ():
            if name in owners:
                raise ValueError(f"{tuple(axes)} would use mesh axis {name!r} for both {owners[name]!r} and {axis!r}")
            owners[name] = axis
    return PartitionSpec(*entries)


def constrain(x: jax.Array, axes: Sequence[str | None], mesh: Mesh) -> jax.Array:
    """Lay an activation, or a weight gathered for use, out over the mesh by its logical axes."""
    if mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, to_partition_spec(axes, ACTIVATION_RULES)))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def shard_gradient(weight: jax.Array, axes: tuple[str | None, ...], mesh: Mesh) -> jax.Array:
    """The weight itself; its gradient is divided over the mesh like the optimizer's state as soon as it is formed."""
    return weight


def _shard_gradient_forward(weight: jax.Array, axes: tuple[str | None, ...], mesh: Mesh) -> tuple[jax.Array, None]:
    return weight, None


def _shard_gradient_backward(axes: tuple[str | None, ...], mesh: Mesh, _: None, grad: jax.Array) -> tuple[jax.Array]:
    sharding = NamedSharding(mesh, to_partition_spec(axes, PARAMETER_RULES))
    return (jax.lax.with_sharding_constraint(grad, sharding),)


shard_gradient.defvjp(_shard_gradient_forward, _shard_gradient_backward)
