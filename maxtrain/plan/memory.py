"""Bytes of a run's state, counted from its config alone: what all devices hold together, and a checkpoint too."""

from dataclasses import dataclass

from maxtrain.config.schema import Config
from maxtrain.plan.parameters import Component, count_parameters

_WIDTH = {"float32": 4, "bfloat16": 2}
_MATRICES = ("attention", "dense feed-forward", "experts", "shared experts")
"""Components of the layers' matrices, which precision.parameters stores and Muon moves."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the state before a mesh divides it; replicas and unused places of uneven stages are not counted."""

    parameters: int
    """As they are stored."""
    moments: int
    """What the optimizer keeps."""
    counters: int
    """The counters, the optimizer's own included, and the experts' bias."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.moments + self.counters


def state_bytes(config: Config) -> StateBytes:
    """Count the bytes of parameters, optimizer state and counters.

    Args:
        config: a checked config; precision.parameters and the optimizer's name, mu_dtype and nu_dtype count.
    """
    model, optimizer = config.model, config.optimizer
    components = count_parameters(model).components
    first, second = _WIDTH[optimizer.mu_dtype], _WIDTH[optimizer.nu_dtype]

    def stored(component: Component) -> int:
        return _WIDTH[config.precision.parameters if component.name in _MATRICES else "float32"]

    def kept(component: Component) -> int:
        return first if optimizer.name == "muon" and component.name in _MATRICES else first + second

    num_moe = sum(map(model.is_moe, range(model.num_layers)))
    return StateBytes(
        parameters=sum(component.total * stored(component) for component in components),
        moments=sum(component.total * kept(component) for component in components),
        counters=4 * (4 + num_moe * (model.moe.num_experts if model.moe is not None else 0)),
    )
