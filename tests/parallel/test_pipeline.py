"""Pipeline stages of several rounds or unequal length against one device; test_matrix has plain ones."""

import jax
import numpy as np
import pytest

from maxtrain.parallel.pipeline import Pipeline
from maxtrain.train.state import from_saved, to_saved

MODEL = {"num_layers": 5, "global_every": 0, "dropout": 0.1}
"""One dense layer before the stages, four with experts in them."""


@pytest.fixture(scope="module")
def reference(build_on):
    return build_on({}, model=MODEL).train(3)


@pytest.fixture(scope="module")
def interleaved(build_on):
    """Two rounds, and two of four microbatches in flight."""
    mesh, pipeline = {"pipeline": 2, "fsdp": 2, "expert": 2}, {"rounds": 2, "microbatches": 2}
    return build_on(mesh, 4, model=MODEL, pipeline=pipeline)


def test_interleaved_stages_equal_one_device(interleaved, reference, assert_parity):
    assert_parity(interleaved.train(3), reference)


@pytest.fixture(scope="module")
def uneven(build_on):
    """Two stages of two places for three layers: the last place is empty."""
    return build_on({"pipeline": 2}, 2, model=MODEL | {"num_layers": 4}, pipeline={"uneven": True})


def test_stages_of_unequal_length_equal_one_device(uneven, build_on, assert_parity):
    whole = build_on({}, model=MODEL | {"num_layers": 4}).train(3)
    assert_parity(uneven.train(3), whole)


@pytest.mark.parametrize("moe", [{"first_dense": 0}, None], ids=["experts", "dense"])
def test_a_model_of_one_kind_of_layer_has_none_before_the_stages(build_on, assert_parity, moe):
    model = MODEL | {"num_layers": 4, "moe": moe and {"num_experts": 8, "top_k": 2, "d_expert": 32, **moe}}
    staged = build_on({"pipeline": 2}, 2, model=model)
    assert_parity(staged.train(3), build_on({}, model=model).train(3))


@pytest.mark.parametrize("which", ["interleaved", "uneven"])
def test_saved_state_knows_no_stages(request, build_on, which):
    parts = request.getfixturevalue(which).parts
    model, like = parts.model, parts.abstract_state
    state = parts.create_state(3)
    saved = to_saved(state, model)
    assert jax.tree.map(lambda a: (a.shape, a.sharding), to_saved(like, model)) == jax.tree.map(
        lambda a: (a.shape, a.sharding), saved
    )
    whole = build_on({}, model=MODEL | {"num_layers": model.config.num_layers}).parts
    expected = to_saved(whole.create_state(3), whole.model)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(saved), jax.device_get(expected))
    query = state.params["layers"]["moe"]["attention"]["query"]
    assert not np.array_equal(query, saved["params"]["layers"]["moe"]["attention"]["query"])
    back = from_saved(saved, like, model)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(back), jax.device_get(state))
    assert jax.tree.map(lambda leaf: leaf.sharding, back) == jax.tree.map(lambda leaf: leaf.sharding, state)


@pytest.mark.parametrize(("stages", "rounds", "num_micro"), [(4, 1, 8), (2, 2, 4), (4, 2, 8), (3, 3, 6)])
def test_schedule_carries_each_microbatch_through_the_layers_in_order(stages, rounds, num_micro):
    mesh = jax.make_mesh(
        (1, 1, stages, 1, 1, 1),
        ("data", "fsdp", "pipeline", "expert", "context", "tensor"),
        axis_types=(jax.sharding.AxisType.Auto,) * 6,
        devices=jax.devices()[:stages],
    )
    pipeline = Pipeline(mesh, rounds, stages * rounds * 2)
    order = pipeline.layer_at
    np.testing.assert_array_equal(order[pipeline.place_of], np.arange(len(order)))
    assert pipeline.bubble(num_micro) == (stages - 1) / (num_micro * rounds + stages - 1)

    def stage(params, layers, x, shared, active):
        # Each layer appends its number; what is seen of the microbatch must be its own.
        for layer in range(2):
            x = (x * 31 + params[layer] + shared) % 9973
        return x, jax.numpy.where(active, layers + shared, 0)

    numbers = jax.numpy.arange(len(order))
    micro = jax.numpy.arange(num_micro) * 100
    start = jax.numpy.broadcast_to(micro[:, None, None], (num_micro, 2, 3))
    x, sums = jax.jit(lambda x: pipeline.run(stage, numbers[order], numbers[order], x, micro, jax.numpy.sum))(start)
    expected = np.array(start)
    for layer in range(len(order)):
        expected = (expected * 31 + layer + np.asarray(micro)[:, None, None]) % 9973
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(sums, num_micro * np.arange(len(order)) + micro.sum())
