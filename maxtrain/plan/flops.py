"""Floating-point operations of training, a token: 6 · N_matmul + 3 · A (PaLM, appendix B, with causal attention)."""

from dataclasses import dataclass

from maxtrain.config.schema import ModelConfig
from maxtrain.plan.parameters import count_parameters


@dataclass(frozen=True)
class FlopsPerToken:
    """Training operations a token, forward and backward; recompute is not counted."""

    matmul: float
    """6 × the active parameters that stand in matrix products."""
    attention: float
    """3 × the forward operations of scores and weighted values, over the mean causal context."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.matmul + self.attention


def mean_context(sequence_length: int, window: int | None) -> float:
    """Mean number of positions that a token attends to, itself included, in a row that is one document.

    Args:
        sequence_length: S, tokens in a row.
        window: sliding window, or None for full causal attention.

    Returns:
        (S + 1) / 2 without a window, else (w (w + 1) / 2 + (S - w) w) / S.
    """
    length = sequence_length
    reach = min(window or length, length)
    return (reach * (reach + 1) / 2 + (length - reach) * reach) / length


def matmul_parameters(model: ModelConfig) -> int:
    """Active parameters in matrix products: no norms, no look-up; the output projection counts, tied or not."""
    count = count_parameters(model)
    output = model.vocab_size * model.d_model
    elementwise = {"embedding", "layer norms", "final norm", "output"}
    return output + sum(component.active for component in count.components if component.name not in elementwise)


def training_flops_per_token(model: ModelConfig, sequence_length: int) -> FlopsPerToken:
    """Operations that training spends on one token.

    Rows are taken as one document each: packed documents, which do not attend to each other, cost less.

    Args:
        model: the model's section of the config.
        sequence_length: tokens in a row.

    Returns:
        6 · N_matmul, and 3 · Σ_layers 2 · heads · (d_qk + d_v) · context.
    """
    per_position = 2 * model.num_heads * 2 * model.dim_per_head
    contexts = sum(mean_context(sequence_length, model.window_of(layer)) for layer in range(model.num_layers))
    return FlopsPerToken(6.0 * matmul_parameters(model), 3.0 * per_position * contexts)
