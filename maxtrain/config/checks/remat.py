"""Ranges of layers with a remat policy of their own."""

from collections.abc import Iterator, Mapping

from maxtrain.config.schema import Config
from maxtrain.config.violations import Violation


def check_remat(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Ranges lie in the model, run forward and do not overlap; independent of the mesh."""
    layers, taken = config.model.num_layers, dict[int, int]()
    for index, part in enumerate(config.remat.layers):
        path = f"remat.layers.{index}"
        if part.last >= layers:
            limit = f"must be under model.num_layers = {layers}, for layers count from 0"
            yield Violation(f"{path}.last", part.last, limit, f"set {layers - 1} or less")
        if part.first > part.last:
            limit = f"must be at most {path}.last = {part.last}, which is the range's last layer itself"
            yield Violation(f"{path}.first", part.first, limit, f"set {part.last} or less")
            continue
        both = [layer for layer in range(part.first, min(part.last, layers - 1) + 1) if layer in taken]
        if both:
            limit = f"layer {both[0]} is in remat.layers.{taken[both[0]]} too"
            yield Violation(f"{path}.first", part.first, limit, "make the ranges disjoint")
        taken.update((layer, index) for layer in range(part.first, min(part.last, layers - 1) + 1))
