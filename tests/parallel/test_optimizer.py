"""Muon, bfloat16 moments and stochastic rounding on meshes against one device."""

import functools
import math
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.config.schema import Config, MeshConfig
from maxtrain.model.kernels.max_logits import max_logits
from maxtrain.optim.muon import Matrices, orthogonalise
from maxtrain.parallel.mesh import make_mesh
from maxtrain.parallel.rules import PARAMETER_RULES, to_partition_spec
from tests.parallel.conftest import OnMesh, farthest, parity_config, relative

COLLECTIVE = re.compile(r"= .*? (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
EXPERTS, OUTPUT = ("layers", "expert", "embed", "mlp"), ("layers", "heads", "head_dim", "embed")


def weight(axes):
    """Stacked matrices; three layers divide over no mesh."""
    shape = {EXPERTS: (4, 8, 16, 24), OUTPUT: (3, 8, 4, 16)}[axes]
    return jax.random.normal(jax.random.key(0), shape)


@functools.cache
def on_one_device(axes):
    return np.asarray(jax.jit(lambda x: orthogonalise(x, Matrices.of(axes), None, 5))(weight(axes)))


@pytest.mark.parametrize(
    ("axes", "sizes", "collectives"),
    [
        (EXPERTS, {"fsdp": 8}, {"all-to-all": 2}),
        (EXPERTS, {"expert": 8}, {}),
        (EXPERTS, {"tensor": 4, "fsdp": 2}, {"all-to-all": 4}),
        (EXPERTS, {"data": 2, "fsdp": 2, "expert": 2}, {"all-to-all": 2, "all-gather": 1}),
        (EXPERTS, {"pipeline": 2, "fsdp": 4}, {"all-to-all": 2}),
        (OUTPUT, {"tensor": 4, "fsdp": 2}, {"all-to-all": 4}),
        (OUTPUT, {"expert": 2, "fsdp": 4}, {"all-to-all": 2}),
    ],
    ids=str,
)
def test_matrices_are_divided_not_gathered(axes, sizes, collectives):
    x, mesh = weight(axes), make_mesh(MeshConfig(**sizes))
    sharding = NamedSharding(mesh, to_partition_spec(axes, PARAMETER_RULES))
    function = jax.jit(
        lambda x: orthogonalise(x, Matrices.of(axes), sharding, 5), in_shardings=sharding, out_shardings=sharding
    )
    text = function.lower(x).compile().as_text() or ""
    assert relative(function(jax.device_put(x, sharding)), on_one_device(axes)) < 2e-6
    assert Counter(COLLECTIVE.findall(text)) == collectives
    # In whole matrices, the most that one array of a device holds: its share of them, rounded up; where axes hold
    # copies, what it stores.
    count = math.prod(x.shape[: Matrices.of(axes).num_stacking])
    shapes = [tuple(map(int, found.split(","))) for found in re.findall(r"f32\[([\d,]+)\]", text)]
    held = max(map(math.prod, shapes)) * count / x.size
    stored = count / math.prod(mesh.shape[axis] for entry in sharding.spec if entry for axis in (entry,))
    assert held <= max(math.ceil(count / mesh.size), stored) + 1e-9, (held, count)


def test_max_logits_of_divided_rows_and_heads():
    keys = jax.random.split(jax.random.key(0))
    q, k = (jax.random.normal(key, (8, 20, heads, 4)) for key, heads in zip(keys, (8, 4), strict=True))
    ids = jax.numpy.ones((8, 20), "int32").at[:, 15:].set(2)
    measure = functools.partial(max_logits, window=6, scale=0.5, compute_dtype=jax.numpy.float32)
    mesh = make_mesh(MeshConfig(tensor=4, fsdp=2))
    heads, rows = (NamedSharding(mesh, PartitionSpec("fsdp", None, *rest)) for rest in (("tensor", None), ()))
    found = jax.jit(measure)(jax.device_put(q, heads), jax.device_put(k, heads), jax.device_put(ids, rows))
    np.testing.assert_allclose(found, measure(q, k, ids), rtol=1e-6)


SMALL: dict[str, Any] = {
    "model": {
        "num_layers": 2,
        "window": None,
        "global_every": 0,
        "attention_gate": False,
        "moe": {"num_experts": 8, "top_k": 2, "d_expert": 32},
    },
    "optimizer": {"name": "muon"},
}


@functools.cache
def trained(**mesh):
    return OnMesh(parity_config(mesh, 1, **SMALL)).train(2)


LONG = pytest.mark.campaign


@pytest.mark.parametrize(
    "mesh",
    [{"fsdp": 8}, pytest.param({"expert": 8}, marks=LONG), pytest.param({"tensor": 4, "fsdp": 2}, marks=LONG)],
    ids=str,
)
def test_muon_equals_one_device(mesh):
    for line, other in zip(trained().lines, trained(**mesh).lines, strict=True):
        np.testing.assert_array_equal(other["expert_load"], line["expert_load"])
        assert relative(other["loss"], line["loss"]) < 2e-6
    far = farthest(trained(**mesh).params, trained().params)
    assert far[1] < 1e-5, far


@pytest.mark.campaign
def test_qk_clip_in_a_pipeline_equals_one_device():
    """A leading dense layer, then stages of two rounds: every head is found again by its layer's number."""
    model = parity_config({}).model.model_dump() | {
        "num_layers": 5,
        "qk_norm": False,
        "window": None,
        "global_every": 0,
    }

    def clipped(*mesh_and_micro: Any, **sections: Any) -> Config:
        # Under the least that a config may say, as the logits of a new model are.
        config = parity_config(*mesh_and_micro, model=model, **sections)
        return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"qk_clip": 0.02})})

    one = OnMesh(clipped({}, 2)).train(2)
    staged = OnMesh(clipped({"pipeline": 2, "expert": 2}, 2, pipeline={"rounds": 2})).train(2)
    far = farthest(staged.params, one.params)
    assert far[1] < 1e-5, far
    for a, b in zip(one.lines, staged.lines, strict=True):
        assert relative(b["max_attention_logit"], a["max_attention_logit"]) < 1e-4
    free = OnMesh(parity_config({}, 2, model=model)).train(2)
    for kind in ("dense", "moe"):
        path = f"layers/{kind}/attention/query"
        assert np.linalg.norm(one.params[path]) < 0.95 * np.linalg.norm(free.params[path])
