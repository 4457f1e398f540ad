"""Logits and generation on a mesh whose context axis divides neither a prompt nor a token."""

import jax
import jax.numpy as jnp
import numpy as np

from maxtrain.config.schema import MeshConfig
from maxtrain.inference.engine import Engine
from maxtrain.inference.sample import Sampling
from maxtrain.model import Model
from maxtrain.parallel.mesh import make_mesh

SIZES = {"context": 2, "tensor": 2, "data": 2, "sequence_parallel": True}


def test_logits_and_generation_equal_one_device(build_on):
    one = build_on({}).parts.model
    layout = MeshConfig.model_validate(SIZES)
    model = Model(one.config, scan_unroll=1, mesh=make_mesh(layout), layout=layout)
    params = jax.jit(one.init)(jax.random.key(0))
    bias, placed = one.expert_bias(), jax.device_put(jax.device_get(params), model.shardings())
    tokens = jax.random.randint(jax.random.key(1), (2, 13), 0, 128)
    segments = jnp.ones((2, 13), jnp.int32).at[1, 9:].set(2)
    found, expected = (jax.jit(m.logits)(p, tokens, segment_ids=segments) for m, p in ((model, placed), (one, params)))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    prompts = [[5, 6, 7, 8, 9], [3, 1]]
    rows = [
        Engine(m, p, bias, end_id=None).generate(prompts, 4, Sampling(temperature=0.0), seeds=[0, 0])
        for m, p in ((model, placed), (one, params))
    ]
    assert [completion.tokens for completion in rows[0]] == [completion.tokens for completion in rows[1]]
