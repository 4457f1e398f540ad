"""A small valid config as plain data, and its writing to a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maxtrain.config import Config
from maxtrain.config.load import validate
from maxtrain.config.merge import Source, apply_overrides

TEXT = """\
run: {directory: runs/test}
data: {dataset: datasets/test, sequence_length: 64}
batch: {global_batch_tokens: 512, micro_batch: 4}
model: {vocab_size: 256, num_layers: 4, d_model: 32, num_heads: 4, num_kv_heads: 2, d_ff: 64}
train: {total_tokens: 5120}
schedule: {lr: 1e-3}
"""
MOE = "model.moe={num_experts: 8, top_k: 2, d_expert: 32, first_dense: 1}"

WriteConfig = Callable[..., Path]
MakeConfig = Callable[..., Config]


@pytest.fixture
def write(tmp_path: Path) -> WriteConfig:
    """Write a text to a file and give its path."""

    def write_file(text: str = TEXT, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def make() -> MakeConfig:
    """The small config with overrides."""

    def make_config(*overrides: str) -> Config:
        tree: dict[str, Any] = {
            "run": {"directory": "runs/test"},
            "data": {"dataset": "datasets/test", "sequence_length": 64},
            "batch": {"global_batch_tokens": 512, "micro_batch": 4},
            "model": {
                "vocab_size": 256,
                "num_layers": 4,
                "d_model": 32,
                "num_heads": 4,
                "num_kv_heads": 2,
                "d_ff": 64,
            },
            "train": {"total_tokens": 5120},
            "schedule": {"lr": 1e-3},
        }
        source = Source("test", tree)
        apply_overrides(source, overrides)
        return validate(source)

    return make_config


@pytest.fixture
def moe() -> str:
    """An override that gives the small config experts."""
    return MOE
