"""Multipliers by which a small model's hyperparameters serve a large one: maximal update and CompleteP."""

from typing import NamedTuple

from maxtrain.config.schema import ModelConfig


class Multipliers(NamedTuple):
    """Factors on what the config says; all 1 in the standard parametrization and in the base model itself.

    `hidden` are the matrices of the layers. The embedding keeps deviation and rate, the output projection too, for its
    own factor stands on the logits; so tied tables are no exception.
    """

    hidden_std: float = 1.0
    """On the initial deviation of hidden matrices."""
    logits: float = 1.0
    """On the output logits."""
    attention: float = 1.0
    """On the attention scale 1 / sqrt(head_dim)."""
    residual: float = 1.0
    """On what a layer adds to the residual stream."""
    hidden_adam_lr: float = 1.0
    """On the rate of hidden matrices under Adam; their decay is multiplied by the inverse, so that lr × decay stays."""
    hidden_muon_lr: float = 1.0
    """The same under Muon, whose update has the RMS of Adam's but a spectral norm that grows like sqrt(width)."""
    layer_eps: float = 1.0
    """On Adam's epsilon in the layers."""
    table_eps: float = 1.0
    """On Adam's epsilon for the embedding and the output projection."""
    init_layers: int = 0
    """Layers that `model.depth_scaled_init` counts."""


def multipliers(model: ModelConfig) -> Multipliers:
    """Multipliers of a model relative to its base.

    With m = d_model / base_d_model and, in CompleteP (its alpha = 1), l = num_layers / base_num_layers:

    | | maximal update | CompleteP |
    |---|---|---|
    | hidden deviation | m^-1/2 | m^-1/2 |
    | hidden Adam rate, decay | m^-1, m | m^-1, m |
    | logits | m^-1 | m^-1 |
    | attention scale | sqrt(base_head_dim) / head_dim | the same |
    | residual branch | 1 | l^-1 |
    | Adam's epsilon in layers, in tables | m^-1, m^-1 | m^-1 · l^-1, m^-1 |

    d_ff, d_expert and num_heads × head_dim are meant to grow in step with d_model, as `maxtrain.coordinate_check`
    lets them. The router is treated as a hidden matrix, which keeps its logits' size.

    Sources: Yang 2022 (Tensor Programs V, table 8), Dey 2025 (CompleteP, table 1); Muon's factor from the spectral
    condition of Yang 2023.
    """
    base = model.parametrization
    if base is None:
        return Multipliers(init_layers=model.num_layers)
    width = model.d_model / base.base_d_model
    depth = 1.0
    if base.kind == "completep":
        assert base.base_num_layers is not None
        depth = model.num_layers / base.base_num_layers
    return Multipliers(
        hidden_std=width**-0.5,
        logits=1 / width,
        attention=((base.base_head_dim or model.dim_per_head) / model.dim_per_head) ** 0.5,
        residual=1 / depth,
        hidden_adam_lr=1 / width,
        hidden_muon_lr=width**-0.5,
        layer_eps=1 / (width * depth),
        table_eps=1 / width,
        init_layers=base.base_num_layers or model.num_layers,
    )
