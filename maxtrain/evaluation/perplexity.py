"""Held-out loss and bits per byte, by domain."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from maxtrain.model import Model


class DomainLoss(NamedTuple):
    """Sums over the held-out text of one domain."""

    nats: float
    tokens: int
    num_bytes: int

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood, nats a token."""
        return self.nats / max(self.tokens, 1)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits a UTF-8 byte; None without text."""
        return self.nats / math.log(2) / self.num_bytes if self.num_bytes else None


def total(losses: Mapping[str, DomainLoss]) -> DomainLoss:
    """The sums over all domains."""
    return DomainLoss(*(sum(part) for part in zip(*losses.values(), strict=True)))


def make_heldout_step(model: Model, num_domains: int) -> Callable[[Any, Array, dict[str, Array]], tuple[Array, Array]]:
    """Build the function (params, expert_bias, batch) -> (nats, target tokens) by domain [num_domains].

    The batch is as `Model.loss` takes it, with `domain` one dimension less.

    Experts have no capacity here: dropped choices would let a row's loss depend on the rest of it.
    """
    model = model.dropless()

    def step(params: Any, expert_bias: Array, batch: dict[str, Array]) -> tuple[Array, Array]:
        _, aux = model.loss(params, batch, expert_bias=expert_bias, row_keys=None)
        member = jax.nn.one_hot(batch["domain"].reshape(-1), num_domains, dtype=jnp.float32)
        nll, weight = aux.nll_B.reshape(-1), aux.weight_B.reshape(-1)
        return jnp.where(member > 0, nll[:, None], 0.0).sum(0), member.T @ weight

    return step


def heldout_losses(
    evaluate: Callable[[dict[str, np.ndarray]], tuple[Array, Array]], heldout: Any, batch_rows: int
) -> dict[str, DomainLoss]:
    """Evaluate every held-out row once, in order.

    Args:
        evaluate: from one batch of rows to (nats, target tokens) by domain.
        heldout: the loader's held-out rows.
        batch_rows: rows in a batch; the last batch is filled with rows of weight 0.
    """
    nats = np.zeros(len(heldout.domains))
    tokens = np.zeros(len(heldout.domains), np.int64)
    for batch in heldout.batches(batch_rows):
        some_nats, some_tokens = jax.device_get(evaluate(batch))
        nats += np.asarray(some_nats, np.float64)
        tokens += np.asarray(some_tokens).astype(np.int64)
    return {
        name: DomainLoss(float(nats[i]), int(tokens[i]), heldout.bytes_of(name))
        for i, name in enumerate(heldout.domains)
    }
