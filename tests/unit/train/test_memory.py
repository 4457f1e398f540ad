import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import RematConfig
from maxtrain.core.errors import ExitCode, run_command
from maxtrain.train.feed import abstract_batch
from maxtrain.train.memory import (
    MemoryTable,
    OutOfMemoryError,
    kept_activations,
    known_memory,
    largest_cure,
    measure_memory,
    out_of_memory_explained,
)
from maxtrain.train.parts import build_parts


@pytest.fixture(scope="module")
def measured(make_config):
    """Config, plan, parts and table of a step in two microbatches."""
    config = make_config(batch={"micro_batch": 4}, model={"moe": None})
    plan = plan_batches(config)
    parts = build_parts(config, plan, 2)
    return config, plan, parts, measure_memory(config, plan, parts)


def test_the_table_accounts_for_the_compiled_step(measured):
    config, _, parts, table = measured
    size = sum(math.prod(spec.shape) for spec in parts.model.table)
    assert table.parameters == table.gradients == 4 * size
    assert table.moments == 2 * table.parameters + 4  # Adam's two, and its count
    rows = 4 * config.data.sequence_length
    assert table.logits == 4 * rows * config.model.vocab_size
    assert table.batch is not None
    assert table.batch > 5 * 8 * config.data.sequence_length * 4
    assert table.activations
    assert table.total == sum(
        size
        for size in (
            table.parameters,
            table.moments,
            table.gradients,
            table.activations,
            table.logits,
            table.batch,
            table.temporary,
        )
        if size is not None
    )
    assert [line.split()[0] for line in table.lines()] == [
        "parameters", "moments", "gradients", "activations", "logits", "batch", "temporary", "total"
    ]  # fmt: skip


@pytest.mark.parametrize("micro_batch", [4, 8])
def test_the_table_knows_what_is_stored_in_bfloat16(make_config, micro_batch):
    low = {"mu_dtype": "bfloat16", "nu_dtype": "bfloat16", "stochastic_rounding": True}
    config = make_config(
        batch={"micro_batch": micro_batch},
        precision={"parameters": "bfloat16"},
        optimizer=low,
        remat={"policy": "full"},
    )
    plan = plan_batches(config)
    parts = build_parts(config, plan, 2)
    table, size = known_memory(config, plan, parts), sum(spec.size for spec in parts.model.table)

    def stored(tree):
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    state = jax.eval_shape(parts.new_state, jax.random.key(0))
    assert (table.parameters, table.moments) == (stored(state.params), stored(state.opt_state))
    assert table.moments == 4 * size + 4
    assert 2 * size < table.parameters < 4 * size
    assert table.gradients == (4 * size if micro_batch == 4 else table.parameters)


def test_recomputation_keeps_less(measured):
    config, plan, _, table = measured
    config = config.model_copy(update={"remat": RematConfig(policy="full")})
    parts = build_parts(config, plan, 2)
    kept = kept_activations(parts, abstract_batch(parts.mesh, 4, 8, config.data.sequence_length))
    assert kept >= config.model.num_layers * 4 * config.data.sequence_length * config.model.d_model * 4
    assert kept < table.activations / 2


def test_a_device_without_memory_is_told_with_the_table(measured, capsys):
    config, plan, parts, table = measured

    def run():
        with out_of_memory_explained(config, plan, parts):
            jax.jit(lambda: jnp.zeros(2**50, jnp.int8))()

    assert run_command(run) == ExitCode.USAGE
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("error: a device is out of memory (RESOURCE_EXHAUSTED: Out of memory allocating")
    assert [line.strip() for line in lines[:-1]] == table.lines()
    assert lines[-1].strip() == largest_cure(config, table, parts.mesh)


def test_other_errors_pass(measured):
    config, plan, parts, _ = measured
    for error in (jax.errors.JaxRuntimeError("INTERNAL: no memory of that"), ValueError("RESOURCE_EXHAUSTED")):
        with pytest.raises(type(error)) as caught, out_of_memory_explained(config, plan, parts):
            raise error
        assert not isinstance(caught.value, OutOfMemoryError)


def test_without_a_compiled_step_what_is_known_is_told():
    table = MemoryTable(10, 20, 10, None, 5, None, None, capacity=30)
    assert table.total == 45
    assert [line.split()[:2] for line in table.lines() if "–" in line] == [
        ["activations", "–"], ["batch", "–"], ["temporary", "–"]
    ]  # fmt: skip
    assert table.lines()[-1].startswith("device")


GIB = 2**30


@pytest.mark.parametrize(
    ("sections", "mesh", "table", "cure"),
    [
        ({}, {}, (1, 2, 1, 40, 1), "remat.policy=full, which saves about 40.0 GiB"),
        ({"remat": {"policy": "full"}}, {}, (1, 2, 1, 40, 1), "batch.micro_batch=4, which saves about 20.0 GiB"),
        (
            {"remat": {"policy": "full"}, "batch": {"micro_batch": 1}},
            {},
            (1, 2, 1, 40, 1),
            "precision.activations=bfloat16, which saves about 20.0 GiB",
        ),
        ({"mesh": {"zero": 1}}, {"fsdp": 8}, (16, 2, 16, 1, 1), "mesh.zero=3, which saves about 28.0 GiB"),
        ({}, {"data": 4}, (16, 32, 16, 1, 1), "mesh.fsdp=4 with mesh.data=1, which saves about 48.0 GiB"),
        ({}, {"fsdp": 4}, (16, 32, 16, 1, 1), "twice the devices with mesh.fsdp=8, which saves about 32.0 GiB"),
        ({"train": {"kernels": "reference"}}, {}, (1, 2, 1, 1, 90), "train.kernels=auto (the loss in chunks), which"),
    ],
)
def test_the_largest_cure(make_config, sections, mesh, table, cure):
    parameters, moments, gradients, activations, logits = (GIB * size for size in table)
    told = MemoryTable(parameters, moments, gradients, activations, logits, 0, 0, None)
    shape = {axis: mesh.get(axis, 1) for axis in ("data", "fsdp", "context")}
    assert largest_cure(make_config(**sections), told, SimpleNamespace(shape=shape)).startswith(f"largest cure: {cure}")
