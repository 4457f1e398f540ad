"""Verified checkpoints: a step exists when its commit record does and every file matches it.

Judging steps needs no JAX; `CheckpointStore`, `restore_subtree` and `leaf_digest` load it at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from maxtrain.checkpoint.commit import verify_step
from maxtrain.checkpoint.steps import StepInfo, list_steps

if TYPE_CHECKING:
    from maxtrain.checkpoint.digest import leaf_digest
    from maxtrain.checkpoint.restore import restore_subtree
    from maxtrain.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore", "StepInfo", "leaf_digest", "list_steps", "restore_subtree", "verify_step"]

_NEED_JAX = {"CheckpointStore": "store", "leaf_digest": "digest", "restore_subtree": "restore"}


def __getattr__(name: str) -> Any:
    if name not in _NEED_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEED_JAX[name]}"), name)
