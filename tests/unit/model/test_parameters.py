import math

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtrain.config.load import load_config
from maxtrain.config.schema import MESH_AXES
from maxtrain.model import Model
from maxtrain.model.parameters import ParameterSpec, init_params
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
            assert jax.tree.structure(born) == jax.tree.structure(model.abstract_params())
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
        few, many = (Model(make_config(num_layers=n, depth_scaled_init=False)) for n in (2, 4))
        first, second = few.init(jax.random.key(0)), many.init(jax.random.key(0))
        query = [tree["layers"]["dense"]["attention"]["query"] for tree in (first, second)]
        np.testing.assert_array_equal(query[0], query[1][:2])
        np.testing.assert_array_equal(first["embedding"]["weight"], second["embedding"]["weight"])
        assert (query[1][0] != query[1][1]).all()
        key = first["layers"]["dense"]["attention"]["key"]
        assert (key[0].ravel() != query[0][0].ravel()[: key[0].size]).all()
        other = few.init(jax.random.key(1))
        assert (other["output"]["weight"] != first["output"]["weight"]).all()

    def test_bits_are_the_same_born_on_any_mesh(self, options, mesh):
        alone = jax.jit(Model(options["sigmoid"]).init)(jax.random.key(0))
        model = Model(options["sigmoid"], mesh=mesh)
        spread = jax.jit(model.init, out_shardings=model.shardings())(jax.random.key(0))
        assert isinstance(spread["output"]["weight"].sharding, NamedSharding)
        for mine, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
            np.testing.assert_array_equal(mine, np.asarray(theirs))

    def test_deviation_is_the_stated_one_and_nothing_lies_far_out(self):
        spec = ParameterSpec("x/y", (1000, 200), np.dtype("float32"), (None, None), "normal", 0.02, 0, 1)
        values = np.asarray(init_params(jax.random.key(0), [spec])["x"]["y"])
        assert values.std() == pytest.approx(0.02, rel=0.005)
        assert values.mean() == pytest.approx(0, abs=2e-4)
        assert 0.055 < np.abs(values).max() < 0.0610

    def test_output_projections_shrink_with_depth(self, make_config):
        table = {spec.path: spec.std for spec in Model(make_config(num_layers=8, init_std=0.02)).table}
        assert table["layers/dense/attention/output"] == pytest.approx(0.02 / math.sqrt(16))
        assert table["layers/dense/feed_forward/down"] == pytest.approx(0.02 / math.sqrt(16))
        assert table["layers/dense/feed_forward/up"] == 0.02
        assert table["output/weight"] == 0.02
