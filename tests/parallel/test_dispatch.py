"""Islands against one device, float32: values within 2e-6, every gradient leaf within 1e-5 in relative L2.

Pairs and triples of axes; `test_parity` has whole models on each single axis.
"""

import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from maxtrain.config.schema import MeshConfig
from maxtrain.model.kernels.attention import divisible_attention
from maxtrain.model.kernels.cross_entropy import cross_entropy
from maxtrain.model.kernels.experts import experts
from maxtrain.model.kernels.feed_forward import feed_forward
from maxtrain.parallel.dispatch import (
    sharded_attention,
    sharded_cross_entropy,
    sharded_feed_forward,
)
from maxtrain.parallel.exchange import Exchange, sharded_experts
from maxtrain.parallel.mesh import make_mesh
from maxtrain.parallel.rules import PARAMETER_RULES, to_partition_spec

B, T, D, F, E, TOP_K, V, HEADS, HEAD_DIM = 8, 12, 16, 24, 8, 2, 64, 8, 4

MESHES = {
    "tensor=8": {"tensor": 8},
    "tensor=4,fsdp=2": {"tensor": 4, "fsdp": 2},
    "data=2,fsdp=2,expert=2": {"data": 2, "fsdp": 2, "expert": 2},
    "expert=2,tensor=2,fsdp=2": {"expert": 2, "tensor": 2, "fsdp": 2},
}
AXES = {
    "query": ("embed", "heads", "head_dim"),
    "key": ("embed", "kv_heads", "head_dim"),
    "router": ("embed", "router"),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "expert_gate": ("expert", "embed", "mlp"),
    "expert_up": ("expert", "embed", "mlp"),
    "expert_down": ("expert", "mlp", "embed"),
    "output": ("vocab", "embed"),
}
SIZES = {
    "embed": D,
    "mlp": F,
    "expert": E,
    "vocab": V,
    "router": E,
    "heads": HEADS,
    "kv_heads": HEADS,
    "head_dim": HEAD_DIM,
}


def parameters():
    keys = jax.random.split(jax.random.key(1), len(AXES))
    return {
        name: 0.3 * jax.random.normal(key, tuple(SIZES[axis] for axis in axes))
        for key, (name, axes) in zip(keys, AXES.items(), strict=True)
    }


def batch(rows=B):
    keys = jax.random.split(jax.random.key(2), 3)
    weights = jax.random.uniform(keys[2], (rows, T)).at[0, :5].set(0.0)
    return {
        "x": jax.random.normal(keys[0], (rows, T, D)),
        "targets": jax.random.randint(keys[1], (rows, T), 0, V),
        "weights": weights,
        "segment_ids": jnp.ones((rows, T), jnp.int32).at[:, 8:].set(2).at[1, 10:].set(0),
    }


def block(params, batch, mesh, implementation="auto"):
    """One layer and the loss: everything that exchanges rows or weights."""
    options = {"compute_dtype": jnp.float32, "implementation": implementation}
    x = batch["x"]
    q, k = jnp.einsum("BTD,DNH->BTNH", x, params["query"]), jnp.einsum("BTD,DNH->BTNH", x, params["key"])
    attention = divisible_attention(window=None, scale=0.5, **options)
    x = (
        x
        + sharded_attention(q, k, k, batch["segment_ids"], mesh=mesh, attention=attention).reshape(*x.shape[:2], -1)[
            ..., :D
        ]
    )
    x = x + sharded_feed_forward(
        x,
        params["gate"],
        params["up"],
        params["down"],
        mesh=mesh,
        compute=partial(feed_forward, activation="swiglu", **options),
    )
    scores = jax.nn.softmax(jnp.einsum("BTD,DE->BTE", x, params["router"]))
    weight, index = jax.lax.top_k(scores, TOP_K)
    index = jnp.where(batch["segment_ids"][..., None] > 0, index, -1)
    y, _ = sharded_experts(
        x,
        index,
        weight,
        params["expert_gate"],
        params["expert_up"],
        params["expert_down"],
        mesh=mesh,
        exchange=Exchange(),
        compute=partial(experts, activation="swiglu", **options),
    )
    x = x + y
    total, nll, z = sharded_cross_entropy(
        x,
        params["output"],
        batch["targets"],
        batch["weights"],
        mesh=mesh,
        compute=partial(cross_entropy, z_weight=1e-2, **options),
    )
    return total, (nll, z, index)


