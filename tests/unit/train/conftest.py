"""A small mixture-of-experts config and batches for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import Config

ROWS, LENGTH, VOCABULARY = 8, 32, 96


def tiny_config(**sections) -> Config:
    """Two mixture-of-experts layers of width 32; sections are merged key by key."""
    moe = {"num_experts": 4, "top_k": 2, "d_expert": 32, "z_weight": 1e-3}
    base: dict = {
        "run": {"directory": "unused", "seed": 3},
        "data": {"source": "synthetic", "sequence_length": LENGTH},
        "batch": {"global_batch_tokens": ROWS * LENGTH, "micro_batch": ROWS},
        "model": {
            "vocab_size": VOCABULARY,
            "num_layers": 2,
            "d_model": 32,
            "num_heads": 4,
            "num_kv_heads": 2,
            "d_ff": 64,
            "qk_norm": True,
            "moe": moe,
        },
        "mesh": {"devices": 1},
        "train": {"total_tokens": 16 * ROWS * LENGTH, "scan_unroll": 1},
        "optimizer": {"clip_norm": 0.25},
        "schedule": {"name": "cosine", "lr": 3e-3, "warmup_frac": 0.25},
    }
    for name, values in sections.items():
        merged = {**base.get(name, {}), **values}
        if "moe" in values and values["moe"] is not None:
            merged["moe"] = {**moe, **values["moe"]}
        base[name] = merged
    return Config.model_validate(base)


def tiny_batch(seed: int = 0, num_micro: int = 1) -> dict[str, jax.Array]:
    """[A, B, T] fields: two documents a row, padding at the end of the last rows, two domains."""
    random = np.random.default_rng(seed)
    tokens = random.integers(1, VOCABULARY, (ROWS, LENGTH + 1))
    segment_ids = np.ones((ROWS, LENGTH), np.int32)
    positions = np.tile(np.arange(LENGTH), (ROWS, 1))
    for row in range(ROWS):
        cut = random.integers(4, LENGTH - 4)
        segment_ids[row, cut:] = 2
        positions[row, cut:] -= cut
    segment_ids[-2:, -6:] = 0
    weights = np.ones((ROWS, LENGTH), np.float32)
    weights[:, :-1][segment_ids[:, 1:] != segment_ids[:, :-1]] = 0
    weights[segment_ids == 0] = 0
    batch: dict[str, np.ndarray] = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": segment_ids,
        "positions": np.where(segment_ids > 0, positions, 0),
        "weights": weights,
        "domain": np.arange(ROWS) % 2,
    }
    return {
        name: jnp.asarray(
            value.reshape(num_micro, ROWS // num_micro, *value.shape[1:]),
            jnp.float32 if name == "weights" else jnp.int32,
        )
        for name, value in batch.items()
    }


@pytest.fixture(scope="session")
def make_config():
    return tiny_config


@pytest.fixture(scope="session")
def make_batch():
    return tiny_batch
