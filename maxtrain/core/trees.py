"""Pytrees of arrays by the paths of their leaves. Imports JAX, as only `random_bits` does beside it in `core`."""

from collections.abc import Mapping
from typing import Any

import jax


def leaf_paths(tree: Any) -> list[tuple[str, Any]]:
    """Name every leaf by the keys on its way, joined by `/`; None is no leaf.

    Dict keys, sequence indices and attribute names look the same, so `state.params["w"]` and
    `{"params": {"w": …}}` share the path `params/w`.

    Returns:
        (path, leaf) pairs in JAX's flattening order.

    Raises:
        ValueError: two leaves have the same path.
    """
    pairs = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    seen: set[str] = set()
    for path, _ in pairs:
        if path in seen:
            raise ValueError(f"two leaves of the tree have the path {path!r}; rename one")
        seen.add(path)
    return pairs


def from_paths(like: Any, leaves: Mapping[str, Any]) -> Any:
    """Build a tree of the structure of `like` from leaves by path.

    Raises:
        KeyError: a leaf of `like` is missing in `leaves`.
    """
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[path] for path, _ in leaf_paths(like)])


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key array (or the abstract form of one)."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def num_bytes(tree: Any) -> int:
    """Bytes of all leaves of a tree of arrays, abstract or not; replicas are counted once."""
    return sum(leaf.size * leaf.dtype.itemsize for _, leaf in leaf_paths(tree))
