"""One step: accumulation, the guard, counters, metrics."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtrain.checkpoint import CheckpointStore
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import OptimizerConfig
from maxtrain.core.trees import leaf_paths
from maxtrain.monitor.schema import check_line
from maxtrain.optim import make_optimizer
from maxtrain.train.metrics import make_line_builder
from maxtrain.train.parts import build_parts
from maxtrain.train.state import abstract_state, dropout_keys, from_saved, to_saved
from maxtrain.train.step import batch_gradients


@pytest.fixture(scope="module")
def parts_of(make_config):
    @functools.cache
    def build(key: str):
        variants: dict[str, dict] = {
            "plain": {},
            "bias": {"model": {"moe": {"balance": "bias", "bias_rate": 0.01}}, "guard": {"max_grad_norm": 1e3}},
            "bounded": {"guard": {"max_grad_norm": 1e-6}, "optimizer": {"clip_norm": None}},
            "remat": {"remat": {"policy": "full"}},
            "dropout": {"model": {"dropout": 0.2}},
        }
        config = make_config(**variants[key])
        return config, build_parts(config, plan_batches(config), num_domains=2)

    return build


def relative(a, b) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not np.any(b):
        return float(np.abs(a).max())
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def worst(a, b) -> float:
    return max(jax.tree.leaves(jax.tree.map(relative, a, b)))


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def gradients(parts_of, make_batch):
    @functools.cache
    def compute(key: str, num_micro: int):
        config, parts = parts_of(key)
        state = parts.create_state(0)

        @jax.jit
        def function(params, batch, bias):
            keys = None
            if config.model.dropout:
                keys = dropout_keys(config.run.seed, jnp.int32(5), 8).reshape(num_micro, 8 // num_micro)
            return batch_gradients(parts.model, params, batch, bias, keys)

        return jax.device_get(function(state.params, make_batch(num_micro=num_micro), state.expert_bias))

    return compute


@pytest.mark.parametrize("num_micro", [2, 4])
def test_accumulation_changes_nothing(gradients, num_micro):
    grads, total, aux = gradients("dropout", num_micro)
    whole_grads, whole_total, whole_aux = gradients("dropout", 1)
    assert relative(total, whole_total) < 2e-6
    assert worst(grads, whole_grads) < 1e-5
    np.testing.assert_array_equal(aux.weight_B, whole_aux.weight_B)
    np.testing.assert_array_equal(aux.expert_load, whole_aux.expert_load)
    np.testing.assert_allclose(aux.nll_B, whole_aux.nll_B, rtol=1e-5)


def test_dropout_is_drawn(gradients):
    assert relative(gradients("dropout", 1)[1], gradients("plain", 1)[1]) > 1e-4


def test_remat_changes_no_bit(gradients):
    grads, total, _ = gradients("remat", 1)
    whole_grads, whole_total, _ = gradients("plain", 1)
    assert total == whole_total
    assert worst(grads, whole_grads) < 1e-6


def test_counters_and_learning_rate(parts_of, make_batch):
    _, parts = parts_of("plain")
    state = parts.create_state(0)
    for step in range(1, 4):
        state, metrics = parts.train_step(state, make_batch(step))
        assert (int(state.step), int(state.updates), int(state.skips)) == (step, step, 0)
        assert float(metrics["lr"]) == pytest.approx(3e-3 * step / 4)
        assert not metrics["skipped"]
        assert float(metrics["loss"]) == pytest.approx(
            sum(float(metrics[name]) for name in ("cross_entropy", "z_loss", "balance_loss", "router_z_loss")), rel=1e-6
        )


def spoil(batch, how: str):
    if how == "nan":
        return {**batch, "weights": batch["weights"].at[0, 0, 0].set(jnp.nan)}
    return {**batch, "weights": jnp.zeros_like(batch["weights"])}


@pytest.mark.parametrize("how", ["nan", "empty"])
@pytest.mark.parametrize("key", ["plain", "bias"])
def test_a_skipped_step_equals_one_that_never_was(parts_of, make_batch, key, how):
    _, parts = parts_of(key)
    state, _ = parts.train_step(parts.create_state(0), make_batch(1))
    before = jax.device_get(state)
    state, metrics = parts.train_step(state, spoil(make_batch(2), how))
    after = jax.device_get(state)
    assert metrics["skipped"]
    assert int(metrics["skips_in_a_row"]) == 1
    assert float(metrics["update_norm"]) == 0
    assert bits(before[:3]) == bits(after[:3])  # parameters, optimizer state, expert bias
    assert (after.step, after.updates) == (before.step + 1, before.updates)
    state, metrics = parts.train_step(state, make_batch(3))
    assert (int(state.updates), int(state.skips)) == (2, 0)
    assert float(metrics["lr"]) == pytest.approx(3e-3 * 2 / 4)


def test_a_gradient_over_the_bound_is_skipped(parts_of, make_batch):
    _, parts = parts_of("bounded")
    state = parts.create_state(0)
    before = bits(state[:3])
    state, metrics = parts.train_step(state, make_batch())
    assert metrics["skipped"]
    assert np.isfinite(metrics["loss"])
    assert bits(state[:3]) == before


def test_expert_bias_moves_against_the_load(parts_of, make_batch):
    _, parts = parts_of("bias")
    state, metrics = parts.train_step(parts.create_state(0), make_batch())
    load = np.asarray(metrics["expert_load"])
    expected = 0.01 * np.sign(load.mean(-1, keepdims=True) - load)
    np.testing.assert_allclose(state.expert_bias, expected, rtol=1e-6)
    tokens = float(metrics["tokens"])
    np.testing.assert_array_equal(load.sum(-1), [2 * tokens] * 2)  # top-2, padding not counted


def test_metrics_by_domain_and_group(parts_of, make_batch):
    _, parts = parts_of("plain")
    batch = make_batch()
    _, metrics = parts.train_step(parts.create_state(0), batch)
    weights, domain = np.asarray(batch["weights"][0]), np.asarray(batch["domain"][0])
    for number in (0, 1):
        assert metrics["tokens_by_domain"][number] == weights[domain == number].sum()
    mean = np.average(metrics["loss_by_domain"], weights=metrics["tokens_by_domain"])
    assert float(metrics["cross_entropy"]) == pytest.approx(mean, rel=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(np.linalg.norm(metrics["grad_norm_by_group"]), rel=1e-6)


def test_clipping_scales_the_whole_gradient(parts_of, gradients, make_batch):
    # Adam is blind to a common factor, so its first moment tells: a tenth of the clipped gradient.
    _, parts = parts_of("plain")
    sums, _, aux = gradients("plain", 1)
    state, metrics = parts.train_step(parts.create_state(0), make_batch())
    norm = float(metrics["grad_norm"])
    assert norm > 0.25
    moments = to_saved(state, parts.model)["opt_state"]
    for name in ("embedding/weight", "output/weight", "final_norm/scale"):
        first, second = name.split("/")
        expected = 0.1 * 0.25 * sums[first][second] / aux.weight_B.sum() / norm
        np.testing.assert_allclose(moments[f"mu/{name}"], expected, rtol=1e-4, atol=1e-9)


def test_saved_form_is_plain_and_comes_back(parts_of):
    _, parts = parts_of("plain")
    state = parts.create_state(0)
    saved = to_saved(state, parts.model)
    assert set(saved) == {"params", "opt_state", "expert_bias", "step", "updates", "skips"}
    parameters = [spec.path for spec in parts.model.table]
    assert set(saved["opt_state"]) == {"count", *(f"{slot}/{path}" for slot in ("mu", "nu") for path in parameters)}
    back = from_saved(saved, parts.abstract_state, parts.model)
    jax.tree.map(lambda a, b: None, back, state)  # raises where the structures differ
    assert bits(back) == bits(state)


@pytest.fixture(scope="module")
def rounded(make_config):
    """Muon with everything that can be in bfloat16, rounded at random."""
    config = make_config(
        optimizer={"name": "muon", "mu_dtype": "bfloat16", "nu_dtype": "bfloat16", "stochastic_rounding": True},
        precision={"parameters": "bfloat16"},
    )
    return build_parts(config, plan_batches(config), num_domains=2)


def test_bfloat16_state_resumes_bit_for_bit(rounded, make_batch, tmp_path):
    def train(state, steps):
        for step in steps:
            state, metrics = rounded.train_step(state, make_batch(step))
        return state, metrics

    state, _ = train(rounded.create_state(0), range(2))
    store = CheckpointStore(tmp_path / "checkpoints", keep=1, keep_every=None, asynchronous=False, on_event=None)
    model = rounded.model
    store.save(2, to_saved(state, model), {"step": 2})
    store.wait()
    found = store.restore(to_saved(rounded.abstract_state, model))
    assert found is not None
    store.close()
    resumed, _ = train(from_saved(found[1], rounded.abstract_state, model), range(2, 4))
    straight, metrics = train(state, range(2, 4))
    assert bits(resumed) == bits(straight)
    assert np.isfinite(metrics["loss"])
    held = {name: leaf.dtype.name for name, leaf in leaf_paths(to_saved(straight, model)) if leaf.dtype == jnp.bfloat16}
    assert {"params/layers/moe/attention/query", "opt_state/momentum/layers/moe/attention/query"} <= set(held)
    assert {"opt_state/mu/output/weight", "opt_state/nu/output/weight"} <= set(held)
    assert not {"params/output/weight", "params/layers/moe/feed_forward/router/kernel"} & set(held)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))  # donated


def test_qk_clip_bounds_the_logits_of_the_next_step(make_config, make_batch):
    """At a rate of almost 0 only the clip moves queries and keys: the same batch then has the threshold as its top."""
    threshold = 1e-4
    sections = {
        "batch": {"micro_batch": 4},
        "model": {"qk_norm": False},
        "schedule": {"name": "constant", "lr": 1e-12, "warmup_frac": None},
    }
    config = make_config(**sections)
    # Under the least that a config may say, as the logits of a new model are.
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"qk_clip": threshold})})
    parts = build_parts(config, plan_batches(config), num_domains=2)
    state, batch = parts.create_state(0), make_batch(num_micro=2)

    @jax.jit
    def top(state, micro):
        part = {name: leaf[micro] for name, leaf in batch.items()}
        return parts.model.loss(state.params, part, expert_bias=state.expert_bias)[1].max_logits["moe"]

    before = np.maximum(top(state, 0), top(state, 1))
    state, metrics = parts.train_step(state, batch)
    after = np.maximum(top(state, 0), top(state, 1))
    assert (before > 2 * threshold).any()
    assert float(metrics["max_attention_logit"]) == pytest.approx(before.max(), rel=1e-6)
    # The residual stream of the second layer moves with the first: attention is its small part here.
    np.testing.assert_allclose(after[0], np.minimum(before[0], threshold), rtol=1e-3)
    np.testing.assert_allclose(after[1], np.minimum(before[1], threshold), rtol=0.05)


def test_a_line_has_the_greatest_logit_where_it_was_measured(parts_of, make_batch):
    config, parts = parts_of("plain")
    build = make_line_builder(
        plan_batches(config),
        domains=["a", "b"],
        groups=["attention"],
        epochs=lambda step: {},
        flops_per_token=lambda length: 1.0,
        peak_flops=0.0,
        num_devices=1,
    )
    seconds = dict.fromkeys(("step", "data_wait", "device", "host", "save_stall"), 1.0)
    _, metrics = parts.train_step(parts.create_state(0), make_batch())
    metrics = jax.device_get(metrics)
    for changes, expected in (
        ({}, None),
        ({"max_attention_logit": np.float32(2.5)}, 2.5),
        ({"max_attention_logit": np.float32(np.inf)}, np.inf),
        ({"max_attention_logit": np.float32(-1e30), "tokens": np.float32(0)}, None),
    ):
        line = build(1, metrics | changes, seconds)
        assert line["max_attention_logit"] == expected
        check_line({"attempt": 1, "time": "", **line})


def test_muon_is_saved_by_parameter(make_config):
    config = make_config(optimizer={"name": "muon"})
    parts = build_parts(config, plan_batches(config), num_domains=2)
    state = parts.abstract_state
    saved = to_saved(state, parts.model)
    slots = saved["opt_state"]
    assert {"count", "mu/output/weight", "nu/output/weight"} <= set(slots)
    assert "momentum/layers/moe/attention/query" in slots
    assert "mu/layers/moe/attention/query" not in slots
    jax.tree.map(lambda a, b: None, from_saved(saved, state, parts.model), state)  # raises where they differ


def test_a_parameter_does_not_take_the_sharding_of_one_whose_path_ends_like_its_own():
    class Twins:
        """Two weights: the path of the one ends with the path of the other."""

        mesh = jax.make_mesh((1, 1), ("a", "b"), (AxisType.Auto,) * 2)
        table = ()
        pipeline = None

        def init(self, key):
            del key
            return {"output": {"weight": jnp.zeros((2, 2))}, "mtp": {"output": {"weight": jnp.zeros((2, 2))}}}

        def abstract_params(self):
            return jax.eval_shape(self.init, None)

        def expert_bias(self):
            return jnp.zeros((0, 0))

        def shardings(self):
            far, near = (NamedSharding(self.mesh, PartitionSpec(name)) for name in ("a", "b"))
            return {"output": {"weight": near}, "mtp": {"output": {"weight": far}}}

        update_shardings = shardings

    model: Any = Twins()
    axes = dict.fromkeys(("output/weight", "mtp/output/weight"), ("vocab", "embed"))
    optimizer = make_optimizer(OptimizerConfig(), model.init(None), axes)
    saved = to_saved(abstract_state(model, optimizer, model.mesh), model)
    specs = {name: leaf.sharding.spec for name, leaf in saved["opt_state"].items()}
    assert (
        specs["mu/mtp/output/weight"] == saved["params"]["mtp"]["output"]["weight"].sharding.spec == PartitionSpec("a")
    )
    assert specs["nu/output/weight"] == saved["params"]["output"]["weight"].sharding.spec == PartitionSpec("b")
    assert specs["count"] == PartitionSpec()
