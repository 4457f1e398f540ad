"""A public checkpoint's logits against those of transformers; the files travel with the repository."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from maxtrain.inference.pretrained import load_pretrained
from maxtrain.model import Model


@pytest.fixture(scope="module")
def golden(root):
    return root / "tests" / "golden" / "qwen3_moe"


def test_logits_are_the_reference(golden):
    config, params, bias = load_pretrained(golden)
    reference = load_file(golden / "reference.safetensors")
    figures = json.loads((golden / "reference.json").read_text())
    expected = reference["logits"]
    assert hashlib.sha256(expected.tobytes()).hexdigest() == figures["logits_sha256"]
    assert figures["min_router_margin"] > 1e-4  # rounding flips no choice
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == figures["params"]
    model = Model(config, scan_unroll=1)
    logits = jax.jit(model.logits)(params, jnp.asarray(reference["input_ids"], jnp.int32), expert_bias=bias)
    assert np.abs(expected).max() > 0.1
    assert np.abs(logits - expected).max() < 1e-5
