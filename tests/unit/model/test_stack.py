import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

from maxtrain.model.block import drop_out
from maxtrain.model.linear import project
from maxtrain.model.stack import minimal_period, scan_layers
from maxtrain.parallel.context import ring_order


@pytest.mark.parametrize(
    ("pattern", "period"),
    [([None], 1), ([4, 4, 4], 1), ([4, None, 4, None], 2), ([4, 4, None, 4, 4], 3), ([4, None, None], 3)],
)
def test_minimal_period(pattern, period):
    assert minimal_period(pattern) == period


class TestScanLayers:
    @pytest.mark.parametrize("windows", [[None] * 5, [3, 3, 9, 3, 3, 9, 3, 3], [3, 9], [2, 3, 4]])
    @pytest.mark.parametrize("unroll", [1, 2, 8])
    def test_equals_a_loop_with_each_layers_own_window(self, windows, unroll):
        scales = jnp.arange(1.0, len(windows) + 1)

        def layer(window, x, scale):
            return 1.5 * x + scale * (window or 0), {"seen": x * scale}

        carry, outputs = scan_layers(layer, jnp.float32(1), scales, windows, unroll=unroll)
        x, seen = 1.0, []
        for window, scale in zip(windows, scales, strict=True):
            seen.append(x * float(scale))
            x = 1.5 * x + float(scale) * (window or 0)
        np.testing.assert_allclose(carry, x, rtol=1e-6)
        np.testing.assert_allclose(outputs["seen"], seen, rtol=1e-6)

    @pytest.mark.parametrize("unroll", [1, 4])
    def test_layers_without_outputs_run_too(self, unroll):
        carry, outputs = scan_layers(
            lambda _, x, scale: (x * scale, None), jnp.float32(1), jnp.arange(1.0, 4.0), [1, 2, 1], unroll=unroll
        )
        assert carry == 6
        assert outputs is None

    def test_a_policy_keeps_what_it_names(self, capsys):
        def layer(_, x, weight):
            kept = checkpoint_name(jnp.sin(x * weight), "attention_out")
            return jnp.sin(checkpoint_name(jnp.cos(kept * weight), "query")), None

        def residuals(remat):
            def run(x):
                return scan_layers(layer, x, jnp.ones((1, 3)), [None], unroll=1, remat=[remat])[0].sum()

            print_saved_residuals(run, jnp.ones(3))
            return capsys.readouterr().out

        names = {policy: residuals(policy) for policy in ("full", "save_attention", "save_dots")}
        lines = {policy: len(text.splitlines()) for policy, text in names.items()}
        assert lines["full"] < lines["save_attention"] < lines["save_dots"]

    @pytest.mark.parametrize(
        "policies",
        [
            ["full"] * 5,
            ["none", "full", "full", "save_attention", "save_dots"],
            ["offload_dots", "offload_dots", "none", "none", "full"],
        ],
    )
    def test_ranges_of_policies_change_no_bit(self, policies):
        """Windows alternate, so that ranges cut the pattern; outputs and gradients are those of one scan."""
        windows = [2, 5, 2, 5, 2]
        weights = {"a": jax.random.normal(jax.random.key(0), (5, 8, 8)), "b": jnp.arange(5.0)}
        x = jax.random.normal(jax.random.key(1), (3, 8))

        def layer(window, x, weight):
            query = checkpoint_name(jnp.sin(x @ weight["a"]), "query")
            return checkpoint_name(jnp.cos(query * window + weight["b"]), "attention_out"), query.sum()

        def run(remat):
            def loss(x, weights):
                y, outputs = scan_layers(layer, x, weights, windows, unroll=2, remat=remat)
                return (y * y).sum(), outputs

            step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
            plain: dict[str, str | bool] = {
                "xla_backend_optimization_level": "0",
                "xla_llvm_disable_expensive_passes": True,
            }
            return step.lower(x, weights).compile(plain)(x, weights)

        jax.tree.map(np.testing.assert_array_equal, run(policies), run(None))

    def test_a_range_recomputes_alone(self):
        def layer(_, x, weight):
            return jnp.sin(jnp.exp(x * weight)), None

        def exponentials(remat):
            def run(x):
                return scan_layers(layer, x, jnp.ones((4, 3)), [None] * 4, unroll=1, remat=remat)[0].sum()

            return str(jax.make_jaxpr(jax.grad(run))(jnp.ones(3))).count(" exp ")

        assert exponentials(["none"] * 4) == 1
        assert exponentials(["full"] * 4) == 2
        assert exponentials(["full", "full", "none", "none"]) == 3

    def test_offloaded_products_lie_in_host_memory(self):
        def layer(_, x, weight):
            return jnp.sin(checkpoint_name(x * weight, "query")), None

        def run(x):
            return scan_layers(layer, x, jnp.ones((2, 3)), [None] * 2, unroll=1, remat=["offload_dots"] * 2)[0].sum()

        text = str(jax.make_jaxpr(jax.grad(run))(jnp.ones(3)))
        assert "<host>" in text


