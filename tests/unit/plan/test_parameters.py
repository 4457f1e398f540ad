"""Counts held against published models and a count made one matrix at a time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.config.schema import ModelConfig, MoeConfig
from maxtrain.plan import count_parameters, training_flops_per_token
from maxtrain.plan.flops import matmul_parameters, mean_context

MIXTRAL = ModelConfig(
    vocab_size=32_000,
    num_layers=32,
    d_model=4096,
    num_heads=32,
    num_kv_heads=8,
    d_ff=14_336,
    moe=MoeConfig(num_experts=8, top_k=2, d_expert=14_336),
)
QWEN3_235B = ModelConfig(
    vocab_size=151_936,
    num_layers=94,
    d_model=4096,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    d_ff=12_288,
    qk_norm=True,
    moe=MoeConfig(num_experts=128, top_k=8, d_expert=1536),
)
LLAMA_405B = ModelConfig(vocab_size=128_256, num_layers=126, d_model=16_384, num_heads=128, num_kv_heads=8, d_ff=53_248)
GPT3 = ModelConfig(
    vocab_size=50_257,
    num_layers=96,
    d_model=12_288,
    num_heads=96,
    d_ff=49_152,
    activation="relu2",
    tie_embeddings=True,
)
TEN_TRILLION = ModelConfig(
    vocab_size=131_072,
    num_layers=82,
    d_model=8192,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    d_ff=46_080,
    qk_norm=True,
    attention_gate=True,
    window=1024,
    global_every=4,
    moe=MoeConfig(
        num_experts=1024, top_k=8, d_expert=5120, num_shared=1, first_dense=2, score="sigmoid", balance="bias"
    ),
)


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        (MIXTRAL, 46.70e9, 12.88e9),
        (QWEN3_235B, 235.09e9, 22.19e9),
        (LLAMA_405B, 405.85e9, 405.85e9),
        (GPT3, 174.6e9, 174.6e9),
    ],
    ids=["Mixtral 8x7B", "Qwen3-235B-A22B", "Llama-3.1-405B", "GPT-3"],
)
def test_published_models(model: ModelConfig, total: float, active: float) -> None:
    count = count_parameters(model)
    assert count.total == pytest.approx(total, rel=5e-4)
    assert count.active == pytest.approx(active, rel=5e-4)


def test_a_ten_trillion_shape_to_the_last_parameter() -> None:
    count = count_parameters(TEN_TRILLION)
    assert (count.total, count.active) == (10_335_497_286_144, 108_106_412_544)


def test_operations_of_published_runs() -> None:
    # Within 0.03 % of the 656.25 GFLOPs stated for this shape, and GPT-3's 300B tokens within 2 % of 3.14e23.
    assert training_flops_per_token(TEN_TRILLION, 8192).total == pytest.approx(656.25e9, rel=3e-4)
    assert training_flops_per_token(GPT3, 2048).total * 300e9 == pytest.approx(3.19e23, rel=5e-3)
    assert training_flops_per_token(LLAMA_405B, 8192).total * 15.6e12 == pytest.approx(3.94e25, rel=5e-3)


def by_hand(model: ModelConfig) -> tuple[int, int]:
    """Total and active, one matrix at a time, layer by layer."""
    width, dim = model.d_model, model.dim_per_head
    feed_forward = (2 if model.activation == "relu2" else 3) * width
    total = active = model.vocab_size * width + width + (0 if model.tie_embeddings else model.vocab_size * width)
    for layer in range(model.num_layers):
        own = width + width  # two norms
        own += width * model.num_heads * dim + model.num_heads * dim * width  # queries, output
        own += width * model.kv_heads * dim + width * model.kv_heads * dim  # keys, values
        own += dim + dim if model.qk_norm else 0
        own += width * model.num_heads if model.attention_gate else 0
        chosen = 0
        if model.is_moe(layer):
            assert model.moe is not None
            moe = model.moe
            own += width * moe.num_experts
            own += feed_forward * moe.num_shared * (moe.d_shared or moe.d_expert)
            chosen = moe.top_k * feed_forward * moe.d_expert
            total += moe.num_experts * feed_forward * moe.d_expert
        else:
            own += feed_forward * model.d_ff
        total, active = total + own, active + own + chosen
    return total, active


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    heads = draw(st.integers(1, 4))
    values: dict[str, Any] = {
        "vocab_size": draw(st.integers(1, 100)),
        "num_layers": draw(st.integers(1, 5)),
        "d_model": heads * draw(st.integers(1, 8)) * 2,
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from([None, 1, heads])),
        "head_dim": draw(st.sampled_from([None, 2, 8])),
        "d_ff": draw(st.integers(1, 50)),
        "activation": draw(st.sampled_from(["swiglu", "geglu", "relu2"])),
        "qk_norm": draw(st.booleans()),
        "attention_gate": draw(st.booleans()),
        "tie_embeddings": draw(st.booleans()),
    }
    if draw(st.booleans()):
        experts = draw(st.integers(1, 8))
        values["moe"] = {
            "num_experts": experts,
            "top_k": draw(st.integers(1, experts)),
            "d_expert": draw(st.integers(1, 20)),
            "num_shared": draw(st.integers(0, 2)),
            "d_shared": draw(st.sampled_from([None, 5])),
            "first_dense": draw(st.integers(0, values["num_layers"])),
        }
    return ModelConfig.model_validate(values)


@given(models())
@settings(max_examples=80)
def test_every_shape_counts_as_by_hand(model: ModelConfig) -> None:
    count = count_parameters(model)
    assert (count.total, count.active) == by_hand(model)
    assert all(component.total >= component.active > 0 for component in count.components)
    norms = sum(component.total for component in count.components if "norm" in component.name)
    tied = model.vocab_size * model.d_model if model.tie_embeddings else 0
    assert matmul_parameters(model) == count.active - model.vocab_size * model.d_model - norms + tied


def test_components_are_found_by_name_and_empty_ones_are_left_out() -> None:
    components = {component.name: component for component in count_parameters(MIXTRAL).components}
    experts, attention = components["experts"], components["attention"]
    assert (experts.total, experts.active) == (32 * 8 * 3 * 4096 * 14_336, 32 * 2 * 3 * 4096 * 14_336)
    assert attention.total == 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert not {"dense feed-forward", "shared experts"} & set(components)
    assert "output" not in {component.name for component in count_parameters(GPT3).components}


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 80)))
def test_the_mean_context_is_the_mean_over_positions(length: int, window: int | None) -> None:
    seen = [min(position + 1, window or length) for position in range(length)]
    assert mean_context(length, window) == pytest.approx(sum(seen) / length, rel=1e-12)


def test_windows_and_global_layers_count_apart() -> None:
    base = LLAMA_405B.model_copy(update={"num_layers": 4})
    windowed = base.model_copy(update={"window": 16, "global_every": 2})
    per_position = 3 * 2 * 128 * 256
    assert training_flops_per_token(base, 64).attention == per_position * 4 * 32.5
    assert training_flops_per_token(windowed, 64).attention == per_position * 2 * (32.5 + mean_context(64, 16))
