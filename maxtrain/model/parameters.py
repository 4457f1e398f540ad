"""The one parameter table: derived from the modules' annotations, it feeds init, sharding, counting, checkpoints."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtrain.core.random_bits import Key, fold, key_words, truncated_normal

Params = dict[str, Any]
"""Nested dicts of arrays."""

_TRUNCATION = 3.0
# Standard deviation of the unit normal cut at ±3: dividing by it gives the deviation that was asked for.
_TRUNCATED_STD = math.sqrt(
    1
    - 2 * _TRUNCATION * math.exp(-(_TRUNCATION**2) / 2) / math.sqrt(2 * math.pi) / math.erf(_TRUNCATION / math.sqrt(2))
)


class ParameterSpec(NamedTuple):
    """One leaf of the parameters."""

    path: str
    """Keys joined by '/', such as `layers/moe/attention/query`."""
    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]
    """Logical axis of each dimension."""
    init: Literal["normal", "ones"]
    std: float
    """Standard deviation of the truncated normal; 0 for ones."""
    num_batch_dims: int
    """Leading dimensions that only enumerate tensors (layers, experts)."""
    num_input_dims: int
    """Dimensions after them that a product contracts; the rest are outputs. 0 for a vector."""

    def stored_in(self, dtype: jnp.dtype) -> "ParameterSpec":
        """This leaf in another format, where it is a matrix of a layer; tables, vectors and the router stay float32."""
        held = self.num_input_dims == 0 or "router" in self.axes or not _is_stacked(self)
        return self if held else self._replace(dtype=dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def parameter(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    *,
    std: float | None = None,
    num_batch_dims: int = 0,
    num_input_dims: int = 0,
) -> nnx.Param:
    """Declare a float32 parameter of one layer without allocating it.

    Args:
        shape: shape in one layer.
        axes: logical axis of each dimension.
        std: deviation of the truncated normal it starts from; None for ones.
        num_batch_dims: leading dimensions that only enumerate tensors.
        num_input_dims: dimensions after them that a product contracts.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {shape} and axes {axes} differ in length")
    return nnx.Param(
        jax.ShapeDtypeStruct(shape, jnp.float32),
        axes=axes,
        std=std,
        num_batch_dims=num_batch_dims,
        num_input_dims=num_input_dims,
    )


STACK_AXES = ("layers", "leading_layers")
"""Logical axes of a stack's first dimension: of layers that pipeline stages divide, and of those before them."""


def specs_of(
    state: nnx.State, prefix: str, stack_axis: str | None = None, num_layers: int | None = None
) -> list[ParameterSpec]:
    """Table rows of a module's abstract state, stacked over `num_layers` along one of STACK_AXES unless it is None."""
    specs = []
    for keys, variable in nnx.to_flat_state(state):
        meta = variable.get_metadata()
        abstract = variable.get_value()
        stack = () if num_layers is None else (num_layers,)
        specs.append(
            ParameterSpec(
                path="/".join((prefix, *map(str, keys))),
                shape=stack + abstract.shape,
                dtype=jnp.dtype(abstract.dtype),
                axes=((stack_axis,) if stack else ()) + meta["axes"],
                init="ones" if meta["std"] is None else "normal",
                std=meta["std"] or 0.0,
                num_batch_dims=len(stack) + meta["num_batch_dims"],
                num_input_dims=meta["num_input_dims"],
            )
        )
    return specs


def to_tree(leaves: Iterable[tuple[str, Any]]) -> Params:
    """Nested dicts from '/'-joined paths and their leaves."""
    tree: Params = {}
    for path, leaf in leaves:
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def init_params(key: jax.Array, table: Sequence[ParameterSpec]) -> Params:
    """Initial parameters: a leaf's bits are a function of (key, path, layer), whatever the other leaves or the mesh.

    A layer's slice keeps its bits when layers are added after it.
    """
    names = [int.from_bytes(hashlib.sha256(spec.path.encode()).digest()[:4], "little") for spec in table]
    most = max((spec.shape[0] for spec in table if _is_stacked(spec)), default=1)
    # All keys in two vectors: every draw of single keys would be compiled anew.
    leaf_keys = fold(key_words(key), np.asarray(names, np.uint32))
    layer_keys = jax.vmap(lambda leaf_key: fold(leaf_key, np.arange(most, dtype=np.uint32)))(leaf_keys)
    tree = []
    for number, spec in enumerate(table):
        first, second = (
            (words[number, : spec.shape[0]] for words in layer_keys)
            if _is_stacked(spec)
            else (words[number] for words in leaf_keys)
        )
        tree.append((spec.path, _init_leaf(spec, (first, second))))
    return to_tree(tree)


def _is_stacked(spec: ParameterSpec) -> bool:
    return spec.axes[:1] != () and spec.axes[0] in STACK_AXES


def _init_leaf(spec: ParameterSpec, key: Key) -> jax.Array:
    """Initial value of a leaf; the key's words are [layers] where it is stacked."""
    if spec.init == "ones":
        return jnp.ones(spec.shape, spec.dtype)
    draw = partial(truncated_normal, bound=_TRUNCATION, shape=spec.shape[1:] if _is_stacked(spec) else spec.shape)
    value = spec.std / _TRUNCATED_STD * (jax.vmap(draw)(key) if _is_stacked(spec) else draw(key))
    return value.astype(spec.dtype)
