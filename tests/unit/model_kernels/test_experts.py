import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from maxtrain.model.kernels.experts import block_rows_for, lay_out, sort_by_expert
from maxtrain.model.kernels.experts import experts as experts_function

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


def with_gradients(compute, arguments, dy):
    def run(*arguments):
        y, pull = jax.vjp(compute, *arguments)
        return y, jax.tree.leaves(pull(dy))

    return jax.jit(run)(*arguments)


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
    (y, fast), (y_slow, slow) = (
        with_gradients(
            lambda x, w, *a, implementation=implementation: experts(x, index, w, a, implementation),
            (x, weight, gate, up, down),
            dy,
        )
        for implementation in ("auto", "reference")
    )
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(y_slow, expected, atol=1e-5)
    assert_close(fast, slow)


@pytest.mark.parametrize("activation", ["geglu", "relu2"])
def test_other_activations(activation):
    x, weight, gate, up, down, dy = inputs(activation)
    index = routing("padding")
    results = [
        with_gradients(
            lambda x, w, g, u, d, implementation=implementation: experts(
                x, index, w, (g, u, d), implementation, activation=activation
            ),
            (x, weight, gate, up, down),
            dy,
        )
        for implementation in ("auto", "reference")
    ]
    assert_close([results[0][0], *results[0][1]], [results[1][0], *results[1][1]])


def test_shards_of_experts_add_up():
    x, weight, gate, up, down, dy = inputs()
    index = routing("padding")
    half = E // 2

    @jax.jit
    def share(first, gate, up, down):
        return with_gradients(
            lambda x, w, *a: experts(x, index, w, a, "auto", first_expert=first), (x, weight, gate, up, down), dy
        )

    whole, gradients = with_gradients(lambda x, w, *a: experts(x, index, w, a, "auto"), (x, weight, gate, up, down), dy)
    (y0, g0), (y1, g1) = (share(f, gate[f : f + half], up[f : f + half], down[f : f + half]) for f in (0, half))
    assert_close([y0 + y1, g0[0] + g1[0], g0[1] + g1[1]], [whole, *gradients[:2]])
    assert_close([jnp.concatenate(pair) for pair in zip(g0[2:], g1[2:], strict=True)], gradients[2:])


def test_rows_of_no_expert_are_never_read():
    x, weight, gate, up, down, dy = inputs()
    index = routing("padding")
    poisoned = x.at[60:].set(jnp.nan)
    for implementation in ("auto", "reference"):
        run = lambda x, w, *a, implementation=implementation: experts(x, index, w, a, implementation)  # noqa: E731
        y, gradients = with_gradients(run, (poisoned, weight, gate, up, down), dy)
        y_clean, clean = with_gradients(run, (x, weight, gate, up, down), dy)
        np.testing.assert_array_equal(y, y_clean)
        for a, b in zip(gradients, clean, strict=True):
            np.testing.assert_array_equal(a, b)


def test_only_real_blocks_are_worked_through():
    """The trip count is the real load: with no row routed here, no block runs."""
    x, weight, gate, up, down, _ = inputs()
    counted = []

    def run(index):
        text = jax.jit(lambda index: experts(x, index, weight, (gate, up, down), "auto")).lower(index).as_text()
        counted.append(text.count("stablehlo.while"))
        order = sort_by_expert(index, E)
        return int(lay_out(order, TOP_K, 16).first_E[-1])

    assert run(routing("nobody")) == 0
    assert run(routing("one")) == -(-N // 16)
    assert counted[0] >= 2


@pytest.mark.parametrize("kind", ["random", "one", "empty_expert", "padding", "nobody"])
def test_layout_gives_each_choice_a_place_of_its_own(kind):
    index = routing(kind)
    blocks = lay_out(sort_by_expert(index, E), TOP_K, 16)
    flat, position = np.asarray(index).reshape(-1), np.asarray(blocks.position_Nk).reshape(-1)
    choice, first = np.asarray(blocks.choice_P), np.asarray(blocks.first_E)
    for m in np.flatnonzero(flat >= 0):
        assert choice[position[m]] == m
        assert first[flat[m]] <= position[m] // 16 < first[flat[m] + 1]
    assert (position[flat < 0] == choice.size).all()
    assert (choice < flat.size).sum() == (flat >= 0).sum()


def test_block_rows_follow_the_load():
    assert [block_rows_for(rows, 128) for rows in (0, 31, 64, 300, 100_000)] == [16, 16, 32, 128, 128]


def test_repeats_bit_for_bit():
    x, weight, gate, up, down, dy = inputs()
    index = routing("random")
    run = jax.jit(lambda *a: with_gradients(lambda x, w, *b: experts(x, index, w, b, "auto"), a, dy))
    for a, b in zip(
        jax.tree.leaves(run(x, weight, gate, up, down)), jax.tree.leaves(run(x, weight, gate, up, down)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_differentiates_inside_a_checkpointed_scan():
    x, weight, gate, up, down, _ = inputs()
    index = routing("random")
    stacked = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), (gate, up, down))

    def loss(stacked, implementation):
        layer = jax.checkpoint(lambda x, w: x + experts(x, index, weight, w, implementation))
        return jnp.sum(jnp.square(lax.scan(lambda x, w: (layer(x, w), None), x, stacked)[0]))

    assert_close(*(jax.tree.leaves(jax.grad(loss)(stacked, i)) for i in ("auto", "reference")))
