"""The decoder against a plain NumPy decoder that sees each document alone, and what may not change a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.config.schema import MoeConfig, PrecisionConfig, RematConfig
from maxtrain.core.errors import UserError
from maxtrain.model import Model

LENGTH = 12
ROWS = [[5, 4], [12], [3, 2, 3], []]


@pytest.fixture(scope="module")
def init():
    """Parameters with norms away from one, so that a norm left out shows."""

    def make(model):
        params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(3)))
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                (1 + 0.2 * np.sin(np.arange(leaf.size))).reshape(leaf.shape).astype(np.float32)
                if "scale" in str(path)
                else leaf
            ),
            params,
        )

    return make


def documents(batch):
    """(row, slice) of every document."""
    for row, segments in enumerate(np.asarray(batch["segment_ids"])):
        for segment in range(1, segments.max() + 1):
            where = np.flatnonzero(segments == segment)
            yield row, slice(where[0], where[-1] + 1)


@pytest.mark.parametrize("name", ["dense", "softmax", "sigmoid"])
def test_loss_equals_a_loop_over_documents(name, options, init, make_batch, naive_logits, expert_bias):
    """Causality, segments, windows, packing, routing, counts and the loss against one oracle, option by option."""
    config, batch = options[name], make_batch(ROWS, LENGTH)
    model = Model(config, scan_unroll=1)
    params, bias = init(model), expert_bias(model)
    total, aux = jax.jit(model.loss)(params, batch, expert_bias=bias)
    nll, z, load = np.zeros(len(ROWS)), 0.0, np.zeros(bias.shape)
    for row, part in documents(batch):
        expected, picks = naive_logits(config, params, batch["tokens"][row, part], bias)
        weights = np.asarray(batch["weights"][row, part], np.float64)
        log_sum = np.log(np.exp(expected).sum(-1))
        chosen = expected[np.arange(len(expected)), batch["targets"][row, part]]
        nll[row] += weights @ (log_sum - chosen)
        z += weights @ log_sum**2
        for layer, tokens in enumerate(picks):
            for experts in tokens:
                load[layer, list(experts)] += 1
    np.testing.assert_allclose(aux.nll_B, nll, rtol=1e-5)
    np.testing.assert_allclose(aux.z_sum, z, rtol=1e-5)
    np.testing.assert_array_equal(aux.weight_B, [7, 11, 5, 0])
    np.testing.assert_array_equal(aux.expert_load, load)
    extra = config.z_weight * z
    if config.moe:
        assert aux.balance_sum > 0
        extra += config.moe.balance_weight * aux.balance_sum + config.moe.z_weight * aux.router_z_sum
    np.testing.assert_allclose(total, nll.sum() + extra, rtol=1e-5)


def test_a_row_without_weight_adds_nothing_though_its_loss_is_nan(options, init, make_batch):
    config, batch = options["dense"], make_batch(ROWS, LENGTH)
    model = Model(config, scan_unroll=1)
    loss = jax.jit(model.loss)
    unknown = np.where(np.asarray(batch["weights"]) == 0, 10**6, batch["targets"]).astype(np.int32)
    params = init(model)
    total, aux = loss(params, batch, expert_bias=model.expert_bias())
    total_unknown, aux_unknown = loss(params, {**batch, "targets": unknown}, expert_bias=model.expert_bias())
    np.testing.assert_array_equal(total, total_unknown)
    for name in ("nll_B", "z_sum"):
        np.testing.assert_array_equal(getattr(aux, name), getattr(aux_unknown, name))


def test_logits_equal_a_loop_over_documents(options, init, make_batch, naive_logits):
    config, batch = options["dense"], make_batch(ROWS, LENGTH)
    model = Model(config, scan_unroll=1)
    params = init(model)
    logits = jax.jit(model.logits)(
        params, batch["tokens"], segment_ids=batch["segment_ids"], positions=batch["positions"]
    )
    assert np.isfinite(logits).all()
    for row, part in documents(batch):
        expected, _ = naive_logits(config, params, batch["tokens"][row, part], None)
        np.testing.assert_allclose(logits[row, part], expected, rtol=2e-5, atol=2e-5)


def test_parts_that_come_later_are_refused(make_config):
    with pytest.raises(UserError, match=r"model\.attention: mla"):
        Model(make_config(attention="mla"))
    with pytest.raises(UserError, match=r"model\.num_mtp: 1"):
        Model(make_config(num_mtp=1))


def test_bfloat16_stays_near_float32_and_keeps_float32_gradients(options, init, make_batch):
    config, batch = options["softmax"], make_batch(ROWS, LENGTH)
    model = Model(config, precision=PrecisionConfig(compute="bfloat16", activations="bfloat16"), scan_unroll=1)
    params, bias = init(model), model.expert_bias()
    exact, rounded = (
        float(jax.jit(m.loss)(params, batch, expert_bias=bias)[0]) for m in (Model(config, scan_unroll=1), model)
    )
    assert rounded == pytest.approx(exact, rel=0.05)
    assert rounded != exact
    grads = jax.eval_shape(jax.grad(lambda p: model.loss(p, batch, expert_bias=bias)[0]), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}


def test_microbatches_add_up_with_dropout(options, init, make_batch):
    """The total and every sum of a batch are those of its parts: the masks follow the rows' keys."""
    model = Model(options["softmax"].model_copy(update={"dropout": 0.25, "z_weight": 0.1}), scan_unroll=1)
    params, batch = init(model), make_batch(ROWS, LENGTH)
    keys, other_keys = (jax.random.split(jax.random.key(seed), 4) for seed in (5, 6))
    loss = jax.jit(model.loss)

    def run(rows, keys=keys):
        part = {name: value[rows] for name, value in batch.items()}
        return loss(params, part, expert_bias=model.expert_bias(), row_keys=keys[rows])

    total, aux = run(slice(0, 4))
    halves = run(slice(0, 2)), run(slice(2, 4))
    assert float(total) == pytest.approx(sum(float(half[0]) for half in halves), rel=1e-6)
    sums = {name: value for name, value in aux._asdict().items() if name != "max_logits"}
    for field, value in sums.items():
        parts = [getattr(half[1], field) for half in halves]
        joined = np.concatenate(parts) if field in ("nll_B", "weight_B") else parts[0] + parts[1]
        np.testing.assert_allclose(joined, value, rtol=1e-5, atol=1e-6)
    assert float(run(slice(0, 4), other_keys)[0]) != float(total)


