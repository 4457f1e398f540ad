"""Decontamination: documents against the evaluation list, which is kept as hashed n-grams."""

from maxtrain.corpus.decontaminate.index import EvalIndex, build_eval_index, load_eval_index, suite_identity
from maxtrain.corpus.decontaminate.rule import Decontaminate
from maxtrain.corpus.decontaminate.scan import Hit, ScanConfig, Scanner, summarise

__all__ = [
    "Decontaminate",
    "EvalIndex",
    "Hit",
    "ScanConfig",
    "Scanner",
    "build_eval_index",
    "load_eval_index",
    "suite_identity",
    "summarise",
]
