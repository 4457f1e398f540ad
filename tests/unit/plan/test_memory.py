"""The planner's bytes, which know no JAX, are those of the state that a run has."""

from functools import partial
from pathlib import Path

import jax
import pytest

from maxtrain.config import Config, load_config
from maxtrain.model import Model
from maxtrain.optim import make_optimizer
from maxtrain.plan import count_parameters, state_bytes
from maxtrain.train.state import TrainState, init_key, new_state

FIRST = "configs/learning/first.yaml"
BFLOAT16 = ["precision.parameters=bfloat16", "optimizer.stochastic_rounding=true"]


def shapes(config: Config) -> TrainState:
    model = Model(config.model, precision=config.precision)
    axes = {spec.path: spec.axes for spec in model.table}
    optimizer = make_optimizer(config.optimizer, model.abstract_params(), axes)
    return jax.eval_shape(partial(new_state, model, optimizer), init_key(0))


def size_of(tree: object) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize(
    "formats",
    [
        [],
        BFLOAT16,
        ["optimizer.mu_dtype=bfloat16"],
        ["optimizer.nu_dtype=bfloat16"],
        [*BFLOAT16, "optimizer.mu_dtype=bfloat16", "optimizer.nu_dtype=bfloat16"],
    ],
)
@pytest.mark.parametrize(
    "model",
    [
        [],
        ["model.moe=null"],
        ["model.tie_embeddings=true", "model.attention_gate=true", "model.moe.num_shared=1", "model.moe.first_dense=1"],
    ],
)
def test_bytes_are_those_of_the_state(root: Path, name: str, formats: list[str], model: list[str]) -> None:
    config = load_config(root / FIRST, [f"optimizer.name={name}", *formats, *model])
    counted, state = state_bytes(config), shapes(config)
    assert counted.parameters == size_of(state.params)
    assert counted.moments == size_of(state.opt_state) - 4  # its count
    assert counted.total == size_of(state)


def test_bytes_of_every_preset(root: Path) -> None:
    paths = sorted((root / "configs").rglob("*.yaml"))
    assert paths
    for path in paths:
        config = load_config(path)
        assert state_bytes(config).total == size_of(shapes(config)), path


def test_formats_of_two_bytes_halve_what_they_store(root: Path) -> None:
    wide, low = (
        state_bytes(load_config(root / FIRST, overrides))
        for overrides in ([], [*BFLOAT16, "optimizer.mu_dtype=bfloat16", "optimizer.nu_dtype=bfloat16"])
    )
    assert wide.parameters == 4 * count_parameters(load_config(root / FIRST).model).total
    assert (low.moments, low.counters) == (wide.moments / 2, wide.counters)
    assert wide.parameters / 2 < low.parameters < wide.parameters
