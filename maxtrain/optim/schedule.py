"""Learning rate as a function of the number of updates."""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import ScheduleConfig


def make_schedule(config: ScheduleConfig, plan: BatchPlan) -> Callable[[Array], Array]:
    """Build the schedule.

    Lengths given in tokens or as parts of the run become numbers of updates through the batch plan, so a batch
    warm-up counts by tokens. The warm-up rises linearly and reaches the peak with its last update.

    Returns:
        A function from `updates` (int32 scalar, updates applied so far) to the rate of the next update (float32).
    """
    total = plan.num_steps
    warmup_tokens = config.warmup_tokens
    if warmup_tokens is None:
        warmup_tokens = math.ceil((config.warmup_frac or 0.0) * plan.num_tokens)
    warmup = plan.step_at_tokens(warmup_tokens)
    decay_start = warmup
    if config.name == "wsd":
        decay_start = max(warmup, plan.step_at_tokens(math.ceil((1 - config.decay_frac) * plan.num_tokens)))

    def after_warmup(updates: Array) -> Array:
        """Rate after the warm-up as a part of the way from min_lr (0) to the peak (1)."""
        progress = jnp.clip((updates - decay_start) / max(total - decay_start, 1), 0.0, 1.0)
        if config.name == "constant":
            return jnp.ones_like(progress)
        shape = "cosine" if config.name == "cosine" else config.decay_shape
        if shape == "cosine":
            return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        return 1.0 - (jnp.sqrt(progress) if shape == "sqrt" else progress)

    def schedule(updates: Array) -> Array:
        count = jnp.asarray(updates, jnp.float32)
        if config.name == "inverse_sqrt":
            rate = config.lr * jnp.sqrt(max(warmup, 1) / jnp.maximum(count, max(warmup, 1)))
            rate = jnp.maximum(rate, config.min_lr)
        else:
            rate = config.min_lr + (config.lr - config.min_lr) * after_warmup(count)
        ramp = config.lr * (count + 1.0) / max(warmup, 1)
        return jnp.where(count < warmup, ramp, rate).astype(jnp.float32)

    return schedule
