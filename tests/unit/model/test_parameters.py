import math

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from maxtrain.config.load import load_config
from maxtrain.config.schema import MESH_AXES
from maxtrain.core.random_bits import fold, key_words, truncated_normal, uniform
from maxtrain.core.trees import leaf_paths
from maxtrain.model import Model
from maxtrain.model.parameters import ParameterSpec, init_params, to_tree
from maxtrain.plan import count_parameters


@pytest.fixture
def mesh():
    devices = np.array(jax.devices()[:8]).reshape(1, 2, 1, 2, 1, 2)
    return Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 6)


def presets(root):
    return sorted(path for path in (root / "configs").rglob("*.yaml"))


class TestTable:
    def test_names_shapes_and_axes(self, options):
        table = {spec.path: spec for spec in Model(options["sigmoid"]).table}
        assert table["layers/moe/attention/query"].shape == (2, 16, 4, 4)
        assert table["layers/moe/attention/query"].axes == ("layers", "embed", "heads", "head_dim")
        assert table["layers/dense/feed_forward/down"].shape == (1, 24, 16)
        assert table["layers/moe/feed_forward/experts/gate"].axes == ("layers", "expert", "embed", "mlp")
        assert table["layers/moe/feed_forward/experts/gate"].num_batch_dims == 2
        assert table["layers/moe/attention/output"].num_input_dims == 2
        assert table["final_norm/scale"].init == "ones"
        assert len(table) == len(Model(options["sigmoid"]).table)

    def test_kinds_without_layers_are_absent(self, options):
        assert list(Model(options["dense"]).abstract_params()["layers"]) == ["dense"]
        assert list(Model(options["softmax"]).abstract_params()["layers"]) == ["moe"]
        assert Model(options["dense"]).expert_bias().shape == (0, 0)

    def test_init_gives_what_the_table_says(self, options):
        for config in options.values():
            model = Model(config)
            born = jax.eval_shape(model.init, jax.random.key(0))
            assert list(dict(leaf_paths(born))) == list(dict(leaf_paths(model.abstract_params())))
            for leaf, told in zip(jax.tree.leaves(born), jax.tree.leaves(model.abstract_params()), strict=True):
                assert (leaf.shape, leaf.dtype) == (told.shape, told.dtype)
            assert sum(spec.size for spec in model.table) == count_parameters(config).total

    def test_every_preset_counts_as_planned(self, root):
        """The planner's arithmetic, which knows no JAX, and the table are equal."""
        found = presets(root)
        assert found
        for path in found:
            config = load_config(path).model
            assert sum(spec.size for spec in Model(config).table) == count_parameters(config).total, path

    def test_shardings_follow_the_rules(self, options, mesh):
        shardings = Model(options["sigmoid"], mesh=mesh).shardings()
        assert shardings["layers"]["moe"]["feed_forward"]["experts"]["up"].spec == PartitionSpec(
            "pipeline", "expert", "fsdp", "tensor"
        )
        assert shardings["embedding"]["weight"].spec == PartitionSpec("tensor", "fsdp")


class TestInit:
    def test_bits_depend_on_key_path_and_layer_alone(self, make_config):
        def draw(num_layers, seed, paths):
            table = Model(make_config(num_layers=num_layers, depth_scaled_init=False)).table
            chosen = [spec for spec in table if spec.path in paths]
            return dict(leaf_paths(jax.jit(lambda key: init_params(key, chosen))(jax.random.key(seed))))

        query, value = "layers/dense/attention/query", "layers/dense/attention/value"
        few, many = draw(2, 0, [query]), draw(4, 0, [query, value, "output/weight"])
        np.testing.assert_array_equal(few[query], many[query][:2])
        assert (many[query][0] != many[query][1]).all()
        assert (many[query].ravel()[: many[value].size] != many[value].ravel()).all()
        assert (draw(2, 1, [query])[query] != few[query]).all()

    def test_bits_are_the_same_born_on_any_mesh(self, options, mesh):
        model = Model(options["sigmoid"], mesh=mesh)
        paths = ("embedding/weight", "layers/moe/feed_forward/experts/up", "layers/dense/attention/output")
        table = [spec for spec in model.table if spec.path in paths]
        shardings = dict(leaf_paths(model.shardings()))
        layout = to_tree((spec.path, shardings[spec.path]) for spec in table)
        spread = jax.jit(lambda key: init_params(key, table), out_shardings=layout)(jax.random.key(0))
        alone = jax.jit(lambda key: init_params(key, table))(jax.random.key(0))
        for mine, theirs in zip(*map(jax.tree.leaves, (alone, spread)), strict=True):
            assert len(theirs.sharding.device_set) == 8
            np.testing.assert_array_equal(mine, np.asarray(theirs))

    def test_deviation_is_the_stated_one_and_nothing_lies_far_out(self):
        spec = ParameterSpec("x", (1000, 200), np.dtype("float32"), (None, None), "normal", 0.02, 0, 1)
        values = np.asarray(init_params(jax.random.key(0), [spec])["x"])
        assert values.std() == pytest.approx(0.02, rel=0.005)
        assert values.mean() == pytest.approx(0, abs=2e-4)
        assert 0.055 < np.abs(values).max() < 0.0610

    def test_output_projections_shrink_with_depth(self, make_config):
        table = {spec.path: spec.std for spec in Model(make_config(num_layers=8, init_std=0.02)).table}
        assert table["layers/dense/attention/output"] == pytest.approx(0.02 / math.sqrt(16))
        assert table["layers/dense/feed_forward/down"] == pytest.approx(0.02 / math.sqrt(16))
        assert table["layers/dense/feed_forward/up"] == 0.02
        assert table["output/weight"] == 0.02


class TestRandomBits:
    def test_words_are_those_of_jax_random(self):
        key = jax.random.key(5)
        np.testing.assert_array_equal(
            np.stack(fold(key_words(key), 77)), jax.random.key_data(jax.random.fold_in(key, 77))
        )
        np.testing.assert_array_equal(uniform(key_words(key), (1, 64))[0], jax.random.uniform(key, (64,)))

    def test_distribution_is_the_truncated_normal(self):
        draw = jax.jit(lambda key: truncated_normal(key_words(key), 3.0, (300, 400)))
        values = np.sort(np.asarray(draw(jax.random.key(1))).ravel())
        edge = math.erf(3 / math.sqrt(2))
        expected = np.array([(math.erf(value / math.sqrt(2)) / edge + 1) / 2 for value in values[::100]])
        assert np.abs(np.arange(0, len(values), 100) / len(values) - expected).max() < 0.005

    def test_other_generators_are_refused(self):
        with pytest.raises(ValueError, match="threefry2x32"):
            key_words(jax.random.key(0, impl="rbg"))
