"""What `fsdp` divides under mesh.zero = 1, 2, 3; test_parity holds the training itself against one device."""

import re

import numpy as np
import pytest

from maxtrain.train.state import to_saved

UP = "layers/moe/feed_forward/experts/up"


@pytest.fixture(scope="module")
def built(on_mesh):
    """The same mesh under each mesh.zero, with accumulation."""
    return {zero: on_mesh(2, fsdp=2, expert=2, **({} if zero == 3 else {"zero": zero})) for zero in (1, 2, 3)}


@pytest.fixture(scope="module")
def compiled(built):
    return {zero: one.step for zero, one in built.items()}


def part_held(leaf) -> float:
    """Share of an array that one device holds."""
    return np.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size


@pytest.mark.parametrize(("zero", "share"), [(1, 1 / 2), (2, 1 / 2), (3, 1 / 4)])
def test_parameters_are_whole_under_3_and_moments_never(built, zero, share):
    saved = to_saved(built[zero].parts.abstract_state, built[zero].parts.model)
    assert part_held(saved["params"]["layers"]["moe"]["feed_forward"]["experts"]["up"]) == share  # over `expert` anyway
    assert part_held(saved["opt_state"][f"mu/{UP}"]) == 1 / 4


def test_gradients_are_reduced_whole_at_1_and_to_shards_from_2(compiled):
    """Beside what exchanges the experts' rows, whatever mesh.zero is."""
    scatters, gathers = (
        {zero: len(re.findall(rf" {kind}\(", step.as_text())) for zero, step in compiled.items()}
        for kind in ("reduce-scatter", "all-gather")
    )
    assert scatters[1] < scatters[2] == scatters[3]
    # New parameters are gathered once a step; for use, in the passes over the layers, only at 3.
    assert gathers[1] == gathers[2] < gathers[3]