def on_mesh(mesh, params, batch):
    """Parameters by their rules, the batch by its rows."""
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp", "expert")))
    params = {
        name: jax.device_put(value, NamedSharding(mesh, to_partition_spec(AXES[name], PARAMETER_RULES)))
        for name, value in params.items()
    }
    return params, jax.device_put(batch, rows)


def relative(a, b):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b))


@pytest.fixture(scope="module")
def single():
    def loss(params, x, rest):
        return block(params, {"x": x, **rest}, None, "reference")

    data = batch()
    x = data.pop("x")
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(parameters(), x, data)


@pytest.mark.parametrize(
    ("sizes", "implementation"),
    [*((sizes, "auto") for sizes in MESHES.values()), (MESHES["tensor=4,fsdp=2"], "reference")],
    ids=[*MESHES, "reference"],
)
def test_mesh_equals_one_device(sizes, implementation, single):
    mesh = make_mesh(MeshConfig(**sizes))
    params, data = on_mesh(mesh, parameters(), batch())
    x = data.pop("x")

    def loss(params, x, rest):
        return block(params, {"x": x, **rest}, mesh, implementation)

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (total, (nll, z, index)), (gradients, dx) = step(params, x, data)
    (total_1, (nll_1, z_1, index_1)), (gradients_1, dx_1) = single
    np.testing.assert_array_equal(index, index_1)
    assert abs(total / total_1 - 1) <= 2e-6
    assert relative(nll, nll_1) <= 2e-6
    assert relative(z, z_1) <= 2e-6
    assert relative(dx, dx_1) <= 1e-5
    for name in AXES:
        assert relative(gradients[name], gradients_1[name]) <= 1e-5, name


def test_batch_that_the_ranks_do_not_divide():
    mesh = make_mesh(MeshConfig(data=2, expert=2, tensor=2))
    data = batch(rows=1)
    expected = jax.jit(lambda p, b: block(p, b, None))(parameters(), data)
    found = jax.jit(lambda p, b: block(p, b, mesh))(parameters(), data)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        assert np.max(np.abs(a - b)) <= 2e-6 * np.max(np.abs(b))


def test_target_outside_the_vocabulary_is_nan_on_every_mesh():
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=4))
    data = batch()
    data["targets"] = data["targets"].at[3, 3].set(V)
    total, (nll, _, _) = jax.jit(lambda p, b: block(p, b, mesh))(parameters(), data)
    assert np.isnan(total)
    assert np.argwhere(np.isnan(nll)).tolist() == [[3, 3]]


COLLECTIVE = re.compile(r"= .*? (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Replicas exchange nothing but gradients.
        ({"data": 8}, {"all-reduce": 1}),
        # The output, and the input's gradient.
        ({"tensor": 8}, {"all-reduce": 2}),
        # Weights are gathered, their gradients scattered; rows stay.
        ({"fsdp": 8}, {"all-gather": 3, "reduce-scatter": 3}),
    ],
)
def test_collectives_are_those_meant(sizes, expected):
    mesh = make_mesh(MeshConfig(**sizes))
    params, data = on_mesh(mesh, parameters(), batch())
    compute = partial(feed_forward, activation="swiglu", compute_dtype=jnp.float32)

    def loss(params, x):
        y = sharded_feed_forward(x, params["gate"], params["up"], params["down"], mesh=mesh, compute=compute)
        return jnp.sum(y * y)

    used = {name: params[name] for name in ("gate", "up", "down")}
    shardings = {name: value.sharding for name, value in used.items()}, data["x"].sharding
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1)), out_shardings=shardings).lower(used, data["x"]).compile()
    found = Counter(COLLECTIVE.findall(compiled.as_text() or ""))
    assert set(found) == set(expected)
    assert all(found[kind] <= most for kind, most in expected.items()), found
