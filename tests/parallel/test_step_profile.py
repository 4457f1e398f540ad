"""The collectives of a program that XLA compiled are told apart by mesh axis."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from maxtrain.config.schema import MeshConfig
from maxtrain.monitor.step_profile import parse_program
from maxtrain.parallel.mesh import make_mesh


@pytest.mark.parametrize("axes", [("data",), ("expert",), ("tensor",), ("data", "tensor"), ("data", "expert")])
def test_the_axes_of_compiled_sums(axes):
    mesh = make_mesh(MeshConfig(data=2, expert=2, tensor=2))
    spec = PartitionSpec(("data", "expert", "tensor"))
    summed = jax.shard_map(lambda x: jax.lax.psum(x, axes), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    text = jax.jit(summed).lower(jnp.ones(8)).compile().as_text() or ""
    rows = [operation.row for operation in parse_program(text, dict(mesh.shape)).values() if operation.is_collective]
    assert rows == [f"all-reduce ({'×'.join(axes)})"]
