"""Held-out sums by domain against a loop over rows."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import ModelConfig, MoeConfig
from maxtrain.evaluation.perplexity import DomainLoss, heldout_losses, make_heldout_step, total
from maxtrain.model import Model

ROWS, LENGTH, BATCH_ROWS = 5, 8, 2


def make_model(capacity_factor):
    moe = MoeConfig(num_experts=4, top_k=1, d_expert=8, capacity_factor=capacity_factor)
    config = ModelConfig(
        vocab_size=30, num_layers=1, d_model=16, num_heads=2, d_ff=16, init_std=0.3, moe=moe, z_weight=0.1
    )
    return Model(config, kernels="reference")


@pytest.fixture(scope="module")
def params():
    return jax.jit(make_model(None).init)(jax.random.key(0))


@pytest.fixture(scope="module")
def evaluate(params):
    """Compiled once: a model whose experts would take one token of a row, and its expert bias."""
    model = make_model(0.5)
    step = jax.jit(make_heldout_step(model, 2))
    return lambda batch: step(params, model.expert_bias(), {name: jnp.asarray(field) for name, field in batch.items()})


@pytest.fixture(scope="module")
def rows():
    """Five rows of two domains; the fourth is half padding."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 30, (ROWS, LENGTH + 1)).astype(np.int32)
    weights = np.ones((ROWS, LENGTH), np.float32)
    weights[3, 4:] = 0
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": weights,
        "segment_ids": weights.astype(np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "domain": np.array([0, 0, 1, 0, 1], np.int32),
    }


@pytest.fixture(scope="module")
def loop(params, rows):
    """(nats, tokens) by domain, row by row and token by token from logits, which know no capacity."""
    logits = jax.jit(make_model(None).logits)
    sums = np.zeros((2, 2))
    for row in range(ROWS):
        got = logits(params, jnp.asarray(rows["tokens"][row : row + 1]))[0]
        for position in range(LENGTH):
            if rows["weights"][row, position]:
                scores = np.asarray(got[position], np.float64)
                nll = math.log(np.exp(scores).sum()) - scores[rows["targets"][row, position]]
                sums[rows["domain"][row]] += nll, 1
    return sums


def in_batches(rows, filling=0):
    """Batches of two rows; the last is filled with a row of weight 0, whatever its tokens and its domain."""
    for first in range(0, ROWS, BATCH_ROWS):
        batch = {name: field[first : first + BATCH_ROWS] for name, field in rows.items()}
        if len(batch["domain"]) < BATCH_ROWS:
            empty = {name: np.zeros_like(field[:1]) for name, field in batch.items()} | {
                "tokens": np.full((1, LENGTH), filling, np.int32),
                "domain": np.array([filling % 2], np.int32),
            }
            batch = {name: np.concatenate([field, empty[name]]) for name, field in batch.items()}
        yield batch


def test_sums_by_domain_are_a_loops_and_padding_weighs_nothing(evaluate, rows, loop):
    for filling in (0, 7):
        heldout = SimpleNamespace(
            domains=("a", "b"),
            batches=lambda batch_rows, filling=filling: in_batches(rows, filling),
            bytes_of={"a": 100, "b": 40}.__getitem__,
        )
        losses = heldout_losses(evaluate, heldout, BATCH_ROWS)
        assert [losses[name].tokens for name in "ab"] == [20, 16]
        assert [losses[name].nats for name in "ab"] == pytest.approx(loop[:, 0], rel=1e-5)
        assert losses["a"].loss == pytest.approx(loop[0, 0] / 20, rel=1e-5)
        assert losses["b"].bits_per_byte == pytest.approx(loop[1, 0] / math.log(2) / 40, rel=1e-5)
        whole = total(losses)
        assert (whole.tokens, whole.num_bytes) == (36, 140)
        assert whole.nats == pytest.approx(loop[:, 0].sum(), rel=1e-5)


def test_a_capacity_would_have_changed_the_sums(params, rows):
    """Else the test above would not see that evaluation has none."""
    model = make_model(0.5)
    batch = {name: jnp.asarray(field) for name, field in rows.items()}
    _, aux = jax.jit(model.loss)(params, batch, expert_bias=model.expert_bias())
    assert aux.dropped.sum() > 0


def test_a_domain_without_text_has_no_bits():
    assert DomainLoss(0.0, 0, 0).bits_per_byte is None
    assert DomainLoss(0.0, 0, 0).loss == 0
