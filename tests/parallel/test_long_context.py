"""Long rows over the context axis: what the compiled step holds, and that it trains. A campaign."""

import jax
import numpy as np
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import Config
from maxtrain.parallel.emulation import settle
from maxtrain.train.feed import BatchFeeder
from maxtrain.train.parts import build_parts

pytestmark = pytest.mark.campaign

K = 1024
MODEL = {
    "vocab_size": 256,
    "num_layers": 2,
    "d_model": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "d_ff": 128,
    "window": 4096,
    "global_every": 2,
}


def build(length: int, context: int):
    config = Config.model_validate(
        {
            "run": {"directory": "unused", "seed": 3},
            "data": {"source": "synthetic", "sequence_length": length},
            "batch": {"global_batch_tokens": length, "micro_batch": 1},
            "model": MODEL,
            "remat": {"policy": "save_attention"},
            "mesh": {"devices": context, "context": context},
            "train": {"total_tokens": length, "scan_unroll": 1},
            "schedule": {"name": "constant", "lr": 1e-3},
        }
    )
    return build_parts(config, plan_batches(config), num_domains=1)


def rows(length: int) -> dict[str, np.ndarray]:
    """One row of three documents."""
    random = np.random.default_rng(0)
    tokens = random.integers(1, 256, (1, length + 1)).astype(np.int32)
    ids = np.searchsorted([length // 8, length // 2 + 5], np.arange(length), side="right")[None].astype(np.int32) + 1
    starts = np.r_[0, np.flatnonzero(np.diff(ids[0])) + 1]
    weights = np.ones((1, length), np.float32)
    weights[0, starts[1:] - 1] = 0
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": ids,
        "positions": (np.arange(length) - starts[ids[0] - 1]).astype(np.int32)[None],
        "weights": weights,
        "domain": np.zeros(1, np.int32),
    }


def compiled(length: int, context: int):
    parts = build(length, context)
    batch = BatchFeeder(parts.mesh, 1).place(rows(length), 1)
    return parts, batch, parts.train_step.lower(parts.abstract_state, batch).compile()


def held(step) -> float:
    """MB that one device holds at once."""
    memory = step.memory_analysis()
    return (memory.temp_size_in_bytes + memory.argument_size_in_bytes) / 1e6


@pytest.mark.parametrize(("length", "most"), [(32 * K, 200.0), (128 * K, 450.0)])
def test_a_long_row_compiles_within_its_memory(length, most):
    """Eight ranks; memory grows with the row, not with its square."""
    assert held(compiled(length, 8)[2]) <= most


def test_a_row_of_32k_trains_to_the_loss_of_one_device():
    lines = {}
    for context in (1, 8):
        parts, batch, step = compiled(32 * K, context)
        _, metrics = settle(step(parts.create_state(3), batch))
        lines[context] = jax.device_get(metrics)
    assert lines[8]["batch_digest"] == lines[1]["batch_digest"]
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(lines[8][name], lines[1][name], rtol=2e-6)
