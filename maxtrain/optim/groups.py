"""Parameter groups, told from a parameter's path and logical axes."""

from collections.abc import Mapping
from typing import Any

import jax

from maxtrain.config.schema import PARAMETER_GROUPS, ParameterGroup

Axes = tuple[str | None, ...]

GROUPS = PARAMETER_GROUPS
"""The groups that norms are reported for and that learning rate, decay and Muon choose by."""


_BY_ROOT: dict[str, ParameterGroup] = {"embedding": "embedding", "output": "output"}
_BY_AXIS: dict[str, ParameterGroup] = {"router": "router", "expert": "experts", "mlp": "feed_forward"}


def group_of(path: str, axes: Axes) -> ParameterGroup:
    """Group of one parameter.

    Args:
        path: '/'-joined keys, such as `layers/moe/attention/query`.
        axes: logical axes, one a dimension.
    """
    root, names = path.split("/", 1)[0], set(axes)
    if root in _BY_ROOT:
        return _BY_ROOT[root]
    for name, group in _BY_AXIS.items():
        if name in names:
            return group
    return "attention" if names & {"heads", "kv_heads"} else "norms"


def group_tree(params: Any, axes: Mapping[str, Axes]) -> Any:
    """Groups as a tree shaped like the parameters.

    Args:
        params: tree of arrays or abstract arrays.
        axes: logical axes by path.
    """

    def label(path: tuple, _: Any) -> str:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return group_of(name, axes[name])

    return jax.tree_util.tree_map_with_path(label, params)