class TestProject:
    def test_gradients_are_those_of_the_product(self):
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.normal(size=(2, 3, 4, 5)), jnp.float32)
        weight = jnp.asarray(rng.normal(size=(4, 5, 6, 7)), jnp.float32)

        def plain(x, weight):
            return jnp.einsum("abij,ijop->abop", x, weight)

        def ours(x, weight):
            return project(x, weight, 2, jnp.dtype("float32"))

        np.testing.assert_allclose(ours(x, weight), plain(x, weight), rtol=1e-5, atol=1e-5)
        grads = [jax.grad(lambda *a, f=f: jnp.sin(f(*a)).sum(), (0, 1))(x, weight) for f in (plain, ours)]
        for expected, got in zip(*grads, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_bfloat16_operands_sum_in_float32(self):
        """1,024 products of 1 lose nothing; a bfloat16 sum would stop at 256."""
        x, weight = jnp.ones((1024, 2)), jnp.full((2, 3), 1 / 3)
        grad = jax.grad(lambda w: project(x, w, 1, jnp.dtype("bfloat16")).sum())(weight)
        assert grad.dtype == jnp.float32
        np.testing.assert_array_equal(grad, 1024)


class TestDropout:
    def test_share_scale_and_keys(self):
        x, keys = jnp.ones((2, 200, 50)), jax.random.split(jax.random.key(0), 2)
        y = np.asarray(drop_out(x, keys, jnp.int32(1), 0, 0.3))
        assert (y == 0).mean() == pytest.approx(0.3, abs=0.01)
        assert set(np.unique(y)) == {0.0, np.float32(1 / 0.7)}
        assert (y[0] != y[1]).any()
        np.testing.assert_array_equal(y[1], drop_out(x[1:], keys[1:], jnp.int32(1), 0, 0.3)[0])
        for layer, purpose in ((2, 0), (1, 1)):
            assert (y != drop_out(x, keys, jnp.int32(layer), purpose, 0.3)).any()

    def test_a_token_keeps_its_mask_wherever_it_lies(self):
        x, keys = jnp.ones((2, 12, 5)), jax.random.split(jax.random.key(0), 2)
        place = jnp.asarray(ring_order(12, 3), jnp.int32)
        there = drop_out(x, keys, jnp.int32(1), 0, 0.5, place)
        np.testing.assert_array_equal(there, drop_out(x, keys, jnp.int32(1), 0, 0.5)[:, place])

    def test_all_or_nothing(self):
        x, keys = jnp.ones((1, 4, 4)), jax.random.split(jax.random.key(0), 1)
        assert (drop_out(x, keys, jnp.int32(0), 0, 1.0) == 0).all()
        assert (drop_out(x, keys, jnp.int32(0), 0, 0.0) == 1).all()
