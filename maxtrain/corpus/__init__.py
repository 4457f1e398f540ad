"""From text files to a tokenised dataset: recipe, tolerant reading, build."""

from maxtrain.corpus.build import Built, build
from maxtrain.corpus.recipe import Recipe, load_recipe

__all__ = ["Built", "Recipe", "build", "load_recipe"]
