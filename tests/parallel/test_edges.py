"""Batches and routings at the edge are finite on a mesh, and equal to one device.

The expert bias leads tokens away from an expert or to one; a layout's cases share one compiled step.
"""

import jax
import numpy as np
import pytest

from maxtrain.parallel.emulation import settle

MODEL = {"moe": {"num_experts": 8, "top_k": 2, "d_expert": 32, "first_dense": 1, "balance": "bias"}, "global_every": 0}
LAYOUTS = [({"fsdp": 2, "expert": 2}, 1), ({"data": 2, "tensor": 2}, 1), ({"context": 4}, 1), ({"pipeline": 2}, 2)]
NAMES = ["-".join(f"{axis}{size}" for axis, size in mesh.items()) for mesh, _ in LAYOUTS]

FAR = 10.0
"""Beside scores between 0 and 1, it decides."""


def nothing_changes(rows):
    return {}


def only_padding(rows):
    return {"segment_ids": np.zeros_like(rows["segment_ids"]), "weights": np.zeros_like(rows["weights"])}


def one_document(rows):
    places = np.broadcast_to(np.arange(rows["tokens"].shape[1], dtype=np.int32), rows["tokens"].shape)
    return {"segment_ids": np.ones_like(places), "positions": places, "weights": np.ones_like(rows["weights"])}


CASES = {
    "an expert without tokens": (-FAR, nothing_changes),
    "one expert for all tokens": (FAR, nothing_changes),
    "only padding": (0.0, only_padding),
    "one document": (0.0, one_document),
}


@pytest.fixture(scope="module")
def run_cases(build_on, batch_rows):
    """From a layout to metrics, gradient and parameters of one step of every case."""

    def run(mesh, num_micro=1):
        layout = build_on(mesh, num_micro, model=MODEL)
        found = {}
        for name, (bias, change) in CASES.items():
            state = layout.create_state()
            state = state._replace(expert_bias=state.expert_bias.at[:, 3].add(bias))
            before = layout.params(state)
            state, metrics = settle(layout.step(state, layout.batch(0, **change(batch_rows))))
            found[name] = jax.device_get(metrics), layout.gradient(state), layout.params(state), before
        return found

    return run


@pytest.fixture(scope="module")
def one(run_cases):
    return run_cases({})


def test_cases_are_what_they_are_called(one, batch_rows):
    tokens = (batch_rows["segment_ids"] > 0).sum()
    load = {name: np.asarray(metrics["expert_load"]) for name, (metrics, *_) in one.items()}
    assert (load["an expert without tokens"][:, 3] == 0).all()
    assert (load["one expert for all tokens"][:, 3] == tokens).all()
    assert (load["only padding"] == 0).all()
    assert (load["one document"].sum(-1) == 2 * batch_rows["tokens"].size).all()


@pytest.mark.parametrize(("mesh", "num_micro"), LAYOUTS, ids=NAMES)
def test_a_mesh_equals_one_device(run_cases, one, farthest_leaf, relative_to, mesh, num_micro):
    for name, (metrics, gradient, params, before) in run_cases(mesh, num_micro).items():
        expected, one_gradient, one_params, _ = one[name]
        np.testing.assert_array_equal(metrics["expert_load"], expected["expert_load"])
        assert metrics["skipped"] == expected["skipped"] == (name == "only padding")
        for field in ("loss", "grad_norm"):
            assert np.isfinite(metrics[field]), (name, field)
            assert relative_to(metrics[field], expected[field]) < 2e-6, (name, field)
        assert all(np.isfinite(leaf).all() for leaf in (*gradient.values(), *params.values())), name
        assert farthest_leaf(gradient, one_gradient)[1] < 1e-5, (name, farthest_leaf(gradient, one_gradient))
        assert farthest_leaf(params, one_params)[1] < 1e-5, (name, farthest_leaf(params, one_params))
        if metrics["skipped"]:
            assert farthest_leaf(params, before)[1] == 0
