"""AdamW and Muon against their formulas."""

import jax
import numpy as np
import pytest

from maxtrain.config.schema import OptimizerConfig
from maxtrain.optim import group_of, make_optimizer

AXES = {
    "embedding/weight": ("vocab", "embed"),
    "layers/moe/attention/query": ("layers", "embed", "heads", "head_dim"),
    "layers/moe/attention/out": ("layers", "heads", "head_dim", "embed"),
    "layers/moe/experts/up": ("layers", "expert", "embed", "mlp"),
    "layers/moe/router/weight": ("layers", "embed", "router"),
    "layers/moe/attention_norm/scale": ("layers", "norm"),
    "output/weight": ("vocab", "embed"),
}
SHAPES = {
    "embedding/weight": (16, 8),
    "layers/moe/attention/query": (2, 8, 2, 4),
    "layers/moe/attention/out": (2, 2, 4, 8),
    "layers/moe/experts/up": (2, 3, 8, 12),
    "layers/moe/router/weight": (2, 8, 3),
    "layers/moe/attention_norm/scale": (2, 8),
    "output/weight": (16, 8),
}


def tree(make):
    nested: dict = {}
    for seed, (path, shape) in enumerate(SHAPES.items()):
        *parents, name = path.split("/")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = make(seed, shape)
    return nested


@pytest.fixture(scope="module")
def params():
    return tree(lambda seed, shape: jax.random.normal(jax.random.key(seed), shape))


@pytest.fixture(scope="module")
def grads():
    return tree(lambda seed, shape: jax.random.normal(jax.random.key(100 + seed), shape))


def test_groups():
    groups = [group_of(path, axes) for path, axes in AXES.items()]
    assert groups == ["embedding", "attention", "attention", "experts", "router", "norms", "output"]


@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_adamw_equals_its_formula(params, grads, decay_embeddings):
    config = OptimizerConfig(weight_decay=0.1, decay_embeddings=decay_embeddings)
    optimizer = make_optimizer(config, params, AXES)
    state = optimizer.init(params)
    for _ in range(3):
        direction, state = optimizer.update(grads, state, params)
    for path in SHAPES:
        keys = path.split("/")
        p, g, d = (np.float64(_at(t, keys)) for t in (params, grads, direction))
        m, v = (1 - 0.9**3) * g, (1 - 0.95**3) * g**2  # the same gradient three times
        expected = (m / (1 - 0.9**3)) / (np.sqrt(v / (1 - 0.95**3)) + 1e-8)
        exempt = "norm" in path or (not decay_embeddings and keys[0] in ("embedding", "output"))
        expected += 0 if exempt else 0.1 * p
        np.testing.assert_allclose(d, expected, rtol=2e-5, atol=2e-6)


def test_muon_orthogonalises_each_matrix_and_leaves_the_rest_to_adam(params, grads):
    optimizer = make_optimizer(OptimizerConfig(name="muon", weight_decay=0.0, muon_iterations=30), params, AXES)
    adam = make_optimizer(OptimizerConfig(weight_decay=0.0), params, AXES)
    direction, _ = optimizer.update(grads, optimizer.init(params), params)
    reference, _ = adam.update(grads, adam.init(params), params)
    for path, rows in [
        ("layers/moe/attention/query", 8),
        ("layers/moe/attention/out", 8),
        ("layers/moe/experts/up", 8),
    ]:
        update = np.asarray(_at(direction, path.split("/")), np.float64)
        update = update.reshape(
            -1, rows, update.size // rows // int(np.prod(update.shape[: 2 if "experts" in path else 1]))
        )
        for matrix in update:
            scale = 0.2 * max(matrix.shape) ** 0.5
            values = np.linalg.svd(matrix / scale, compute_uv=False)
            # Jordan's quintic does not converge to 1: it keeps singular values inside this band.
            assert values.min() > 0.6
            assert values.max() < 1.3
    for path in ("embedding/weight", "layers/moe/router/weight", "layers/moe/attention_norm/scale", "output/weight"):
        np.testing.assert_array_equal(_at(direction, path.split("/")), _at(reference, path.split("/")))


def _at(nested, keys):
    for key in keys:
        nested = nested[key]
    return nested


def test_a_missing_axis_entry_is_an_error(params):
    with pytest.raises(KeyError):
        make_optimizer(OptimizerConfig(), params, {})
