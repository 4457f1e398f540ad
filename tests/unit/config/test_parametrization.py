"""Multipliers of maximal update and CompleteP."""

import pytest

from maxtrain.config.parametrization import Multipliers, multipliers
from maxtrain.config.schema import ModelConfig, ParametrizationConfig

MODEL = ModelConfig(vocab_size=64, num_layers=8, d_model=128, num_heads=4, d_ff=256)


def of(**base):
    return multipliers(MODEL.model_copy(update={"parametrization": ParametrizationConfig(**base)}))


def test_the_standard_parametrization_and_the_base_model_have_none():
    assert multipliers(MODEL) == Multipliers(init_layers=8)
    assert of(kind="mup", base_d_model=128) == Multipliers(init_layers=8)
    assert of(kind="completep", base_d_model=128, base_num_layers=8) == Multipliers(init_layers=8)


def test_maximal_update_at_four_times_the_width():
    found = of(kind="mup", base_d_model=32, base_head_dim=8)
    assert found == Multipliers(
        hidden_std=0.5,
        logits=0.25,
        attention=0.5,  # 1 / sqrt(32) becomes sqrt(8) / 32
        residual=1.0,
        hidden_adam_lr=0.25,
        hidden_muon_lr=0.5,
        layer_eps=0.25,
        table_eps=0.25,
        init_layers=8,
    )


def test_completep_divides_what_a_layer_adds_by_the_depth():
    found = of(kind="completep", base_d_model=32, base_num_layers=2)
    assert (found.residual, found.layer_eps, found.table_eps, found.init_layers) == (0.25, 1 / 16, 0.25, 2)
    assert found.hidden_adam_lr == pytest.approx(0.25)
