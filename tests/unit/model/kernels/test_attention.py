from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtrain.model.kernels.attention import KEPT_NAMES, How, query_spans
from maxtrain.model.kernels.attention import attention as attention_function

B, T, N, K, H = 2, 150, 4, 2, 16


@partial(jax.jit, static_argnames=("window", "implementation"))
def attention(q, k, v, ids, window, implementation="auto"):
    return attention_function(
        q, k, v, ids, window=window, scale=H**-0.5, compute_dtype=jnp.float32, implementation=implementation
    )


@partial(jax.jit, static_argnames=("window", "implementation"))
def with_gradients(q, k, v, dout, ids, window, implementation):
    out, pull = jax.vjp(lambda *qkv: attention(*qkv, ids, window, implementation), q, k, v)
    return out, *pull(dout)


def inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def segments():
    ids = np.zeros((B, T), np.int32)
    ids[0, :70], ids[0, 70:71], ids[0, 71:140] = 1, 2, 3
    ids[1, 20:] = 1
    return jnp.asarray(ids)


def by_hand(q, k, v, ids, window):
    """Token by token, head by head, in float64."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    out = np.zeros(q.shape)
    for b in range(B):
        for t in range(T):
            seen = [
                s
                for s in range(t + 1)
                if (window is None or s > t - window) and (ids is None or (ids[b, s] == ids[b, t] != 0))
            ]
            for n in range(N):
                if seen:
                    scores = k[b, seen, n // (N // K)] @ q[b, t, n] * H**-0.5
                    weights = np.exp(scores - scores.max())
                    out[b, t, n] = weights @ v[b, seen, n // (N // K)] / weights.sum()
    return out


@pytest.mark.parametrize(("window", "packed"), [(None, False), (1, True), (37, False), (1000, True)])
def test_equals_the_sum_by_hand(window, packed):
    q, k, v, _ = inputs()
    ids = segments() if packed else None
    expected = by_hand(q, k, v, None if ids is None else np.asarray(ids), window)
    for implementation in ("auto", "reference"):
        out = attention(q, k, v, ids, window=window, implementation=implementation)
        np.testing.assert_allclose(out, expected, atol=2e-6, err_msg=implementation)


@pytest.mark.parametrize(("window", "packed"), [(None, False), (None, True), (37, True)])
def test_gradients_equal_the_reference(window, packed):
    q, k, v, dout = inputs()
    ids = segments() if packed else None

    fast, slow = (with_gradients(q, k, v, dout, ids, window, i) for i in ("auto", "reference"))
    for a, b in zip(fast, slow, strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(("window", "implementation"), [(None, "auto"), (37, "auto"), (37, "reference")])
def test_queries_of_the_last_positions(window, implementation):
    """With keys from before them, they see what they see in the whole row."""
    q, k, v, _ = inputs()
    ids, first = segments(), 61
    whole = attention(q, k, v, ids, window, "reference")
    last = attention_function(
        *(q[:, first:], k, v, ids[:, first:], ids),
        window=window,
        scale=H**-0.5,
        compute_dtype=jnp.float32,
        implementation=implementation,
    )
    np.testing.assert_allclose(last, whole[:, first:], atol=2e-6)


def test_eight_heads_of_8192_tokens_need_under_600_megabytes():
    """Read from the compiled program: forward, backward, arguments and results."""
    heads = jax.ShapeDtypeStruct((1, 8192, 8, 64), jnp.float32)

    def run(q, k, v, dout):
        attend = partial(attention_function, segment_ids_BT=None, window=None, scale=0.1, compute_dtype=jnp.float32)
        out, pull = jax.vjp(attend, q, k, v)
        return out, pull(dout)

    memory = jax.jit(run).lower(heads, heads, heads, heads).compile().memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes < 0.6e9


def test_padding_has_no_output_and_no_gradient():
    q, k, v, dout = inputs()
    ids = segments()
    out, *gradients = with_gradients(q, k, v, dout, ids, None, "auto")
    padding = np.asarray(ids) == 0
    assert (np.asarray(out)[padding] == 0).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient)[padding] == 0).all()
        assert (np.asarray(gradient)[~padding] != 0).any()


def test_a_token_sees_no_later_token_and_no_other_document():
    q, k, v, _ = inputs()
    ids = segments()
    before = attention(q, k, v, ids, window=None, implementation="auto")
    after = attention(q, k.at[0, 100:].add(9.0), v.at[0, 100:].add(9.0), ids, window=None, implementation="auto")
    np.testing.assert_array_equal(before[0, :100], after[0, :100])
    other = attention(q, k.at[0, :70].add(9.0), v.at[0, :70].add(9.0), ids, window=None, implementation="auto")
    np.testing.assert_array_equal(before[0, 70:], other[0, 70:])
    assert (before[0, 100:140] != after[0, 100:140]).any()


@pytest.mark.parametrize(("length", "window"), [(1, None), (64, None), (130, 8), (5000, 100), (100_000, None)])
def test_spans_cover_the_row_in_whole_blocks(length, window):
    spans = query_spans(length, length, window, 64, causal=True)
    assert [s.start for s in spans] == [0, *(s.stop for s in spans[:-1])]
    assert spans[-1].stop == length
    assert len(spans) <= 17
    assert all((s.stop - s.start) % s.queries == 0 and s.queries <= 64 for s in spans)
    assert all(s.first == (0 if window is None else max(0, s.start - window + 1)) for s in spans)


def test_long_rows_loop_over_blocks(monkeypatch):
    monkeypatch.setattr("maxtrain.model.kernels.attention.ON_CPU", How(queries=8, one_by_one=True))
    monkeypatch.setattr("maxtrain.model.kernels.attention.MOST_SPANS", 3)
    q, k, v, dout = inputs()
    ids = segments()

    jax.clear_caches()
    fast, slow = (with_gradients(q, k, v, dout, ids, 70, i) for i in ("auto", "reference"))
    jax.clear_caches()
    for a, b in zip(fast, slow, strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


def test_bfloat16_operands_keep_float32_statistics():
    """Over several blocks, with gradients: some forms of a product exist on CPU for float32 alone."""
    keys = jax.random.split(jax.random.key(3), 4)
    q, k, v, dout = (jax.random.normal(key, (1, 512, 2, 32)).astype(jnp.bfloat16) for key in keys)

    def run(dtype, *arguments):
        out, pull = jax.vjp(
            lambda q, k, v: attention_function(q, k, v, None, window=None, scale=32**-0.5, compute_dtype=dtype),
            *arguments[:3],
        )
        return out, *pull(arguments[3])

    run = jax.jit(run, static_argnums=0)
    exact = run(jnp.float32, *(a.astype(jnp.float32) for a in (q, k, v, dout)))
    for low, high in zip(run(jnp.bfloat16, q, k, v, dout), exact, strict=True):
        assert low.dtype == jnp.bfloat16
        assert np.linalg.norm(low.astype(jnp.float32) - high) < 1e-2 * np.linalg.norm(high)


def test_remat_that_saves_the_names_computes_no_scores_again():
    q, k, v, dout = inputs()

    def exponentials(policy):
        def loss(q, k, v):
            return jnp.sum(jax.checkpoint(lambda *a: attention(*a, None, None), policy=policy)(q, k, v) * dout)

        return str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)).count(" exp ")

    saving = exponentials(jax.checkpoint_policies.save_only_these_names(*KEPT_NAMES))
    assert saving < exponentials(jax.checkpoint_policies.nothing_saveable)
