import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels.feed_forward import feed_forward

D, F = 24, 40


def inputs(rows, activation, seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    x, dy = jax.random.normal(keys[0], (rows, D)), jax.random.normal(keys[1], (rows, D))
    gate = None if activation == "relu2" else jax.random.normal(keys[2], (D, F)) * D**-0.5
    up, down = jax.random.normal(keys[3], (D, F)) * D**-0.5, jax.random.normal(keys[4], (F, D)) * F**-0.5
    return (x, gate, up, down), dy


def by_hand(arguments, activation):
    x, gate, up, down = arguments
    x, up, down = (np.asarray(a, np.float64) for a in (x, up, down))
    if activation == "relu2":
        return np.maximum(x @ up, 0) ** 2 @ down
    g = x @ np.asarray(gate, np.float64)
    if activation == "swiglu":
        return (g / (1 + np.exp(-g)) * (x @ up)) @ down
    return (0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * (x @ up)) @ down


@pytest.mark.parametrize(("activation", "rows"), [("swiglu", 1), ("swiglu", 512), ("geglu", 700), ("relu2", 700)])
def test_value_and_gradients(activation, rows):
    arguments, dy = inputs(rows, activation)

    def run(implementation):
        def compute(*arguments):
            return feed_forward(
                *arguments, activation=activation, compute_dtype=jnp.float32, implementation=implementation
            )

        y, pull = jax.vjp(compute, *arguments)
        return y, [g for g in pull(dy) if g is not None]

    run = jax.jit(run, static_argnums=0)
    y, fast = run("auto")
    y_reference, slow = run("reference")
    expected = by_hand(arguments, activation)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(y_reference, expected, atol=1e-5)
    assert len(fast) == (3 if activation == "relu2" else 4)
    for a, b in zip(fast, slow, strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


def test_of_the_hidden_activations_the_pre_activations_alone_are_kept():
    arguments, _ = inputs(700, "swiglu")
    _, pull = jax.vjp(
        lambda *a: feed_forward(*a, activation="swiglu", compute_dtype=jnp.float32, implementation="auto"), *arguments
    )
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size"))
    assert kept <= sum(a.size for a in arguments if a is not None) + 2 * 700 * arguments[1].shape[1]


def test_bfloat16_operands_accumulate_in_float32():
    arguments, dy = inputs(700, "swiglu")

    def gradients(dtype):
        _, pull = jax.vjp(lambda *a: feed_forward(*a, activation="swiglu", compute_dtype=dtype), *arguments)
        return pull(dy)

    gradients = jax.jit(gradients, static_argnums=0)
    for low, high in zip(gradients(jnp.bfloat16), gradients(jnp.float32), strict=True):
        assert low.dtype == jnp.float32
        assert 0 < np.linalg.norm(low - high) < 1e-2 * np.linalg.norm(high)
