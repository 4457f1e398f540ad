"""The decoder: Flax modules for a layer's parts, and `Model`, their plain functional form."""

from maxtrain.model.loss import LossAux
from maxtrain.model.model import Cache, Model
from maxtrain.model.parameters import ParameterSpec, Params

__all__ = ["Cache", "LossAux", "Model", "ParameterSpec", "Params"]
