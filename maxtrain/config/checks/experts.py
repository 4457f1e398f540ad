"""Experts on the mesh: over how many ranks they are divided, and how rows meet them."""

from collections.abc import Iterator, Mapping
from math import prod

from maxtrain.config.checks.numbers import divisors, say_either
from maxtrain.config.checks.unused import check_unused
from maxtrain.config.schema import Config, MeshConfig, MoeConfig
from maxtrain.config.violations import Violation

_BUFFERED = ("auto", "all_to_all", "ragged")
"""Exchanges with buffers of a bounded size."""
_OF_BUFFERS = ("exchange_factor", "exchange_overflow")
_DEFAULT_FACTOR = MeshConfig.model_fields["exchange_factor"].default


def check_experts(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Divisibility of experts and groups by the ranks that hold them; keys of the exchange without effect."""
    mesh, moe = config.mesh, config.model.moe
    if moe is None:
        yield from check_unused(mesh, "mesh", ("expert_fold", "exchange", *_OF_BUFFERS), ", for model.moe is null")
        return
    if mesh.exchange not in _BUFFERED:
        yield from check_unused(mesh, "mesh", _OF_BUFFERS, f", for mesh.exchange = {mesh.exchange} has no buffers")
    doubled = sorted({axis for axis in mesh.expert_fold if mesh.expert_fold.count(axis) > 1})
    if doubled:
        yield Violation("mesh.expert_fold", _list(mesh), f"names {doubled[0]} twice", "name each axis once")
        return
    divided = {axis: sizes[axis] if sizes else max(getattr(mesh, axis), 1) for axis in mesh.expert_axes}
    yield from _check_division(mesh, moe, divided)
    # An axis of -1 takes the devices that there are: the same config may have several ranks elsewhere.
    if all(getattr(mesh, axis) == 1 for axis in mesh.expert_axes):
        why = f", for the experts are on one rank ({' and '.join(f'mesh.{axis} is 1' for axis in mesh.expert_axes)})"
        keys = ("expert_fold", "exchange", *(_OF_BUFFERS if mesh.exchange in _BUFFERED else ()))
        yield from check_unused(mesh, "mesh", keys, why)
    elif sizes:
        yield from _check_factor(mesh, prod(divided.values()))


def _check_factor(mesh: MeshConfig, ranks: int) -> Iterator[Violation]:
    """A buffer holds at most what all ranks together could send."""
    if mesh.exchange in _BUFFERED and mesh.exchange_factor > max(ranks, _DEFAULT_FACTOR):
        limit = f"must be at most the {ranks} ranks that the experts are divided over, where a buffer holds all rows"
        yield Violation("mesh.exchange_factor", mesh.exchange_factor, limit, f"set {ranks} or less")


def _list(mesh: MeshConfig) -> str:
    return f"[{', '.join(mesh.expert_fold)}]"


def _check_division(mesh: MeshConfig, moe: MoeConfig, divided: Mapping[str, int]) -> Iterator[Violation]:
    """Every rank holds as many experts, and groups do not straddle ranks."""
    ranks, experts, groups = prod(divided.values()), moe.num_experts, moe.num_groups
    shape = " × ".join(f"{axis} {size}" for axis, size in divided.items())
    path, value = ("mesh.expert_fold", _list(mesh)) if mesh.expert_fold else ("mesh.expert", ranks)
    by = f"divides the experts over {shape} = {ranks} ranks, which " if mesh.expert_fold else ""
    if experts % ranks:
        cure = f"set mesh.expert to {say_either(divisors(experts)[-6:])}, or change model.moe.num_experts"
        if mesh.expert_fold:
            cure = f"fold fewer axes, or let the ranks be {say_either(divisors(experts)[-6:])}"
        yield Violation(path, value, f"{by}must divide model.moe.num_experts = {experts:,}", cure)
    elif groups % ranks and ranks % groups:
        groups_used = range(moe.top_groups, experts + 1)
        fitting = [
            near for near in divisors(experts) if near in groups_used and (near % ranks == 0 or ranks % near == 0)
        ]
        limit = f"{by}must divide model.moe.num_groups = {groups:,} or be a multiple of it, or a token that uses "
        limit += f"{moe.top_groups} groups would travel to more ranks than they need"
        yield Violation(path, value, limit, f"set model.moe.num_groups to {say_either(fitting[-6:])}, or other ranks")
