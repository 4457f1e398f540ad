import pytest

from maxtrain.config.schema import MESH_AXES, Config
from maxtrain.plan.links import slow_link_bytes


@pytest.fixture
def config():
    return Config.model_validate(
        {
            "run": {"directory": "unused"},
            "data": {"source": "synthetic", "sequence_length": 64},
            "batch": {"global_batch_tokens": 1024, "micro_batch": 2},
            "model": {
                "vocab_size": 64,
                "num_layers": 3,
                "d_model": 32,
                "num_heads": 4,
                "num_kv_heads": 2,
                "d_ff": 64,
                "moe": {"num_experts": 8, "top_k": 2, "d_expert": 32, "first_dense": 1},
            },
            "precision": {"activations": "bfloat16"},
            "train": {"total_tokens": 4096},
            "schedule": {"lr": 1e-3},
        }
    )


def spans(**axes):
    return {axis: axes.get(axis, 1) for axis in MESH_AXES}


def test_what_crosses_nodes(config):
    sizes = dict.fromkeys(MESH_AXES, 2)
    tokens, width = 1024 / 16, 2  # rows over data, fsdp, expert and context
    assert slow_link_bytes(config, sizes, spans(data=2, fsdp=2, pipeline=2)) == {}
    assert slow_link_bytes(config, sizes, spans(tensor=2)) == {"tensor": 8 * 3 * tokens * 32 * width / 2}
    assert slow_link_bytes(config, sizes, spans(expert=2)) == {"expert": 4 * 2 * tokens * 2 * 32 * width / 2}
    assert slow_link_bytes(config, {**sizes, "context": 4}, spans(context=4)) == {
        "context": 6 * 3 * (tokens / 2) * 2 * 8 * width * 4 * 3 / 4
    }


def test_a_dense_model_sends_nothing_to_experts(config):
    dense = config.model_copy(update={"model": config.model.model_copy(update={"moe": None})})
    assert slow_link_bytes(dense, spans(), spans(expert=2)) == {}
