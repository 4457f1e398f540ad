"""A small dataset of random tokens, and how it was made."""

import shutil

import numpy as np
import pytest

from maxtrain.core import files
from maxtrain.dataset import DatasetWriter, Document, History, InputRecord, RuleCounts, TokenizerRecord, document_id

MODEL = b"stands for a tokenizer model"
VOCAB = 1000


def _make_documents(count=60, seed=0, vocab=VOCAB):
    """Documents with ids of random tokens and every kind of tag."""
    random = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        source = ["web", "book", "code"][number % 3]
        tokens = random.integers(4, vocab, int(random.integers(1, 200))).tolist()
        documents.append(
            Document(
                doc_id=document_id(source, original_id=str(number), url=None, text=""),
                tokens=tokens,
                num_bytes=3 * len(tokens),
                source=source,
                lang=["en", "zh"][number % 2],
                category=source.upper(),
                split="heldout" if number % 10 == 0 else "train",
                quality_score=None if number % 4 == 0 else number / count,
                licence=["MIT", "CC0-1.0"][number % 2],
                origin=f"origin/{number}",
                input="in.jsonl",
                line=number + 1,
            )
        )
    return documents


def _write(output, documents, *, vocab=VOCAB, bos=1, shard_tokens=1000, replace=False):
    """Write documents as a dataset."""
    tokenizer = TokenizerRecord(
        sha256=files.sha256_bytes(MODEL), vocab_size=vocab, pad_id=0, bos_id=bos, eod_id=2, unk_id=3
    )
    history = History(
        code_version="0",
        build_version=1,
        recipe={"a": 1},
        inputs=[InputRecord(file="in.jsonl", sha256="0" * 64, licence="MIT")],
        rules={"read": RuleCounts(kept=len(documents), dropped={"not_json": 1})},
        split_fractions={"heldout": 0.1},
    )
    with DatasetWriter(output, tokenizer, MODEL, shard_tokens=shard_tokens, replace=replace) as writer:
        for document in documents:
            writer.add(document)
        return writer.finish(history)


@pytest.fixture(scope="session")
def make_documents():
    return _make_documents


@pytest.fixture(scope="session")
def write():
    return _write


@pytest.fixture(scope="session")
def documents():
    return _make_documents()


@pytest.fixture(scope="session")
def original(tmp_path_factory, documents):
    """A dataset that no test changes."""
    path = tmp_path_factory.mktemp("dataset") / "d"
    _write(path, documents)
    return path


@pytest.fixture
def copy(tmp_path, original):
    """A dataset of the test's own."""
    return shutil.copytree(original, tmp_path / "d")
