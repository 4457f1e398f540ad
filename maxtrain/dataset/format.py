"""The dataset's format on disk: identity of a document, manifest, columns of the document table.

A dataset directory holds `manifest.json`, `documents.parquet`, `shards/00000.bin …`, `tokenizer.model`, the ledger of
every document's fate with samples of what rules did (`ledger.parquet`, `samples.parquet`) and, where lines of the
inputs were no usable records, `quarantine.jsonl`. Shards are flat little-endian token files, documents in
`doc_id` order, each `bos? text eod`; a document lies in one shard.
"""

import hashlib
import json
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
DOCUMENTS = "documents.parquet"
TOKENIZER = "tokenizer.model"
QUARANTINE = "quarantine.jsonl"
"""Input lines that are no usable record, each with its place and reason."""
LEDGER = "ledger.parquet"
"""What every rule did to every document."""
SAMPLES = "samples.parquet"
"""Some documents of every rule, before and after it."""
ATTACHMENTS = (QUARANTINE, LEDGER, SAMPLES)
"""Files that tell how a dataset came to be; training does not read them."""
TRAIN_SPLIT = "train"

TAGS = ("source", "lang", "category", "split")
"""Dictionary-encoded columns of the document table that a tag filter may name."""
LENGTH_BUCKETS = (128, 512, 2048, 8192, 32768, 131072)
"""Upper bounds, in tokens, of the document table's length buckets; the last bucket has none."""


def document_id(source: str, *, original_id: str | None, url: str | None, text: str) -> str:
    """First 16 bytes of SHA-256(source ‖ 0x00 ‖ original id, else url, else text), in hex.

    An empty id or url counts as absent.
    """
    identity = original_id or url or text
    return hashlib.sha256(source.encode() + b"\0" + identity.encode()).digest()[:16].hex()


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Little-endian uint16 up to a vocabulary of 65,536, uint32 above."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


class Record(BaseModel):
    """A frozen part of the manifest; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TokenizerRecord(Record):
    """The tokenizer that wrote the tokens."""

    file: str = TOKENIZER
    sha256: str
    """Hash of the file, which is the normalised model: the tokenizer's identity."""
    vocab_size: int = Field(gt=0)
    pad_id: int
    bos_id: int | None
    """Id written before each document; null where none is written."""
    eod_id: int
    """Id written after each document."""
    unk_id: int


class ShardRecord(Record):
    """One token file."""

    file: str
    num_tokens: int = Field(gt=0)
    num_bytes: int = Field(gt=0)
    sha256: str


class DocumentsRecord(Record):
    """The document table."""

    file: str = DOCUMENTS
    count: int = Field(gt=0)
    sha256: str


class FileRecord(Record):
    """A file beside the tokens."""

    file: str
    num_bytes: int = Field(gt=0)
    sha256: str


class InputRecord(Record):
    """One input file."""

    file: str
    sha256: str
    licence: str


class Totals(Record):
    """Sums over documents; bytes are UTF-8 of the text."""

    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)


class RuleCounts(Record):
    """What a rule did: documents kept, changed and dropped, the dropped ones by reason."""

    kept: int
    changed: int = 0
    dropped: dict[str, int] = {}


class SplitRecord(Totals):
    """Documents of one split."""

    fraction: float | None
    """Share asked for; null for the rest."""


class Manifest(Record):
    """What `manifest.json` says; its bytes' SHA-256 is the dataset's identity."""

    format_version: int
    code_version: str
    build_version: int
    """Of the way from inputs to bytes: where it differs, the same recipe and inputs may give another dataset."""
    dtype: Literal["uint16", "uint32"]
    tokenizer: TokenizerRecord
    documents: DocumentsRecord
    shards: tuple[ShardRecord, ...] = Field(min_length=1)
    attachments: tuple[FileRecord, ...]
    """Those of `ATTACHMENTS` that there are."""
    totals: Totals
    splits: dict[str, SplitRecord]
    licences: dict[str, Totals]
    """Documents by licence."""
    rules: dict[str, RuleCounts]
    inputs: tuple[InputRecord, ...]
    recipe: dict[str, Any]
    """The resolved recipe."""
    evaluation_suite: str | None
    """Identity of the evaluation list that documents were held against; null where they were not."""

    def to_bytes(self) -> bytes:
        """The manifest as it is written: the same manifest gives the same bytes."""
        return (json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()
