"""Running the pipeline: tasks whose outputs are kept by what they are made from, and the workers that run them."""

from maxtrain.corpus.engine.engine import Engine, Options
from maxtrain.corpus.engine.task import Outcome, Task

__all__ = ["Engine", "Options", "Outcome", "Task"]
