"""Arithmetic of a run without devices: parameters, bytes of the state, operations, steps."""

from maxtrain.plan.flops import FlopsPerToken, training_flops_per_token
from maxtrain.plan.links import LINK_FORMULAS, slow_link_bytes
from maxtrain.plan.memory import StateBytes, state_bytes
from maxtrain.plan.parameters import Component, ParameterCount, count_parameters

__all__ = [
    "LINK_FORMULAS",
    "Component",
    "FlopsPerToken",
    "ParameterCount",
    "StateBytes",
    "count_parameters",
    "slow_link_bytes",
    "state_bytes",
    "training_flops_per_token",
]
