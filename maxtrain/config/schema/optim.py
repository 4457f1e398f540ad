"""Optimizer, schedule, and what happens to a bad step."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from maxtrain.config.schema.model import DType
from maxtrain.config.schema.types import (
    Count,
    Epsilon,
    Factor,
    Fraction,
    PositiveInt,
    PositiveReal,
    Section,
    Threshold,
    Weight,
    as_float,
)

Beta = Annotated[float, BeforeValidator(as_float), Field(ge=0, le=0.999999)]
"""Under 1 by so much that float32 knows the difference to a few parts in a hundred."""

ParameterGroup = Literal["embedding", "attention", "feed_forward", "experts", "router", "norms", "output"]
PARAMETER_GROUPS: tuple[ParameterGroup, ...] = get_args(ParameterGroup)
"""Groups of parameters: norms of gradients are told by them, and optimizer.groups sets them apart.

`feed_forward` holds dense layers and shared experts, `attention` its projections and gate.
"""


class GroupConfig(Section):
    """What one group of parameters does otherwise."""

    lr_factor: Weight = 1.0
    """Factor on the learning rate, of the decay too; 0 freezes the group."""
    weight_decay: Weight | None = None
    """Decay of the group; null for optimizer.weight_decay, or 0 where the group is exempt."""


class OptimizerConfig(Section):
    """AdamW (Loshchilov 2019), or Muon (Jordan 2024) for the layers' matrices with AdamW for the rest.

    A Muon update has the root mean square of AdamW's (Liu 2025), so that one learning rate serves both.
    """

    name: Literal["adamw", "muon"] = "adamw"
    """Which optimizer."""
    beta1: Beta = 0.9
    """Decay of Adam's first moment."""
    beta2: Beta = 0.95
    """Decay of Adam's second moment."""
    eps: Epsilon = 1e-8
    """Adam's epsilon."""
    weight_decay: Weight = 0.1
    """Decoupled decay, multiplied by the learning rate; norms are exempt, and what decay_embeddings exempts."""
    decay_embeddings: bool = True
    """Whether the embedding and the output projection decay too; false exempts both."""
    clip_norm: Threshold | None = 1.0
    """Scale the gradient down to this global norm; null for none."""
    muon_momentum: Beta = 0.95
    """Muon's momentum (Nesterov); only with `muon`."""
    muon_iterations: Annotated[int, Field(gt=0, le=100)] = 5
    """Newton–Schulz iterations; only with `muon`."""
    qk_clip: Annotated[PositiveReal, Field(ge=1)] | None = None
    """Scale the queries and keys of a head whose attention logit exceeds this (MuonClip: 100); null for none."""
    groups: dict[ParameterGroup, GroupConfig] = Field(default_factory=dict)
    """By group of parameters; feed_forward holds shared experts too."""
    mu_dtype: DType = "float32"
    """How the first moment, or Muon's momentum, is stored."""
    nu_dtype: DType = "float32"
    """How Adam's second moment is stored."""
    stochastic_rounding: bool = False
    """Round what is stored in bfloat16 up or down at random, right on average, instead of to the nearest."""


class ScheduleConfig(Section):
    """Learning rate by updates."""

    name: Literal["cosine", "wsd", "inverse_sqrt", "constant"] = "cosine"
    """`wsd` is warmup–stable–decay."""
    lr: Annotated[Factor, Field(ge=1e-12)]
    """Peak learning rate."""
    min_lr: Weight = 0.0
    """Learning rate at the end of the decay (inverse_sqrt: the least); 0 with `constant`, which does not decay."""
    warmup_frac: Fraction | None = None
    """Linear warm-up as a part of the run; give this or warmup_tokens, or neither for no warm-up."""
    warmup_tokens: Count | None = None
    """Linear warm-up in tokens."""
    decay_frac: Fraction = 0.1
    """Only with wsd: the last part of the run, in which the rate decays."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Only with wsd: form of the decay (`sqrt` is 1 - sqrt, Hägele 2024)."""


class GuardConfig(Section):
    """A step whose loss or gradient is not finite is skipped: only `step` advances."""

    max_grad_norm: Threshold | None = None
    """Skip a step whose gradient norm is over this; null for no bound."""
    max_skips: PositiveInt = 5
    """Skips in a row after which the run stops."""
