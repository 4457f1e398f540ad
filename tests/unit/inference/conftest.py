import jax
import pytest

from maxtrain.config.schema import ModelConfig, MoeConfig
from maxtrain.model import Model


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Tiny models spend their time in the compiler."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def model():
    """Windows of two kinds, grouped queries, a gate, a dense layer and experts chosen by bias."""
    config = ModelConfig(
        vocab_size=50,
        num_layers=4,
        d_model=16,
        num_heads=4,
        num_kv_heads=2,
        d_ff=24,
        window=3,
        global_every=2,
        qk_norm=True,
        attention_gate=True,
        init_std=0.3,
        moe=MoeConfig(num_experts=6, top_k=2, d_expert=8, first_dense=1, score="sigmoid", balance="bias", num_shared=1),
    )
    return Model(config, scan_unroll=1)


@pytest.fixture(scope="session")
def params(model):
    return jax.jit(model.init)(jax.random.key(0))


@pytest.fixture(scope="session")
def bias(model):
    return 0.2 * jax.random.normal(jax.random.key(1), model.expert_bias().shape)
