"""Optimizers, learning-rate schedules and parameter groups."""

from maxtrain.optim.groups import GROUPS, group_of, group_tree
from maxtrain.optim.optimizer import make_optimizer
from maxtrain.optim.schedule import make_schedule

__all__ = ["GROUPS", "group_of", "group_tree", "make_optimizer", "make_schedule"]
