"""Small datasets in the real format, with tokens that name their document."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxtrain.config.batch_plan import BatchPlan, Segment, Stage
from maxtrain.config.schema import DataConfig, DomainConfig, TagFilter
from maxtrain.config.schema.data import Packing
from maxtrain.core.files import sha256_bytes
from maxtrain.dataset import Dataset, DatasetWriter, Document, History, TokenizerRecord, document_id
from maxtrain.loader import Loader

VOCAB = 1000
PAD, BOS, EOD = 0, 1, 2


@dataclass(frozen=True)
class Doc:
    """A document to write: `length` counts bos and eod."""

    length: int
    source: str = "web"
    split: str = "train"
    quality_score: float | None = None
    lang: str = "en"


MakeDataset = Callable[..., Dataset]


def write_dataset(
    path: Path,
    docs: Sequence[Doc],
    *,
    bos: bool = True,
    tag: str = "",
    model: bytes = b"model",
    shard_tokens: int = 700,
) -> Dataset:
    record = TokenizerRecord(
        sha256=sha256_bytes(model), vocab_size=VOCAB, pad_id=PAD, bos_id=BOS if bos else None, eod_id=EOD, unk_id=3
    )
    rng = np.random.default_rng(len(docs))
    history = History(code_version="test", build_version=1, recipe={}, inputs=(), rules={}, split_fractions={})
    with DatasetWriter(path, record, model, shard_tokens=shard_tokens) as writer:
        for number, doc in enumerate(docs):
            writer.add(
                Document(
                    doc_id=document_id(doc.source, original_id=f"{tag}{number}", url=None, text=""),
                    tokens=rng.integers(4, VOCAB, doc.length - 1 - bos),
                    num_bytes=3 * doc.length,
                    source=doc.source,
                    lang=doc.lang,
                    category="prose",
                    split=doc.split,
                    quality_score=doc.quality_score,
                    licence="CC0-1.0",
                    origin=f"origin {number}",
                    input="input.jsonl",
                    line=number + 1,
                )
            )
        writer.finish(history)
    return Dataset.open(str(path), verify="size")


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Writes and opens datasets of given documents, each in a directory of its own."""
    count = 0

    def make(docs: Sequence[Mapping[str, Any]], **options: Any) -> Dataset:
        nonlocal count
        count += 1
        return write_dataset(tmp_path / f"dataset{count}", [Doc(**doc) for doc in docs], **options)

    return make


def domain(
    weight: float = 1.0, *, packing: Packing = "concat", max_epochs: float | None = None, **tags: Any
) -> DomainConfig:
    return DomainConfig(weight=weight, packing=packing, max_epochs=max_epochs, filter=TagFilter(**tags))


@pytest.fixture(name="domain")
def domain_fixture() -> Callable[..., DomainConfig]:
    """A domain from its weight, packing and tags."""
    return domain


def plan_of(*parts: tuple[Dataset | None, Mapping[str, DomainConfig], int, Sequence[tuple[int, int]]]) -> BatchPlan:
    """A plan of stages, each (dataset, mixture, sequence length, [(steps, batch rows), ...])."""
    segments: list[Segment] = []
    step = row = token = 0
    for index, (dataset, mixture, length, batches) in enumerate(parts):
        rows = sum(steps * batch_rows for steps, batch_rows in batches)
        location = dataset.location if dataset else None
        stage = Stage(index, f"stage{index}", location, dict(mixture), length, row, rows)
        for steps, batch_rows in batches:
            segments.append(Segment(stage, step, steps, row, batch_rows, token))
            step, row, token = step + steps, row + steps * batch_rows, token + steps * batch_rows * length
    return BatchPlan(tuple(segments))


MakeLoader = Callable[..., Loader]


@pytest.fixture
def make_loader() -> MakeLoader:
    """A loader of stages, each (dataset, mixture, sequence length, [(steps, batch rows), ...])."""

    def make(*parts: Any, seed: int = 0, vocab_size: int = VOCAB, **data: Any) -> Loader:
        datasets = {dataset.location: dataset for dataset, *_ in parts if dataset}
        config = DataConfig(dataset=next(iter(datasets), None), sequence_length=parts[0][2], **data)

        def open_dataset(location: str, *, verify: str) -> Dataset:
            return datasets[location]

        return Loader(plan_of(*parts), data=config, seed=seed, vocab_size=vocab_size, open_dataset=open_dataset)

    return make


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAXTRAIN_CACHE", str(tmp_path / "cache"))
