"""Duplicates: equal and nearly equal documents, repeated paragraphs and passages, and an index to check new ones."""

from maxtrain.corpus.dedup.config import DedupConfig, DuplicatesConfig, NearConfig
from maxtrain.corpus.dedup.driver import Deduplicated, Duplicate, deduplicate
from maxtrain.corpus.dedup.index import DedupIndex, write_index

__all__ = [
    "DedupConfig",
    "DedupIndex",
    "Deduplicated",
    "Duplicate",
    "DuplicatesConfig",
    "NearConfig",
    "deduplicate",
    "write_index",
]
