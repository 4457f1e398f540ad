"""The decoder against a plain NumPy decoder, and the loss against a loop over its logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import PrecisionConfig, RematConfig
from maxtrain.core.errors import UserError
from maxtrain.model import Model

LENGTH = 12
ROWS = [[5, 4], [12], [3, 2, 3], []]


@pytest.fixture(scope="module", params=["dense", "softmax", "sigmoid"])
def model(request, options):
    return Model(options[request.param], scan_unroll=1)


@pytest.fixture(scope="module")
def params(model):
    params = jax.jit(model.init)(jax.random.key(3))
    # Norms away from one, so that a norm left out shows.
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: (
            leaf * (1 + 0.2 * jnp.sin(jnp.arange(leaf.size).reshape(leaf.shape))) if "scale" in str(path) else leaf
        ),
        params,
    )


def documents(batch):
    """(row, slice) of every document."""
    for row, segments in enumerate(np.asarray(batch["segment_ids"])):
        for segment in range(1, segments.max() + 1):
            where = np.flatnonzero(segments == segment)
            yield row, slice(where[0], where[-1] + 1)


def test_logits_and_loss_equal_a_plain_decoder_on_each_document_alone(
    model, params, make_batch, naive_logits, expert_bias
):
    """Causality, segments, windows, packing, routing, statistics and the loss, all against one oracle."""
    config, batch, bias = model.config, make_batch(ROWS, LENGTH), expert_bias(model)
    total, aux = jax.jit(model.loss)(params, batch, expert_bias=bias)
    logits = jax.jit(model.logits)(
        params, batch["tokens"], segment_ids=batch["segment_ids"], positions=batch["positions"], expert_bias=bias
    )
    assert np.isfinite(logits).all()
    nll, load = np.zeros(len(ROWS)), np.zeros(bias.shape)
    for row, part in documents(batch):
        expected, picks = naive_logits(config, params, batch["tokens"][row, part], bias)
        np.testing.assert_allclose(logits[row, part], expected, rtol=2e-5, atol=2e-5)
        for t in range(part.start, part.stop):
            scores = expected[t - part.start]
            loss = np.log(np.exp(scores).sum()) - scores[batch["targets"][row, t]]
            nll[row] += float(batch["weights"][row, t]) * loss
        for layer, tokens in enumerate(picks):
            for chosen in tokens:
                load[layer, list(chosen)] += 1
    np.testing.assert_allclose(aux.nll_B, nll, rtol=1e-5)
    np.testing.assert_array_equal(aux.weight_B, [7, 11, 5, 0])
    np.testing.assert_array_equal(aux.expert_load, load)
    extra = 0.0
    if config.moe:
        extra = config.moe.balance_weight * aux.balance_sum + config.moe.z_weight * aux.router_z_sum
    np.testing.assert_allclose(total, nll.sum() + extra, rtol=1e-5)


def test_fast_kernels_equal_the_reference(model, params, make_batch, expert_bias):
    batch, bias = make_batch(ROWS, LENGTH), expert_bias(model)
    plain = Model(model.config, kernels="reference")
    grads = [jax.jit(jax.grad(lambda p, m=m: m.loss(p, batch, expert_bias=bias)[0]))(params) for m in (model, plain)]
    for fast, slow in zip(*map(jax.tree.leaves, grads), strict=True):
        assert np.linalg.norm(fast - slow) <= 1e-5 * np.linalg.norm(slow)


def test_parts_that_come_later_are_refused(make_config):
    with pytest.raises(UserError, match=r"model\.attention: mla"):
        Model(make_config(attention="mla"))
    with pytest.raises(UserError, match=r"model\.num_mtp: 1"):
        Model(make_config(num_mtp=1))


class TestNumerics:
    def test_gradient_equals_finite_differences(self, options, make_batch):
        model = Model(options["sigmoid"])
        params = model.init(jax.random.key(1))
        batch, bias = make_batch([[7, 5]], LENGTH), model.expert_bias()
        loss = jax.jit(lambda p: model.loss(p, batch, expert_bias=bias)[0])
        direction = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape), params)
        scale = 1e-2 / np.sqrt(sum(float((d * d).sum()) for d in jax.tree.leaves(direction)))
        moved = [jax.tree.map(lambda p, d, s=s: p + s * scale * d, params, direction) for s in (1, -1)]
        measured = (loss(moved[0]) - loss(moved[1])) / (2 * scale)
        grad = jax.grad(loss)(params)
        exact = sum(
            float((g * d).sum()) for g, d in zip(jax.tree.leaves(grad), jax.tree.leaves(direction), strict=True)
        )
        assert measured == pytest.approx(exact, rel=1e-2)

    def test_bfloat16_stays_near_float32_and_keeps_float32_gradients(self, options, make_batch):
        config, batch = options["softmax"], make_batch(ROWS, LENGTH)
        precision = PrecisionConfig(compute="bfloat16", activations="bfloat16")
        exact, rounded = Model(config), Model(config, precision=precision)
        params = exact.init(jax.random.key(0))
        (first, _), (second, _) = (
            jax.jit(m.loss)(params, batch, expert_bias=m.expert_bias()) for m in (exact, rounded)
        )
        assert second == pytest.approx(first, rel=0.02)
        assert second != first
        grads = jax.jit(jax.grad(lambda p: rounded.loss(p, batch, expert_bias=rounded.expert_bias())[0]))(params)
        assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}


class TestAccumulation:
    def test_microbatches_add_up(self, options, make_batch):
        """Total, its gradient and every sum of a batch are those of its parts, dropout included."""
        config = options["sigmoid"].model_copy(update={"dropout": 0.25})
        model = Model(config)
        params, bias = model.init(jax.random.key(0)), model.expert_bias()
        batch, keys = make_batch(ROWS, LENGTH), jax.random.split(jax.random.key(5), 4)
        step = jax.jit(jax.value_and_grad(model.loss, has_aux=True))

        def run(rows):
            part = {name: value[rows] for name, value in batch.items()}
            return step(params, part, expert_bias=bias, row_keys=keys[rows])

        whole = run(slice(0, 4))
        first, second = run(slice(0, 2)), run(slice(2, 4))
        (total, aux), grads = whole
        assert total == pytest.approx(first[0][0] + second[0][0], rel=1e-6)
        for field, value in aux._asdict().items():
            parts = [getattr(half[0][1], field) for half in (first, second)]
            joined = np.concatenate(parts) if field in ("nll_B", "weight_B") else parts[0] + parts[1]
            np.testing.assert_allclose(joined, value, rtol=1e-5, atol=1e-6)
        for g, a, b in zip(*map(jax.tree.leaves, (grads, first[1], second[1])), strict=True):
            assert np.linalg.norm(g - (a + b)) <= 1e-5 * np.linalg.norm(g)

    def test_dropout_drops_the_stated_share_and_only_with_keys(self, make_config, make_batch):
        model = Model(make_config(dropout=0.5))
        params, batch = model.init(jax.random.key(0)), make_batch(ROWS, LENGTH)
        run = jax.jit(model.loss)
        losses = [
            float(run(params, batch, expert_bias=model.expert_bias(), row_keys=keys)[0])
            for keys in (None, None, *(jax.random.split(jax.random.key(seed), 4) for seed in (1, 1, 2)))
        ]
        assert losses[0] == losses[1]
        assert losses[2] == losses[3]
        assert len(set(losses)) == 3


class TestRematAndScan:
    def test_no_choice_of_remat_or_unrolling_changes_statistics_or_gradients(self, options, make_batch):
        """Auxiliary losses and loads are counted once: the scanned, recomputed sum is the unrolled one."""
        batch = make_batch(ROWS, LENGTH)
        config = options["sigmoid"].model_copy(update={"num_layers": 6})
        bias = Model(config).expert_bias()
        params = Model(config).init(jax.random.key(0))

        def run(policy, unroll):
            model = Model(config, remat=RematConfig(policy=policy), scan_unroll=unroll)
            return jax.jit(jax.value_and_grad(model.loss, has_aux=True))(params, batch, expert_bias=bias)

        (total, aux), grads = run("none", 6)
        assert aux.balance_sum > 0
        assert aux.router_z_sum > 0
        for policy, unroll in (("full", 2), ("save_attention", 2), ("save_dots", 4), ("none", 1)):
            (other_total, other_aux), other_grads = run(policy, unroll)
            assert other_total == pytest.approx(total, rel=1e-6)
            for mine, theirs in zip(aux, other_aux, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5)
            for g, h in zip(jax.tree.leaves(grads), jax.tree.leaves(other_grads), strict=True):
                assert np.linalg.norm(g - h) <= 1e-5 * np.linalg.norm(g)
