"""The update direction: AdamW, or Muon on the layers' matrices, with decoupled weight decay."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from maxtrain.config.schema import OptimizerConfig
from maxtrain.optim.groups import Axes, group_tree

_BATCH_AXES = ("layers", "leading_layers", "expert")
_MUON_GROUPS = ("attention", "feed_forward", "experts")
_MUON_RMS = 0.2
"""Root mean square of AdamW's typical update, which Muon's is scaled to (Liu 2025, Moonlight)."""


def _matrix_dimensions(axes: Axes) -> MuonDimensionNumbers:
    """Which dimensions of a stacked weight are its input and its output."""
    dims = [dim for dim, name in enumerate(axes) if name not in _BATCH_AXES]
    split = 1 if axes[dims[0]] == "embed" else len(dims) - 1
    return MuonDimensionNumbers(reduction_axis=tuple(dims[:split]), output_axis=tuple(dims[split:]))


def _match_adam_rms(dimensions: Any) -> optax.GradientTransformation:
    """Scale an orthogonal update, whose RMS is 1 / sqrt(max(inputs, outputs)), to AdamW's."""

    def scale(update: jax.Array, spec: MuonDimensionNumbers) -> jax.Array:
        inputs, outputs = (
            math.prod(update.shape[dim] for dim in dims) for dims in (spec.reduction_axis, spec.output_axis)
        )
        return update * (_MUON_RMS * max(inputs, outputs) ** 0.5)

    def apply(updates: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(scale, updates, dimensions)

    return optax.stateless(apply)


def make_optimizer(config: OptimizerConfig, params: Any, axes: Mapping[str, Axes]) -> optax.GradientTransformation:
    """Build the transformation from (clipped) gradients to the direction d of `params -= lr * d`.

    The learning rate is applied outside, from the `updates` counter, so that a skipped step leaves no trace in
    the optimizer's state.

    Args:
        config: the optimizer's section.
        params: tree of arrays or abstract arrays.
        axes: logical axes of every parameter by path.
    """
    groups = group_tree(params, axes)
    adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.eps)
    direction = adam
    if config.name == "muon":
        labels = jax.tree.map(lambda group: "muon" if group in _MUON_GROUPS else "adam", groups)
        direction = optax.partition({"muon": _muon(config, groups, axes), "adam": adam}, labels)
    exempt = {"norms"} if config.decay_embeddings else {"norms", "embedding", "output"}
    mask = jax.tree.map(lambda group: group not in exempt, groups)
    return optax.chain(direction, optax.add_decayed_weights(config.weight_decay, mask))


def _muon(config: OptimizerConfig, groups: Any, axes: Mapping[str, Axes]) -> optax.GradientTransformation:
    def dimensions(path: tuple, group: str) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return _matrix_dimensions(axes[name]) if group in _MUON_GROUPS else optax.MaskedNode()

    specs = jax.tree_util.tree_map_with_path(dimensions, groups)
    orthogonalise = scale_by_muon(
        ns_steps=config.muon_iterations, beta=config.muon_momentum, weight_dimension_numbers=specs
    )
    return optax.chain(orthogonalise, _match_adam_rms(specs))
