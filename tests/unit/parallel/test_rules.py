import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from maxtrain.config.schema import BATCH_AXES, MESH_AXES, MeshConfig
from maxtrain.parallel.mesh import make_mesh
from maxtrain.parallel.rules import ACTIVATION_RULES, PARAMETER_RULES, constrain, to_partition_spec


def test_a_parameter_and_an_activation():
    assert to_partition_spec(("layers", "embed", "mlp"), PARAMETER_RULES) == PartitionSpec("pipeline", "fsdp", "tensor")
    assert to_partition_spec(("batch", "sequence", "embed"), ACTIVATION_RULES) == PartitionSpec(
        BATCH_AXES, "context", None
    )
    assert to_partition_spec((None, "heads"), PARAMETER_RULES) == PartitionSpec(None, "tensor")


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'hidden'.*known are.*mlp"):
        to_partition_spec(("embed", "hidden"), PARAMETER_RULES)


def test_a_mesh_axis_serves_a_tensor_once():
    with pytest.raises(ValueError, match=r"'tensor' for both 'heads' and 'mlp'"):
        to_partition_spec(("heads", "mlp"), PARAMETER_RULES)
    with pytest.raises(ValueError, match=r"'tensor' for both"):
        to_partition_spec(("vocab", "heads"), ACTIVATION_RULES)


def test_rules_name_only_mesh_axes():
    for rules in (PARAMETER_RULES, ACTIVATION_RULES):
        named = {name for entry in rules.values() for name in ((entry,) if isinstance(entry, str) else entry or ())}
        assert named <= set(MESH_AXES)


def test_constrain_lays_out_and_changes_nothing():
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    x = jnp.arange(8.0 * 2 * 4).reshape(8, 2, 4)
    y = jax.jit(lambda x: constrain(x, ("batch", "sequence", "mlp"), mesh))(x)
    assert (x == y).all()
    assert y.addressable_shards[0].data.shape == (2, 2, 2)
