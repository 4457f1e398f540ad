"""Held-out evaluation of a state on the training mesh."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.evaluation.perplexity import DomainLoss, heldout_losses, make_heldout_step, total
from maxtrain.loader import HeldOut
from maxtrain.monitor.heldout import HeldOutResult, Score
from maxtrain.parallel.emulation import settle
from maxtrain.train.feed import BatchFeeder
from maxtrain.train.parts import Parts
from maxtrain.train.state import TrainState


def make_evaluator(
    parts: Parts, heldout: HeldOut, feeder: BatchFeeder, tokens_at: Callable[[int], int]
) -> Callable[[int, TrainState], HeldOutResult]:
    """Build the function (step, state) -> result over every held-out row; it changes nothing of the state."""
    pipeline = parts.model.pipeline
    rows = feeder.micro_rows * (1 if pipeline is None else pipeline.stages)
    own = feeder.select(rows)
    replicated = NamedSharding(parts.mesh, PartitionSpec())
    heldout_step = jax.jit(
        make_heldout_step(parts.model, len(heldout.domains)),
        out_shardings=replicated,
        compiler_options=parts.compiler_options,
    )

    def evaluate(step: int, state: TrainState) -> HeldOutResult:
        def one_batch(batch: dict[str, np.ndarray]) -> Any:
            placed = feeder.place({name: values[own] for name, values in batch.items()}, rows)
            if pipeline is None:
                placed = {name: values[0] for name, values in placed.items()}
            return settle(heldout_step(state.params, state.expert_bias, placed))

        losses = heldout_losses(one_batch, heldout, rows)
        scores = {name: _score(loss) for name, loss in losses.items()}
        return HeldOutResult(step, tokens_at(step), scores, _score(total(losses)))

    return evaluate


def _score(loss: DomainLoss) -> Score:
    return Score(loss.loss, loss.bits_per_byte, loss.tokens, loss.num_bytes)