def test_scan_and_remat_change_neither_statistics_nor_gradients(make_config, init, make_batch):
    """Balance loss, router z-loss and load are counted once: scanned and recomputed they are the unrolled sums."""
    moe = MoeConfig(num_experts=4, top_k=2, d_expert=8, balance_weight=1.0, z_weight=0.1)
    config, batch = make_config(moe=moe, num_layers=2), make_batch(ROWS, LENGTH)
    params, bias = init(Model(config)), Model(config).expert_bias()
    results = []
    for remat, unroll in ((RematConfig(policy="none"), 2), (RematConfig(policy="full"), 1)):
        model = Model(config, remat=remat, scan_unroll=unroll, kernels="reference")
        results.append(jax.jit(jax.value_and_grad(model.loss, has_aux=True))(params, batch, expert_bias=bias))
    (first, grads), (second, other_grads) = results
    assert first[1].router_z_sum > 0
    for mine, theirs in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    for g, h in zip(jax.tree.leaves(grads), jax.tree.leaves(other_grads), strict=True):
        assert np.linalg.norm(g - h) <= 1e-5 * np.linalg.norm(g)


def count_exponentials(jaxpr):
    """Exponentials in a program, its inner programs included."""
    count = 0
    for equation in jaxpr.eqns:
        count += equation.primitive.name == "exp"
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, (list, tuple)) else [parameter]:
                inner = getattr(inner, "jaxpr", inner)
                count += count_exponentials(inner) if hasattr(inner, "eqns") else 0
    return count


def test_save_attention_spares_the_scores_of_a_real_layer(make_config, make_batch):
    """Only attention and the loss take exponentials here: kept by name, the forward scores are not computed again."""
    batch, counts = make_batch(ROWS, LENGTH), {}
    for policy in ("none", "full", "save_attention", "save_dots"):
        model = Model(make_config(num_layers=1), remat=RematConfig(policy=policy))
        gradient = jax.grad(lambda params, model=model: model.loss(params, batch, expert_bias=model.expert_bias())[0])
        counts[policy] = count_exponentials(jax.make_jaxpr(gradient)(model.abstract_params()).jaxpr)
    assert counts["none"] == counts["save_attention"] == counts["save_dots"] < counts["full"]


def test_remat_changes_no_bit_of_loss_statistics_and_gradients(make_config, init, make_batch):
    """Every leaf, as the recomputation is the same mathematics in the same order.

    Bits are compared without the compiler's optimisations: with them it fuses a recomputed value other than a kept
    one, and gradients differ by about 1e-7 of their norm.
    """
    moe = MoeConfig(num_experts=4, top_k=2, d_expert=8, balance_weight=1.0, z_weight=0.1)
    config, batch = make_config(moe=moe, num_layers=1, qk_norm=True), make_batch(ROWS, LENGTH)
    params, results = init(Model(config)), []
    options: dict[str, bool | str] = {
        "xla_backend_optimization_level": "0",
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": True,
    }
    for policy in ("none", "full"):
        model = Model(config, remat=RematConfig(policy=policy), kernels="reference")
        step = jax.jit(jax.value_and_grad(model.loss, has_aux=True))
        plain = step.lower(params, batch, expert_bias=model.expert_bias()).compile(options)
        results.append(plain(params, batch, expert_bias=model.expert_bias()))
    jax.tree.map(np.testing.assert_array_equal, *results)
