"""The attention kernels of CUDA and TPU, in the interpreter, against the dense formula."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels import attention_gpu, attention_tpu

B, K, G, T, H, SCALE = 2, 2, 2, 75, 24, 0.2
TILE = attention_gpu.Tiling(16, 32, warps=4, stages=2)
FORMS: dict[str, Any] = {
    "gpu": [partial(f, tiling=TILE, interpret=True) for f in (attention_gpu.forward, attention_gpu.gradients)],
    "tpu": [partial(f, interpret=True) for f in (attention_tpu.forward, attention_tpu.gradients)],
}
forms = pytest.mark.parametrize("form", FORMS)


def inputs(num_queries=T, num_keys=T):
    keys = jax.random.split(jax.random.key(0), 4)
    q, dout = (jax.random.normal(key, (B, K, G, num_queries, H)) for key in keys[:2])
    k, v = (jax.random.normal(key, (B, K, num_keys, H)) for key in keys[2:])
    return q, k, v, dout


def documents(length=T):
    ids = np.zeros((B, length), np.int32)
    ids[0, :35], ids[0, 35], ids[0, 36:70] = 1, 2, 3
    ids[1, 10:] = 1
    return jnp.asarray(ids)


def dense(q, k, v, segments, window):
    """Output, and log Σ exp(scores), by the formula."""
    num_queries, num_keys = q.shape[3], k.shape[2]
    query, key = jnp.arange(num_queries)[:, None] + num_keys - num_queries, jnp.arange(num_keys)[None, :]
    seen = ((key <= query) & (key > query - (window or num_keys)))[None]
    if segments is not None:
        seen = seen & (segments[0][:, :, None] == segments[1][:, None, :]) & (segments[0][:, :, None] > 0)
    seen = seen[:, None, None]
    scores = jnp.where(seen, jnp.einsum("bkgth,bksh->bkgts", q, k, precision="highest") * SCALE, -1e30)
    weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0)
    out = jnp.einsum("bkgts,bksh->bkgth", weights, v, precision="highest")
    return out, jax.nn.logsumexp(scores, axis=-1)


def run(form, q, k, v, segments, dout, window, causal=True, dtype=jnp.float32):
    forward, gradients = FORMS[form]
    how = {"causal": causal, "window": window, "scale": SCALE}

    @jax.jit
    def both(q, k, v, segments, dout):
        out, log_z = forward(q, k, v, segments, out_dtype=dtype, **how)
        return out, log_z, *gradients(q, k, v, segments, out, log_z, dout, out_dtype=(dtype,) * 3, **how)

    return both(q, k, v, segments, dout)


def assert_close(found, expected, bound=1e-6):
    for a, b in zip(found, expected, strict=True):
        assert np.isfinite(a).all()
        assert np.linalg.norm(a - b) <= bound * np.linalg.norm(b)


@forms
@pytest.mark.parametrize(("window", "packed", "num_keys"), [(None, False, T), (20, True, T), (None, True, T + 58)])
def test_equals_the_formula(form, window, packed, num_keys):
    q, k, v, dout = inputs(num_keys=num_keys)
    segments = (documents(num_keys)[:, num_keys - T :], documents(num_keys)) if packed else None
    out, log_z, *gradients = run(form, q, k, v, segments, dout, window)
    (expected, expected_z), pull = jax.vjp(lambda q, k, v: dense(q, k, v, segments, window), q, k, v)
    assert_close((out, *gradients), (expected, *pull((dout, jnp.zeros_like(expected_z)))))
    is_padding = np.zeros((B, T), bool) if segments is None else np.asarray(segments[0]) == 0
    shown = np.moveaxis(np.asarray(log_z), 3, 1)
    np.testing.assert_allclose(shown[~is_padding], np.moveaxis(np.asarray(expected_z), 3, 1)[~is_padding], atol=1e-5)
    assert (shown[is_padding] < -1e29).all()
    assert (np.moveaxis(np.asarray(out), 3, 1)[is_padding] == 0).all()
    assert (np.moveaxis(np.asarray(gradients[0]), 3, 1)[is_padding] == 0).all()


@forms
def test_parts_of_the_keys_join(form):
    """Keys before the queries, which all of them see, and the queries' own: as a ring does it."""
    cut = 58
    q, k, v, dout = inputs(num_keys=T + cut)
    ids = documents(T + cut)
    query_ids = ids[:, cut:]
    parts = [
        (k[:, :, :cut], v[:, :, :cut], (query_ids, ids[:, :cut])),
        (k[:, :, cut:], v[:, :, cut:], (query_ids,) * 2),
    ]
    forward, gradients = FORMS[form]

    @jax.jit
    def joined(q, parts, dout):
        how = [{"causal": causal, "window": None, "scale": SCALE} for causal in (False, True)]
        (out, log_z), (other, other_z) = (
            forward(q, *part, out_dtype=jnp.float32, **h) for part, h in zip(parts, how, strict=True)
        )
        whole_z = jnp.logaddexp(log_z, other_z)
        whole = out * jnp.exp(log_z - whole_z)[..., None] + other * jnp.exp(other_z - whole_z)[..., None]
        (dq, dk, dv), (other_dq, other_dk, other_dv) = (
            gradients(q, *part, whole, whole_z, dout, out_dtype=(jnp.float32,) * 3, **h)
            for part, h in zip(parts, how, strict=True)
        )
        return (
            whole,
            dq + other_dq,
            jnp.concatenate((dk, other_dk), axis=2),
            jnp.concatenate((dv, other_dv), axis=2),
        )

    expected, pull = jax.vjp(lambda q, k, v: dense(q, k, v, (query_ids, ids), None)[0], q, k, v)
    assert_close(joined(q, parts, dout), (expected, *pull(dout)))


@forms
def test_bfloat16_operands_keep_float32_statistics(form):
    arrays = inputs()
    q, k, v, dout = (a.astype(jnp.bfloat16) for a in arrays)
    out, log_z, *gradients = run(form, q, k, v, None, dout, None, dtype=jnp.float32)
    exact = [a.astype(jnp.float32) for a in (q, k, v, dout)]
    (expected, expected_z), pull = jax.vjp(lambda q, k, v: dense(q, k, v, None, None), *exact[:3])
    assert log_z.dtype == jnp.float32
    assert_close((out, *gradients), (expected, *pull((exact[3], jnp.zeros_like(expected_z)))), bound=1e-2)
