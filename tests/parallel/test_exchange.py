"""Every exchange against one device, float32: values within 2e-6, gradients within 1e-5 in relative L2, any load."""

import itertools
import math
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtrain.config.schema import MESH_AXES, MeshConfig, ModelConfig, MoeConfig
from maxtrain.core.errors import UserError
from maxtrain.model import Model
from maxtrain.model.kernels.experts import experts
from maxtrain.model.routing import choose_experts
from maxtrain.parallel.delivery import pack
from maxtrain.parallel.exchange import Exchange, make_carrier, ranks_of_a_row, sharded_experts
from maxtrain.parallel.rules import ACTIVATION_RULES, parameter_rules, to_partition_spec

B, T, D, F, E, TOP_K = 8, 24, 8, 12, 8, 2
AXES = {"gate": ("expert", "embed", "mlp"), "up": ("expert", "embed", "mlp"), "down": ("expert", "mlp", "embed")}
COLLECTIVE = re.compile(r"= .*? (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def make_mesh(**sizes):
    """A mesh with all axes; unlike the product's, with those too that are not available yet."""
    shape = [sizes.get(axis, 1) for axis in MESH_AXES]
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 6, devices=jax.devices()[: math.prod(shape)])


def parameters():
    sizes = {"expert": E, "embed": D, "mlp": F}
    keys = jax.random.split(jax.random.key(1), len(AXES))
    return {
        name: 0.3 * jax.random.normal(key, [sizes[axis] for axis in axes])
        for key, (name, axes) in zip(keys, AXES.items(), strict=True)
    }


LOADS = ("even", "one_expert", "one_rank", "empty_expert", "padding_only", "one_row")


def batch(load):
    """x, index, weight; a row of no expert holds nan, which nobody may read."""
    keys = jax.random.split(jax.random.key(2), 3)
    index = np.array(lax.top_k(jax.random.normal(keys[0], (B, T, E)), TOP_K)[1], np.int32)
    index[1, :7] = -1
    index[2, 5:9, 1] = -1
    if load == "one_expert":
        index[..., 0], index[..., 1] = 5, -1
    elif load == "one_rank":
        index[:] = (0, 1)
    elif load == "empty_expert":
        index[index == 3] = -1
    elif load == "padding_only":
        index[:] = -1
    elif load == "one_row":
        index[:] = -1
        index[3] = 6, 2
    x = jax.random.normal(keys[1], (B, T, D))
    weight = jnp.where(index >= 0, jax.random.uniform(keys[2], (B, T, TOP_K)), 0.0)
    return jnp.where((index >= 0).any(-1, keepdims=True), x, jnp.nan), jnp.asarray(index), weight


def run(params, x, index, weight, *, mesh, exchange, sequence_parallel=False):
    compute = partial(experts, activation="swiglu", compute_dtype=jnp.float32)
    if exchange.kind == "dense":
        compute = partial(compute, implementation="reference")
    weights = [params[name] for name in AXES]
    options = {"mesh": mesh, "exchange": exchange, "sequence_parallel": sequence_parallel, "compute": compute}
    return sharded_experts(x, index, weight, *weights, **options)


@cache
def step_of(mesh, exchange, sequence_parallel=False):
    """Value and gradients on a mesh, compiled once for all loads."""

    def loss(params, x, weight, index):
        options = {"mesh": mesh, "exchange": exchange, "sequence_parallel": sequence_parallel}
        y, dropped = run(params, x, index, weight, **options)
        return jnp.sum(jnp.sin(3 * y)), (y, dropped)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))


def values(step, load, mesh=None, exchange=None):
    x, index, weight = batch(load)
    params = parameters()
    if mesh is not None:
        tokens = NamedSharding(mesh, to_partition_spec(("batch", "sequence"), ACTIVATION_RULES))
        x, index, weight = jax.device_put((x, index, weight), tokens)
        params = {
            name: jax.device_put(value, sharding)
            for (name, value), sharding in zip(params.items(), shardings(mesh, exchange), strict=True)
        }
    return jax.device_get(step(params, x, weight, index))


