"""Attention over the context axis against one device, float32: values and gradients within 2e-6 in relative L2."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtrain.config.schema import MESH_AXES, MeshConfig
from maxtrain.model.kernels.attention import divisible_attention
from maxtrain.parallel.context import place_of, ring_order
from maxtrain.parallel.dispatch import sharded_attention
from maxtrain.parallel.mesh import make_mesh

B, T, N, K, H = 4, 96, 8, 4, 8
EIGHT, TRIPLE = {"context": 8}, {"context": 2, "data": 2, "tensor": 2}


def inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (B, T, heads, H)) for key, heads in zip(keys, (N, K, K, N), strict=True)]


def segments():
    """Packed; one document over the whole window; padding behind; padding only."""
    ids = np.zeros((B, T), np.int32)
    ids[0] = np.searchsorted([7, 8, 50, 77], np.arange(T), side="right") + 1
    ids[1] = 1
    ids[2, :61] = 1
    return jnp.asarray(ids)


def run(mesh, window, implementation, q, k, v, ids, dout):
    """Output and gradients."""
    attention = divisible_attention(
        window=window, scale=H**-0.5, compute_dtype=jnp.float32, implementation=implementation
    )
    out, pull = jax.vjp(lambda q, k, v: sharded_attention(q, k, v, ids, mesh=mesh, attention=attention), q, k, v)
    return out, *pull(dout)


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert np.isfinite(a).all()
        scale = np.linalg.norm(b) if np.linalg.norm(b) > 1e-3 else np.linalg.norm(expected[0])
        assert np.linalg.norm(a - b) <= 2e-6 * scale


@pytest.mark.parametrize(
    ("sizes", "window", "packed", "implementation"),
    [
        (EIGHT, None, True, "auto"),
        (EIGHT, T, False, "auto"),  # sees everything: a ring as well
        (EIGHT, 5, True, "auto"),  # within a chunk
        (EIGHT, 16, True, "auto"),  # over three chunks, the third of them in part
        (TRIPLE, None, True, "auto"),
        (TRIPLE, 41, False, "auto"),
        (TRIPLE, 1, True, "auto"),
        (TRIPLE, 41, True, "reference"),
    ],
)
def test_equals_one_device(sizes, window, packed, implementation):
    mesh = make_mesh(MeshConfig(**sizes))
    order = ring_order(T, mesh.shape["context"])
    q, k, v, dout = inputs()
    ids = segments() if packed else None
    expected = jax.jit(partial(run, None, window, "reference"))(q, k, v, ids, dout)
    rows = None if ids is None else ids[:, order]
    found = jax.jit(partial(run, mesh, window, implementation))(*(a[:, order] for a in (q, k, v)), rows, dout[:, order])
    assert_close([a[:, np.argsort(order)] for a in found], expected)


@pytest.mark.parametrize(("length", "ranks"), [(32, 8), (12, 2), (18, 3), (7, 1)])
def test_ring_order_gives_each_rank_an_early_and_a_late_chunk(length, ranks):
    order = ring_order(length, ranks)
    np.testing.assert_array_equal(np.sort(order), np.arange(length))
    np.testing.assert_array_equal(place_of(jnp.arange(length), length, ranks), order)
    if ranks > 1:
        chunks = order.reshape(ranks, 2, -1) // (length // (2 * ranks))
        expected = np.stack([np.arange(ranks), 2 * ranks - 1 - np.arange(ranks)], axis=1)
        np.testing.assert_array_equal(chunks, np.broadcast_to(expected[..., None], chunks.shape))


def test_tokens_that_do_not_divide():
    with pytest.raises(ValueError, match="20 tokens do not divide into two chunks for each of 4 ranks of context"):
        ring_order(20, 4)


def test_collectives_are_those_meant():
    """Keys and values go round; neighbours send no more than the window; documents' numbers alone are gathered."""
    mesh = make_mesh(MeshConfig(context=4, devices=4))
    q, k, v, dout = inputs()
    for window, sent in ((None, {T // 4}), (8, {7})):
        forward = jax.jit(lambda *a, window=window: run(mesh, window, "auto", *a)[0])
        text = forward.lower(q, k, v, segments(), dout).compile().as_text() or ""
        found = re.findall(
            r"= \w+\[([\d,]+)\]\S* (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(",
            text,
        )
        assert {kind for _, kind in found} <= {"collective-permute", "all-gather"}
        shapes = [tuple(map(int, shape.split(","))) for shape, kind in found if kind == "collective-permute"]
        assert {len(shape.split(",")) for shape, kind in found if kind == "all-gather"} <= {3}
        assert {size for shape in shapes if len(shape) == 4 for size in shape[1:3]} - {K} == sent


@pytest.mark.parametrize("window", [None, 16])
def test_attention_runs_under_a_vmap_over_stages(window):
    """As a pipeline maps it over its stages: equal to a loop over them, and nothing leaves a stage."""
    shape = {"data": 1, "fsdp": 1, "pipeline": 2, "expert": 1, "context": 2, "tensor": 2}
    assert tuple(shape) == MESH_AXES
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
    order = ring_order(T, 2)
    q, k, v, dout = (jnp.stack([a, 0.5 * a[::-1]]) for a in inputs())
    ids = jnp.stack([segments(), segments()[::-1]])
    expected = jax.jit(jax.vmap(partial(run, None, window, "reference")))(q, k, v, ids, dout)
    attention = divisible_attention(window=window, scale=H**-0.5, compute_dtype=jnp.float32, implementation="auto")

    def run_mapped(q, k, v, ids, dout):
        def one(q, k, v, ids):
            return sharded_attention(q, k, v, ids, mesh=mesh, attention=attention)

        attend = jax.vmap(one, spmd_axis_name="pipeline")
        out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, ids), q, k, v)
        return out, *pull(dout)

    rows = NamedSharding(mesh, PartitionSpec("pipeline", ("data", "fsdp", "expert"), "context"))
    placed = [jax.device_put(a[:, :, order], rows) for a in (q, k, v, ids, dout)]
    mapped = jax.jit(run_mapped)
    assert_close([a[:, :, np.argsort(order)] for a in mapped(*placed)], expected)
    text = mapped.lower(*placed).compile().as_text() or ""
    pairs = re.findall(r"source_target_pairs=\{(\{.*?\})\}", text)
    assert pairs
    # Devices are numbered pipeline · context · tensor.
    for a, b in re.findall(r"\{(\d),(\d)\}", "".join(pairs)):
        assert int(a) // 4 == int(b) // 4
