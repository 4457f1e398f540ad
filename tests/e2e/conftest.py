"""Small runs on the sample corpus, in this process or through the command line."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from maxtrain.checkpoint import CheckpointStore
from maxtrain.config import check_or_raise
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import load_config
from maxtrain.loader import HeldOut, Loader
from maxtrain.monitor.metrics import read_metrics
from maxtrain.monitor.schema import deterministic_view
from maxtrain.train.parts import build_parts
from maxtrain.train.session import run_training
from maxtrain.train.state import to_saved

CONFIG = """\
run: {{directory: {directory}, seed: 5}}
data:
  dataset: {dataset}
  sequence_length: 64
  mixture:
    english: {{weight: 0.7, filter: {{category: book_en}}}}
    math: {{weight: 0.3, filter: {{category: math}}, packing: best_fit}}
batch: {{global_batch_tokens: 1024, micro_batch: 8}}
model:
  vocab_size: 8192
  num_layers: 3
  d_model: 32
  num_heads: 4
  num_kv_heads: 2
  d_ff: 64
  moe: {{num_experts: 4, top_k: 2, d_expert: 32, first_dense: 1, balance: bias}}
mesh: {{devices: 1}}
train: {{total_tokens: 12288, scan_unroll: 1}}
schedule: {{lr: 3e-3, warmup_frac: 0.25}}
checkpoint: {{every: 4, keep: 20}}
logging: {{tensorboard: false, peak_tflops: 1}}
"""


class Runner:
    """Writes the config of a small run and runs it."""

    def __init__(self, root: Path, dataset: Path) -> None:
        self.root, self.dataset = root, dataset
        self._parts: dict = {}

    def write(self, directory: Path) -> Path:
        """The config file of a run in this directory."""
        path = directory.with_suffix(".yaml")
        path.write_text(CONFIG.format(directory=directory, dataset=self.dataset))
        return path

    def load(self, directory: Path, *overrides: str):
        config = load_config(self.write(directory), overrides)
        check_or_raise(config)
        return config

    def parts(self, config):
        """Compiled parts, shared between runs whose step is the same."""
        key = config.model_copy(
            update={"run": None, "checkpoint": None, "logging": None, "evaluation": None, "profile": None}
        )
        key = key.model_dump_json(warnings=False)
        if key not in self._parts:
            plan = plan_batches(config)
            self._parts[key] = build_parts(config, plan, len({name for stage in plan.stages for name in stage.mixture}))
        return self._parts[key]

    def train(self, directory: Path, *overrides: str, stop_at: int | None = None) -> int:
        """Train in this process."""
        config = self.load(directory, *overrides)
        plan = plan_batches(config)
        loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
        heldout = HeldOut.from_config(config, loader) if config.evaluation.every else None
        return run_training(config, plan, loader, heldout, stop_at, self.parts(config))

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen:
        """Start `python -m ARGUMENTS`."""
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def final_state(self, directory: Path, *overrides: str, step: int | None = None) -> dict[str, np.ndarray]:
        """Every leaf of a checkpoint, by path."""
        parts = self.parts(self.load(directory, *overrides))
        with CheckpointStore(directory / "checkpoints", keep=99) as store:
            found = store.restore(to_saved(parts.abstract_state, parts.model), step=step)
        assert found is not None
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(found[1]))
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    @staticmethod
    def lines(directory: Path) -> list[dict]:
        """The deterministic part of the metrics that count."""
        return [deterministic_view(line) for line in read_metrics(directory / "metrics.jsonl")]


@pytest.fixture(scope="session")
def runner(root: Path, sample_dataset: Path) -> Runner:
    return Runner(root, sample_dataset)


@pytest.fixture(scope="session")
def same_bits():
    def compare(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
        assert a.keys() == b.keys()
        different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
        assert not different

    return compare
