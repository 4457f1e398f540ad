"""Parameters of a model by component, counted from its config alone.

D d_model, H query heads, K kv heads, h head dim, F hidden width, E experts, V vocabulary.
"""

from dataclasses import dataclass

from maxtrain.config.schema import ModelConfig, MoeConfig


@dataclass(frozen=True)
class Component:
    """Parameters of one kind, over all layers."""

    name: str
    total: int
    active: int
    """Parameters that one token's forward pass uses."""
    formula: str
    """What `total` adds up, for one layer where `layers` is not 0."""
    layers: int
    """Layers that have it; 0 where it stands outside the layers."""


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model; components without parameters are left out."""

    components: tuple[Component, ...]

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(component.total for component in self.components)

    @property
    def active(self) -> int:
        """Parameters that one token's forward pass uses, embedding and norms included."""
        return sum(component.active for component in self.components)


def _attention(model: ModelConfig) -> tuple[int, str]:
    """Projections of queries, keys, values and output, and the heads' gate."""
    width, heads, kv_heads, dim = model.d_model, model.num_heads, model.kv_heads, model.dim_per_head
    count, formula = 2 * width * heads * dim + 2 * width * kv_heads * dim, "2·D·H·h + 2·D·K·h"
    if model.attention_gate:
        count, formula = count + width * heads, f"{formula} + D·H"
    return count, formula


def _matrices(model: ModelConfig) -> int:
    """Matrices of a feed-forward: a gated one has three."""
    return 2 if model.activation == "relu2" else 3


def _moe_components(model: ModelConfig, moe: MoeConfig, layers: int) -> list[Component]:
    width, matrices = model.d_model, _matrices(model)
    expert = matrices * width * moe.d_expert
    shared = matrices * width * moe.num_shared * (moe.d_shared or moe.d_expert)
    router = width * moe.num_experts
    return [
        Component("router", layers * router, layers * router, "D·E", layers),
        Component(
            "experts",
            layers * moe.num_experts * expert,
            layers * moe.top_k * expert,
            f"E·{matrices}·D·d_expert",
            layers,
        ),
        Component("shared experts", layers * shared, layers * shared, f"{matrices}·D·num_shared·d_shared", layers),
    ]


def count_parameters(model: ModelConfig) -> ParameterCount:
    """Count a model's parameters.

    The expert bias of loss-free balancing is state, not a parameter. `attention` must be `gqa`.

    Args:
        model: the model's section of the config.

    Returns:
        Components in the order of the forward pass; `active` counts top_k of the routed experts.
    """
    width, vocab, layers = model.d_model, model.vocab_size, model.num_layers
    moe_layers = sum(model.is_moe(layer) for layer in range(layers))
    dense_layers = layers - moe_layers
    attention, attention_formula = _attention(model)
    dense = _matrices(model) * width * model.d_ff
    output = 0 if model.tie_embeddings else vocab * width
    norms = 2 * width + (2 * model.dim_per_head if model.qk_norm else 0)
    norm_formula = "2·D + 2·h" if model.qk_norm else "2·D"

    def whole(name: str, one: int, formula: str, count: int) -> Component:
        return Component(name, one * count, one * count, formula, count)

    components = [
        Component("embedding", vocab * width, vocab * width, "V·D", 0),
        whole("attention", attention, attention_formula, layers),
        whole("dense feed-forward", dense, f"{_matrices(model)}·D·d_ff", dense_layers),
    ]
    if model.moe is not None:
        components += _moe_components(model, model.moe, moe_layers)
    components += [
        whole("layer norms", norms, norm_formula, layers),
        Component("final norm", width, width, "D", 0),
        Component("output", output, output, "V·D", 0),
    ]
    return ParameterCount(tuple(component for component in components if component.total))
