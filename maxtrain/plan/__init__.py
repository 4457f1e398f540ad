"""Arithmetic of a run without devices: parameters, operations, steps."""

from maxtrain.plan.flops import FlopsPerToken, training_flops_per_token
from maxtrain.plan.parameters import Component, ParameterCount, count_parameters

__all__ = ["Component", "FlopsPerToken", "ParameterCount", "count_parameters", "training_flops_per_token"]
