"""Arrays on disk: a flat dictionary of leaves by path, written and read by Orbax (OCDBT, Zarr 3).

Orbax sees plain arrays only: key arrays go as their key data, empty arrays not at all (Orbax refuses them); the leaf
table in the manifest tells what they were. So no container type of the state reaches the disk.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Sharding

from maxtrain.core.errors import CheckpointError
from maxtrain.core.trees import is_key, leaf_paths

_MAX_NAMED = 5
"""Leaves named in one error."""


def handler() -> ocp.PyTreeCheckpointHandler:
    """Orbax's reader and writer; one per use, as it keeps no state between them.

    Weights are noise to a compressor: zstd saves 8 % of the bytes and costs 40 % of the save's CPU time.
    """
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)


def leaf_table(leaves: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Path, shape and dtype of each leaf, as JSON values; a typed key has a dtype such as `key<fry>`."""
    return [{"path": path, "shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in leaves]


def checked_leaves(state: Any) -> list[tuple[str, jax.Array]]:
    """Leaves of a state by path.

    Raises:
        ValueError: a leaf is no JAX array, or two leaves have the same path.
    """
    leaves = leaf_paths(state)
    wrong = [f"{path} ({type(leaf).__name__})" for path, leaf in leaves if not isinstance(leaf, jax.Array)]
    if wrong or not leaves:
        raise ValueError(f"a state holds JAX arrays only, not {_some(wrong) if wrong else 'nothing'}")
    return leaves


def start_write(
    writer: ocp.PyTreeCheckpointHandler, directory: Path, leaves: Sequence[tuple[str, jax.Array]]
) -> list[ocp.future.Future]:
    """Copy leaves to the host and begin to write them; every process must call it.

    The leaves may be donated as soon as this returns.

    Returns:
        Futures of the writing of this process's shards; `finish_write` comes after those of all processes.
    """
    item = {path: jax.random.key_data(leaf) if is_key(leaf) else leaf for path, leaf in leaves if leaf.size}
    if not item:
        return []
    return asyncio.run(writer.async_save(epath.Path(directory), args=ocp.args.PyTreeSave(item=item))) or []


def finish_write(writer: ocp.PyTreeCheckpointHandler, directory: Path) -> None:
    """Merge what all processes wrote; process 0 calls it."""
    writer.finalize(epath.Path(directory))


def check_abstract(abstract: Any, table: Sequence[Mapping[str, Any]], step: int, *, partial: bool) -> None:
    """Hold what is asked for against what a step holds.

    Args:
        abstract: tree of leaves with shape, dtype and sharding.
        table: the step's leaf table.
        step: for the message.
        partial: whether the step may hold more than is asked for.

    Raises:
        CheckpointError: leaves are missing, left over, or of another shape or dtype; they are named.
        ValueError: a leaf has no sharding.
    """
    asked = dict(leaf_paths(abstract))
    bare = [path for path, leaf in asked.items() if getattr(leaf, "sharding", None) is None]
    if bare:
        raise ValueError(f"every leaf to restore needs a sharding; {_some(bare)} has none")
    saved = {entry["path"]: (tuple(entry["shape"]), entry["dtype"]) for entry in table}
    wanted = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in asked.items()}
    missing = [path for path in wanted if path not in saved]
    extra = [path for path in saved if path not in wanted and not partial]
    other = [
        f"{path} is {_text(saved[path])}, this run has {_text(wanted[path])}"
        for path in wanted
        if path in saved and saved[path] != wanted[path]
    ]
    problems = [
        *([f"the checkpoint lacks {_some(missing)}"] if missing else []),
        *([f"this run lacks {_some(extra)}"] if extra else []),
        *([_some(other)] if other else []),
    ]
    if problems:
        raise CheckpointError(
            f"step {step} is not a checkpoint of this model and optimizer: {'; '.join(problems)}; "
            "use the config it was saved with, or another run directory"
        )


def read_arrays(directory: Path, abstract: Any) -> dict[str, jax.Array]:
    """Read leaves as they are asked for, by path; every process must call it after `check_abstract`.

    Raises:
        CheckpointError: Orbax cannot read them.
    """
    item, as_asked, restored = {}, {}, {}
    for path, leaf in leaf_paths(abstract):
        if leaf.size == 0:
            restored[path] = _empty(leaf)
            continue
        stored, as_asked[path] = _stored_form(leaf)
        item[path] = jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=leaf.sharding)
    if item:
        restore_args = {
            path: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
            for path, leaf in item.items()
        }
        args = ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
        try:
            arrays = handler().restore(epath.Path(directory), args=args)
        except (ValueError, KeyError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{directory.parent.name}: verified, but cannot be read: {reason}") from error
        restored |= {path: as_asked[path](array) for path, array in arrays.items()}
    return restored


def _empty(leaf: Any) -> jax.Array:
    """An array without elements."""
    if is_key(leaf):
        stored, as_asked = _stored_form(leaf)
        return as_asked(_zeros(stored.shape, stored.dtype, leaf.sharding))
    return _zeros(leaf.shape, leaf.dtype, leaf.sharding)


def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> jax.Array:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)()


def _stored_form(leaf: Any) -> tuple[Any, Callable[[jax.Array], jax.Array]]:
    """The abstract array that a leaf is stored as, and the way back."""
    if not is_key(leaf):
        return leaf, lambda array: array
    names: list[str] = []

    def data(key: jax.Array) -> jax.Array:
        names.append(str(jax.random.key_impl(key)))
        return jax.random.key_data(key)

    stored = jax.eval_shape(data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    wrap = functools.partial(jax.random.wrap_key_data, impl=names[0])
    return stored, jax.jit(wrap, out_shardings=leaf.sharding)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _text(leaf: tuple[tuple[int, ...], str]) -> str:
    return f"{leaf[1]}[{','.join(map(str, leaf[0]))}]"
