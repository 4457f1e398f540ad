"""Muon (Jordan 2024): momentum made orthogonal by Newton–Schulz iterations, whole matrices divided over the mesh.

M matrices (layers, and experts of a layer)  I inputs  O outputs
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's polynomial: steep at 0, it brings singular values near 1 (0.7 to 1.2), not to it."""
_EPS = 1e-8
_RMS = 0.2
"""Root mean square of AdamW's typical update, which Muon's is scaled to (Liu 2025, Moonlight)."""
STACK_AXES = ("layers", "leading_layers")
"""Axes that enumerate layers."""


class Matrices(NamedTuple):
    """How the dimensions of a stacked weight make matrices: stacking ones first, then inputs, then outputs."""

    num_stacking: int
    num_inputs: int

    @classmethod
    def of(cls, axes: Sequence[str | None]) -> "Matrices":
        """From the logical axes: layers and experts enumerate, `embed` is wholly input or wholly output."""
        stacking = sum(name in (*STACK_AXES, "expert") for name in axes)
        return cls(stacking, 1 if axes[stacking] == "embed" else len(axes) - stacking - 1)

    def flatten(self, x: jax.Array) -> jax.Array:
        """The weight as [M, I, O]."""
        cut = self.num_stacking + self.num_inputs
        shape = x.shape[: self.num_stacking], x.shape[self.num_stacking : cut], x.shape[cut:]
        return x.reshape(tuple(map(math.prod, shape)))


def newton_schulz(x_MIO: jax.Array, iterations: int) -> jax.Array:
    """U Vᵀ of every matrix U S Vᵀ, nearly (Jordan 2024); a zero matrix stays zero. float32, with its default products.

    Args:
        x_MIO: the matrices.
        iterations: applications of the polynomial.
    """
    tall = x_MIO.shape[1] > x_MIO.shape[2]  # the Gram matrix is that of the shorter side
    x = x_MIO.mT if tall else x_MIO
    x = x / (jnp.sqrt(jnp.sum(x * x, axis=(1, 2), keepdims=True)) + _EPS)
    a, b, c = _QUINTIC

    def step(_: int, x: jax.Array) -> jax.Array:
        gram = x @ x.mT
        return a * x + (b * gram + c * gram @ gram) @ x

    x = lax.fori_loop(0, iterations, step, x)
    return x.mT if tall else x


def orthogonalise(x: jax.Array, matrices: Matrices, sharding: Sharding | None, iterations: int) -> jax.Array:
    """Newton–Schulz on every matrix of a stacked weight, scaled to the RMS of AdamW's update.

    On a mesh each device receives whole matrices, its share of the stack rounded up, by all-to-all over the axes that
    divide a matrix; axes that hold copies divide the matrices further as far as there are enough of them. So no device
    ever gathers the stack, a matrix is worked out on one device, and hardly one is worked out twice.

    Args:
        x: float32 [stacking ..., inputs ..., outputs ...].
        matrices: which dimensions are which.
        sharding: where x lies; None or that of a single device for here.
        iterations: of Newton–Schulz.
    """
    if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
        assert isinstance(sharding.mesh, Mesh)
        spec = PartitionSpec(*sharding.spec, *(None,) * (x.ndim - len(sharding.spec)))
        local = partial(_on_mesh, matrices=matrices, spec=spec, mesh=sharding.mesh, iterations=iterations)
        y = jax.shard_map(local, mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)
    else:
        y = newton_schulz(matrices.flatten(x), iterations).reshape(x.shape)
    return y * (_RMS * max(matrices.flatten(x).shape[1:]) ** 0.5)


def _names(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _on_mesh(x: jax.Array, *, matrices: Matrices, spec: PartitionSpec, mesh: Mesh, iterations: int) -> jax.Array:
    """This device's block of x -> the same block of the result."""
    stacking = matrices.num_stacking
    entries = [tuple(name for name in _names(entry) if mesh.shape[name] > 1) for entry in spec]
    divided = [(dim + 1 - stacking, names) for dim, names in enumerate(entries) if dim >= stacking and names]
    block = x.reshape(-1, *x.shape[stacking:])
    whole = _pad(block, math.prod(mesh.shape[name] for _, names in divided for name in names))
    for dim, names in divided:
        whole = lax.all_to_all(whole, names, split_axis=0, concat_axis=dim, tiled=True)
    used = {name for names in entries for name in names}
    y = _spread(
        whole,
        [name for name, size in mesh.shape.items() if name not in used and size > 1],
        mesh,
        lambda part: newton_schulz(Matrices(1, matrices.num_inputs).flatten(part), iterations).reshape(part.shape),
    )
    for dim, names in reversed(divided):
        y = lax.all_to_all(y, names, split_axis=dim, concat_axis=0, tiled=True)
    return y[: len(block)].reshape(x.shape)


def _spread(x: jax.Array, copies: list[str], mesh: Mesh, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """function(x) where x [M, ...] is the same along some axes: each of them does a part, while parts are left."""
    axes: list[str] = []
    for name in copies:
        if math.prod(mesh.shape[axis] for axis in (*axes, name)) <= len(x):
            axes.append(name)
    if not axes:
        return function(x)
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    padded = _pad(x, ranks)
    share = len(padded) // ranks
    part = lax.dynamic_slice_in_dim(padded, lax.axis_index(tuple(axes)) * share, share)
    return lax.all_gather(function(part), tuple(axes), axis=0, tiled=True)[: len(x)]


def _pad(x: jax.Array, unit: int) -> jax.Array:
    """The stack with zero matrices added, up to a multiple."""
    return jnp.pad(x, ((0, -len(x) % unit), *((0, 0),) * (x.ndim - 1)))
