"""Optimizers, learning-rate schedules and parameter groups."""

from maxtrain.optim.groups import GROUPS, group_of, group_tree
from maxtrain.optim.optimizer import Optimizer, OptimizerState, make_optimizer
from maxtrain.optim.qk_clip import clip_factors
from maxtrain.optim.schedule import make_schedule

__all__ = [
    "GROUPS",
    "Optimizer",
    "OptimizerState",
    "clip_factors",
    "group_of",
    "group_tree",
    "make_optimizer",
    "make_schedule",
]
