"""What rules read of a text: classes of its characters, its units and lines, in compiled loops over code points."""

from maxtrain.corpus.text.analysis import Analysis, analyse

__all__ = ["Analysis", "analyse"]