def shardings(mesh, exchange):
    return [
        NamedSharding(mesh, to_partition_spec(axes, parameter_rules(axes, exchange.expert_axes)))
        for axes in AXES.values()
    ]


def relative(a, b):
    """Relative L2 distance; a zero leaf must be matched exactly."""
    norm = np.linalg.norm(b)
    return np.linalg.norm(a - b) / norm if norm else np.abs(a).max()


def assert_equal_to_one_device(found, load):
    (_, (y, dropped)), gradients = found
    (_, (y_1, _)), gradients_1 = values(step_of(None, Exchange("dense")), load)
    assert dropped == 0
    assert relative(y, y_1) <= 2e-6
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_1), strict=True):
        assert relative(a, b) <= 1e-5


CASES = {
    "expert8-all_to_all": ({"expert": 8}, Exchange()),
    "expert8-ring": ({"expert": 8}, Exchange("ring")),
    "expert8-dense": ({"expert": 8}, Exchange("dense")),
    "data2-fsdp2-expert2-ample": ({"data": 2, "fsdp": 2, "expert": 2}, Exchange(factor=8.0)),
    "data2-expert2-tensor2-fold-data": (
        {"data": 2, "expert": 2, "tensor": 2},
        Exchange(factor=1.0, expert_axes=("data", "expert")),
    ),
    "fsdp4-tensor2-fold-both": ({"fsdp": 4, "tensor": 2}, Exchange(expert_axes=("fsdp", "expert", "tensor"))),
    "fsdp2-expert2-context2-fold-context": (
        {"fsdp": 2, "expert": 2, "context": 2},
        Exchange(expert_axes=("expert", "context")),
    ),
    "expert2-tensor2-ring-fold-tensor": (
        {"expert": 2, "tensor": 2},
        Exchange("ring", expert_axes=("expert", "tensor")),
    ),
    "expert2-tensor2-dense-fold-tensor": (
        {"expert": 2, "tensor": 2},
        Exchange("dense", expert_axes=("expert", "tensor")),
    ),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("case", CASES)
def test_mesh_equals_one_device(case, load):
    sizes, exchange = CASES[case]
    mesh = make_mesh(**sizes)
    assert_equal_to_one_device(values(step_of(mesh, exchange), load, mesh, exchange), load)


@pytest.mark.parametrize("expert_axes", [("expert",), ("expert", "tensor")], ids=["parts", "folded"])
def test_tokens_divided_over_tensor_equal_one_device(expert_axes):
    """They are gathered where `tensor` divides the experts' hidden width; where it divides the experts, they stay."""
    mesh, exchange = make_mesh(expert=2, context=2, tensor=2), Exchange(factor=1.0, expert_axes=expert_axes)
    step = step_of(mesh, exchange, sequence_parallel=True)
    for load in ("even", "one_rank"):
        assert_equal_to_one_device(values(step, load, mesh, exchange), load)


def emulated_ragged_all_to_all(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """What `lax.ragged_all_to_all` is documented to do, which CPUs cannot."""
    everyone = partial(lax.all_gather, axis_name=axis_name)
    operands, sends, starts, targets = map(everyone, (operand, send_sizes, input_offsets, output_offsets))
    me = lax.axis_index(axis_name)
    place = jnp.arange(output.shape[0])
    for source in range(sends.shape[0]):
        first, size, target = starts[source, me], sends[source, me], targets[source, me]
        size = jnp.where(size == recv_sizes[source], size, 0)  # a size that the receiver did not expect is lost
        rows = jnp.take(operands[source], first + place - target, axis=0, mode="clip")
        used = (place >= target) & (place < target + size)
        output = jnp.where(used[:, None], rows, output)
    return output


@pytest.fixture
def ragged(monkeypatch):
    """An emulated ragged exchange, whose buffers hold nan where nothing was received."""
    monkeypatch.setattr(lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    monkeypatch.setattr("maxtrain.parallel.delivery.unwritten", lambda shape, dtype: jnp.full(shape, jnp.nan, dtype))


def test_emulation_does_as_documented():
    """The example in the documentation of `lax.ragged_all_to_all`."""
    mesh = make_mesh(expert=2)
    arguments = [[1, 2, 2, 3, 4, 0], [0] * 8, [0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 1]]
    inputs = [jnp.array(a).reshape(-1, 1) if place < 2 else jnp.array(a) for place, a in enumerate(arguments)]
    island = partial(emulated_ragged_all_to_all, axis_name=("expert",))
    specs = (PartitionSpec("expert"),) * 6
    found = jax.jit(jax.shard_map(island, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False))(*inputs)
    assert found.reshape(2, 4).tolist() == [[1, 3, 0, 0], [2, 2, 4, 0]]


@pytest.mark.usefixtures("ragged")
def test_ragged_equals_one_device():
    mesh, exchange = make_mesh(data=2, expert=4), Exchange("ragged", factor=1.0)
    step = step_of(mesh, exchange)
    for load in LOADS:
        assert_equal_to_one_device(values(step, load, mesh, exchange), load)


def test_ragged_is_refused_on_cpus_and_lowers_for_accelerators():
    mesh = make_mesh(expert=8)
    with pytest.raises(UserError, match=r"mesh.exchange = ragged: CPUs have no .*; set all_to_all"):
        Exchange.create(MeshConfig(exchange="ragged"), mesh)
    x, index, weight = batch("even")
    step = step_of(mesh, Exchange("ragged", factor=2.0))
    for platform in ("tpu", "cuda"):
        lowered = step.trace(parameters(), x, weight, index).lower(lowering_platforms=(platform,))
        # Rows, their choices and results; the results' gradients and back: in the first round, in further ones, and
        # there once more what the backward pass repeats.
        assert lowered.as_text().count("custom_call @ragged_all_to_all") == 6 + 6 + 3


def test_what_a_full_buffer_drops_is_counted():
    mesh, exchange = make_mesh(expert=8), Exchange(factor=1.0, overflow="drop")
    (_, (y, dropped)), gradients = values(step_of(mesh, exchange), "one_expert", mesh, exchange)
    # A rank has 24 rows for one expert, and buffers of 8 for each of 8 ranks.
    assert dropped == 8 * (24 - 8)
    assert ((y != 0).any(-1).sum(-1) == 8).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert exchange.exact().overflow == "replay"


def test_a_model_reports_what_it_drops_and_drops_nothing_in_evaluation():
    config = ModelConfig(
        vocab_size=32,
        num_layers=1,
        d_model=8,
        num_heads=2,
        d_ff=8,
        moe=MoeConfig(num_experts=8, top_k=1, d_expert=8, balance="bias"),
    )
    layout = MeshConfig(exchange_factor=1.0, exchange_overflow="drop")
    model = Model(config, mesh=make_mesh(expert=8), layout=layout, scan_unroll=1)
    params, bias = jax.jit(model.init)(jax.random.key(0)), jnp.zeros((1, 8)).at[0, 5].set(10.0)
    ones = jnp.ones((8, T), jnp.int32)
    rows = {"tokens": ones, "targets": ones, "segment_ids": ones, "positions": jnp.cumsum(ones, 1), "weights": ones}
    _, aux = jax.jit(partial(model.loss, expert_bias=bias))(params, rows)
    assert aux.dropped.tolist() == [8 * (T - 8)]
    assert aux.expert_load[0, 5] == 8 * T
    assert model.dropless().runtime.exchange == model.runtime.exchange.exact()


def inventory(mesh, exchange):
    """Kinds of collectives in the compiled gradient, and how many of them lie in further rounds."""
    params = {
        name: jax.device_put(value, sharding)
        for (name, value), sharding in zip(parameters().items(), shardings(mesh, exchange), strict=True)
    }
    tokens = NamedSharding(mesh, to_partition_spec(("batch", "sequence"), ACTIVATION_RULES))
    x, index, weight = jax.device_put(batch("even"), tokens)

    def loss(params, x, weight):
        y, _ = run(params, x, index, weight, mesh=mesh, exchange=exchange)
        return jnp.sum(y * y)

    out = {name: value.sharding for name, value in params.items()}, tokens, tokens
    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), out_shardings=out)
    text = step.lower(params, x, weight).compile().as_text() or ""
    return Counter(COLLECTIVE.findall(text))


@pytest.mark.parametrize(
    ("sizes", "exchange", "expected"),
    [
        # Replicas exchange nothing but gradients.
        ({"data": 8}, Exchange(), {"all-reduce": 1}),
        # Rows are gathered over `expert`, outputs scattered; weights stay.
        ({"expert": 8}, Exchange("ring"), {"all-gather": 4, "reduce-scatter": 3}),
        # Rows, their choices, results, and the gradients of all three; as many in further rounds, where the backward
        # pass repeats two of the forward one; the agreement on their number. Weights stay.
        ({"expert": 8}, Exchange(), {"all-to-all": 6 + 3 + 5, "all-reduce": 1}),
        # One round that holds everything, weights gathered over `fsdp`; folded onto `fsdp`, they stay.
        ({"expert": 4, "fsdp": 2}, Exchange(factor=8.0), {"all-to-all": 6, "all-gather": 3, "reduce-scatter": 3}),
        ({"expert": 4, "fsdp": 2}, Exchange(factor=8.0, expert_axes=("fsdp", "expert")), {"all-to-all": 6}),
    ],
)
def test_collectives_are_those_meant(sizes, exchange, expected):
    found = inventory(make_mesh(**sizes), exchange)
    assert set(found) == set(expected), found
    assert all(found[kind] <= most for kind, most in expected.items()), found


@pytest.mark.parametrize("kind", ["all_to_all", "ring"])
def test_runs_under_a_vmap_over_stages(kind):
    """A pipeline maps islands over its stages: equal to a loop, and no stage's weights or rows leave it.

    The stages need different numbers of rounds.
    """
    mesh, exchange = make_mesh(fsdp=2, pipeline=2, expert=2), Exchange(kind, factor=1.0)
    stacked = {name: jnp.stack([value, 0.5 * value]) for name, value in parameters().items()}
    x = jax.random.normal(jax.random.key(5), (2, B, T, D))
    index = jnp.stack([batch("even")[1], batch("one_rank")[1]])

    def loss(params, x, index, mesh):
        def stage(params, x, index):
            return run(params, x, index, jnp.ones(index.shape), mesh=mesh, exchange=exchange)[0]

        return jnp.sum(jnp.square(jax.vmap(stage, spmd_axis_name="pipeline" if mesh else None)(params, x, index)))

    places = {
        name: NamedSharding(mesh, PartitionSpec("pipeline", *sharding.spec))
        for name, sharding in zip(AXES, shardings(mesh, exchange), strict=True)
    }
    rows = NamedSharding(mesh, PartitionSpec("pipeline", ("data", "fsdp", "expert")))
    step = jax.jit(jax.grad(partial(loss, mesh=mesh), argnums=(0, 1)), out_shardings=(places, rows))
    arguments = jax.device_put(stacked, places), jax.device_put(x, rows), jax.device_put(index, rows)
    expected = jax.jit(jax.grad(partial(loss, mesh=None), argnums=(0, 1)))(stacked, x, index)
    compiled = step.lower(*arguments).compile()
    for a, b in zip(jax.tree.leaves(compiled(*arguments)), jax.tree.leaves(expected), strict=True):
        assert relative(np.asarray(a), np.asarray(b)) <= 1e-5
    text = compiled.as_text() or ""
    assert set(COLLECTIVE.findall(text)) <= {"all-gather", "reduce-scatter", "all-to-all", "all-reduce"}
    groups = set(re.findall(r"replica_groups=(\{\{.*?\}\}|\[\S+?), ", text))
    # Devices are numbered fsdp · pipeline · expert: a group never holds both stages.
    assert groups <= {"{{0,1},{2,3},{4,5},{6,7}}", "{{0,4},{1,5},{2,6},{3,7}}", "[4,2]<=[8]", "[4,2]<=[2,4]T(1,0)"}


def test_a_row_travels_once_to_a_rank_and_to_few_ranks():
    """Four groups on eight ranks: a token of two groups has experts on at most four ranks, one parcel for each."""
    moe = MoeConfig(num_experts=32, top_k=8, d_expert=4, num_groups=4, top_groups=2)
    index = choose_experts(jax.random.normal(jax.random.key(0), (1, 64, 32)), jnp.zeros(32), moe).index_BTk[0]
    carrier = make_carrier(Exchange(num_groups=4, top_groups=2), (), 8, 4, 64, 8)
    parcels, _ = jax.jit(partial(pack, carrier))(index)
    row = np.asarray(parcels.choice_M) // 8
    rank, size = np.asarray(parcels.rank_M), np.asarray(parcels.size_M)
    sent = rank < 8
    assert carrier.most_ranks == 4
    assert np.bincount(row[sent]).max() <= 4
    assert sorted(zip(row[sent], rank[sent], strict=True)) == sorted(
        {(n, e // 4) for n, chosen in enumerate(np.asarray(index)) for e in chosen}
    )
    assert size.sum() == 64 * 8


@pytest.mark.parametrize(
    ("ranks", "groups", "top_groups"), [(2, 1, 1), (4, 1, 1), (2, 4, 2), (4, 4, 2), (8, 4, 2), (2, 4, 3), (8, 2, 1)]
)
def test_expected_ranks_of_a_row_are_those_of_all_choices(ranks, groups, top_groups):
    num_experts, top_k = 8, 2
    held, group = num_experts // ranks, num_experts // groups
    counts = [
        len({expert // held for expert in chosen})
        for allowed in itertools.combinations(range(groups), top_groups)
        for chosen in itertools.combinations([e for e in range(num_experts) if e // group in allowed], top_k)
    ]
    most, expected = ranks_of_a_row(num_experts, ranks, top_k, groups, top_groups)
    assert most == max(counts)
    assert expected == pytest.approx(np.mean(counts))


COMPILE_FOR_TPU = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from maxtrain.config.schema import MESH_AXES
from maxtrain.model.kernels.experts import experts
from maxtrain.parallel.exchange import Exchange, sharded_experts

devices = np.array(topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1").devices)
mesh = Mesh(devices.reshape(1, 1, 1, -1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 6)

def compute(*arguments, **options):
    return experts(*arguments, **options, activation="swiglu", compute_dtype=jnp.bfloat16)

def loss(x, weight, up, down, index):
    y, _ = sharded_experts(
        x, index, weight, up, up, down, mesh=mesh, exchange=Exchange("ragged", factor=8.0), compute=compute
    )
    return jnp.sum(jnp.square(y.astype(jnp.float32)))

def abstract(shape, dtype, axes):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(axes)))

rows, held = ("data", "fsdp", "expert"), "expert"
arguments = (
    abstract((8, 256, 256), jnp.bfloat16, rows),
    abstract((8, 256, 2), jnp.float32, rows),
    abstract((8, 256, 256), jnp.float32, held),
    abstract((8, 256, 256), jnp.float32, held),
    abstract((8, 256, 2), jnp.int32, rows),
)
text = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(*arguments).compile().as_text()
print("ragged-all-to-alls:", text.count(" ragged-all-to-all("))
"""


@pytest.mark.campaign
@pytest.mark.skipif(find_spec("libtpu") is None, reason="the compiler for TPUs (libtpu) is not installed")
def test_ragged_compiles_for_a_tpu():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_FOR_TPU], env=environment, capture_output=True, text=True, check=False
    )
    assert "ragged-all-to-alls: 6" in done.stdout, done.stderr
