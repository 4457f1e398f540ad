from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from maxtrain.model.kernels.choices import sort_by_expert
from maxtrain.model.kernels.experts import block_rows_for, lay_out
from maxtrain.model.kernels.experts import experts as experts_function
from maxtrain.model.kernels.grouped_experts import backward_grouped, forward_grouped
from maxtrain.model.kernels.grouped_matmul import IN_BLOCKS

N, D, F, E, TOP_K = 90, 12, 20, 4, 2


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Whatever is read without being written is nan."""
    monkeypatch.setattr(
        "maxtrain.model.kernels.experts.unwritten", lambda shape, dtype: jnp.full(shape, jnp.nan, dtype)
    )


def inputs(activation="swiglu"):
    keys = jax.random.split(jax.random.key(0), 6)
    x, dy = jax.random.normal(keys[0], (N, D)), jax.random.normal(keys[1], (N, D))
    gate = None if activation == "relu2" else jax.random.normal(keys[2], (E, D, F)) * D**-0.5
    up, down = jax.random.normal(keys[3], (E, D, F)) * D**-0.5, jax.random.normal(keys[4], (E, F, D)) * F**-0.5
    return x, jax.random.uniform(keys[5], (N, TOP_K)), gate, up, down, dy


def routing(kind):
    index = np.array(jax.random.randint(jax.random.key(7), (N, TOP_K), 0, E), np.int32)
    index[:, 1] = (index[:, 0] + 1 + index[:, 1] % (E - 1)) % E
    if kind == "one":
        index[:, 0], index[:, 1] = 2, -1
    elif kind == "empty_expert":
        index[index == 1] = -1
    elif kind == "padding":
        index[60:] = -1
        index[10:20, 1] = -1
    elif kind == "nobody":
        index[:] = -1
    return jnp.asarray(index)


def experts(x, index, weight, weights, implementation, first_expert=0, activation="swiglu"):
    gate, up, down = weights
    return experts_function(
        x,
        index,
        weight,
        gate,
        up,
        down,
        first_expert=first_expert,
        activation=activation,
        compute_dtype=jnp.float32,
        implementation=implementation,
    )


@partial(jax.jit, static_argnames=("implementation", "activation"))
def with_gradients(x, index, weight, weights, dy, implementation, first_expert=0, activation="swiglu"):
    """y, then the gradients of x, of the routing weights, and of each expert matrix."""

    def compute(x, weight, weights):
        return experts(x, index, weight, weights, implementation, first_expert, activation)

    y, pull = jax.vjp(compute, x, weight, weights)
    return y, *jax.tree.leaves(pull(dy))


def assert_close(fast, slow):
    for a, b in zip(fast, slow, strict=True):
        assert np.isfinite(a).all()
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b) + 1e-30


@pytest.mark.parametrize("kind", ["random", "one", "empty_expert", "padding", "nobody"])
def test_value_and_gradients(kind):
    x, weight, gate, up, down, dy = inputs()
    index = routing(kind)
    expected = np.zeros((N, D))
    for n, j in np.argwhere(np.asarray(index) >= 0):
        e = int(index[n, j])
        row, g = np.asarray(x[n], np.float64), np.asarray(x[n], np.float64) @ np.asarray(gate[e])
        expected[n] += float(weight[n, j]) * ((g / (1 + np.exp(-g)) * (row @ np.asarray(up[e]))) @ np.asarray(down[e]))
    fast, slow = (with_gradients(x, index, weight, (gate, up, down), dy, i) for i in ("auto", "reference"))
    np.testing.assert_allclose(fast[0], expected, atol=1e-5)
    np.testing.assert_allclose(slow[0], expected, atol=1e-5)
    assert_close(fast, slow)


@pytest.mark.parametrize("activation", ["geglu", "relu2"])
def test_other_activations(activation):
    x, weight, *weights, dy = inputs(activation)
    arguments = x, routing("padding"), weight, tuple(weights), dy
    assert_close(*(with_gradients(*arguments, i, activation=activation) for i in ("auto", "reference")))


def test_shards_of_experts_add_up():
    x, weight, *weights, dy = inputs()
    index = routing("padding")
    whole = with_gradients(x, index, weight, tuple(weights), dy, "auto")
    low, high = (
        with_gradients(x, index, weight, tuple(w[f : f + E // 2] for w in weights), dy, "auto", first_expert=f)
        for f in (0, E // 2)
    )
    assert_close([a + b for a, b in zip(low[:3], high[:3], strict=True)], whole[:3])
    assert_close([jnp.concatenate(pair) for pair in zip(low[3:], high[3:], strict=True)], whole[3:])


@partial(jax.jit, static_argnames=("activation",))
def grouped_with_gradients(x, index, weight, weights, dy, activation="swiglu"):
    """As CUDA and TPU go about it, on products that run here."""
    how = {"activation": activation, "compute_dtype": jnp.float32}
    arguments = x, sort_by_expert(index, E), weight, weights
    y, kept = forward_grouped(IN_BLOCKS, *arguments, num_kept=N * TOP_K + 33, **how)
    return y, *jax.tree.leaves(backward_grouped(IN_BLOCKS, *arguments, kept, dy, **how))


@pytest.mark.parametrize("kind", ["random", "one", "padding", "nobody"])
def test_grouped_products_equal_the_reference(kind):
    x, weight, gate, up, down, dy = inputs()
    index = routing(kind)
    none = (index < 0).all(axis=1)[:, None]
    arguments = index, weight, (gate, up, down)
    found = grouped_with_gradients(jnp.where(none, jnp.nan, x), *arguments, jnp.where(none, jnp.nan, dy))
    assert_close(found, with_gradients(x, *arguments, dy, "reference"))


def test_grouped_products_of_another_activation():
    x, weight, *weights, dy = inputs("relu2")
    arguments = x, routing("random"), weight, tuple(weights), dy
    found = grouped_with_gradients(*arguments, activation="relu2")
    assert_close(found, with_gradients(*arguments, "reference", activation="relu2"))


def test_rows_of_no_expert_are_never_read():
    x, weight, *weights, dy = inputs()
    for implementation in ("auto", "reference"):
        rest = routing("padding"), weight, tuple(weights), dy, implementation
        for a, b in zip(with_gradients(x.at[60:].set(jnp.nan), *rest), with_gradients(x, *rest), strict=True):
            np.testing.assert_array_equal(a, b)


def test_experts_without_rows_are_never_worked_through():
    x, weight, *weights, dy = inputs()
    index = routing("one")
    poisoned = tuple(w.at[jnp.array([0, 1, 3])].set(jnp.nan) for w in weights)
    found = with_gradients(x, index, weight, poisoned, dy, "auto")
    for a, b in zip(found, with_gradients(x, index, weight, tuple(weights), dy, "auto"), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all((gradient[jnp.array([0, 1, 3])] == 0).all() for gradient in found[3:])


@pytest.mark.parametrize("kind", ["random", "one", "empty_expert", "padding", "nobody"])
def test_layout_gives_each_choice_a_place_of_its_own(kind):
    index = routing(kind)
    blocks = lay_out(sort_by_expert(index, E), N, TOP_K, 16)
    flat, position = np.asarray(index).reshape(-1), np.asarray(blocks.position_Nk).reshape(-1)
    choice, first = np.asarray(blocks.choice_P), np.asarray(blocks.first_E)
    for m in np.flatnonzero(flat >= 0):
        assert choice[position[m]] == m
        assert first[flat[m]] <= position[m] // 16 < first[flat[m] + 1]
    assert (position[flat < 0] == choice.size).all()
    assert (choice < flat.size).sum() == (flat >= 0).sum()


def test_a_bound_on_the_choices_saves_positions_and_changes_nothing():
    x, weight, *weights, _ = inputs()
    index = routing("padding")
    most = int((index >= 0).sum())
    compute = partial(experts_function, x, index, weight, *weights, activation="swiglu", compute_dtype=jnp.float32)
    assert lay_out(sort_by_expert(index, E, most), N, TOP_K, 16).choice_P.size < N * TOP_K
    for bound in (most, 10 * N):
        np.testing.assert_allclose(compute(most_choices=bound), compute(), rtol=1e-5, atol=1e-6)


def test_block_rows_follow_the_load():
    assert [block_rows_for(rows, 128) for rows in (0, 31, 64, 300, 100_000)] == [16, 16, 32, 128, 128]


def test_repeats_bit_for_bit():
    x, weight, *weights, dy = inputs()
    runs = [with_gradients(x, routing("random"), weight, tuple(weights), dy, "auto") for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_differentiates_inside_a_checkpointed_scan():
    x, weight, gate, up, down, _ = inputs()
    index = routing("random")
    stacked = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), (gate, up, down))

    def loss(stacked, implementation):
        layer = jax.checkpoint(lambda x, w: x + experts(x, index, weight, w, implementation))
        return jnp.sum(jnp.square(lax.scan(lambda x, w: (layer(x, w), None), x, stacked)[0]))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    assert_close(*(jax.tree.leaves(gradient(stacked, i)) for i in ("auto", "reference")))


def test_bfloat16_operands_accumulate_in_float32():
    x, weight, *weights, dy = inputs()
    index = routing("random")

    def run(x, weight, weights, dtype):
        compute = partial(experts_function, activation="swiglu", compute_dtype=dtype)
        return jnp.sum(compute(x, index, weight, *weights) * dy)

    gradient = jax.jit(jax.grad(run, argnums=(0, 1, 2)), static_argnums=3)
    low, high = (jax.tree.leaves(gradient(x, weight, tuple(weights), dtype)) for dtype in (jnp.bfloat16, jnp.float32))
    for a, b in zip(low, high, strict=True):
        assert a.dtype == jnp.float32
        assert 0 < np.linalg.norm(a - b) < 1e-2 * np.linalg.norm(b)
