"""The tokenised dataset: format on disk, reader, writer."""

from maxtrain.dataset.filter import Filter
from maxtrain.dataset.format import (
    FORMAT_VERSION,
    LEDGER,
    LENGTH_BUCKETS,
    MANIFEST,
    QUARANTINE,
    SAMPLES,
    TRAIN_SPLIT,
    InputRecord,
    Manifest,
    RuleCounts,
    TokenizerRecord,
    Totals,
    document_id,
    token_dtype,
)
from maxtrain.dataset.reader import Dataset, read_manifest
from maxtrain.dataset.table import Coded, DocumentTable
from maxtrain.dataset.verify import verify_only_own_files
from maxtrain.dataset.writer import DatasetWriter, Document, History, check_replaceable, holds_dataset

__all__ = [
    "FORMAT_VERSION",
    "LEDGER",
    "LENGTH_BUCKETS",
    "MANIFEST",
    "QUARANTINE",
    "SAMPLES",
    "TRAIN_SPLIT",
    "Coded",
    "Dataset",
    "DatasetWriter",
    "Document",
    "DocumentTable",
    "Filter",
    "History",
    "InputRecord",
    "Manifest",
    "RuleCounts",
    "TokenizerRecord",
    "Totals",
    "check_replaceable",
    "document_id",
    "holds_dataset",
    "read_manifest",
    "token_dtype",
    "verify_only_own_files",
]
