from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from maxtrain.core.trees import from_paths, is_key, leaf_paths, num_bytes


class State(NamedTuple):
    params: Any
    moments: tuple[Any, ...]
    nothing: None = None


def _state() -> State:
    return State({"layer": {"w": jnp.ones((2, 3)), "b": jnp.zeros(3, jnp.bfloat16)}}, (jnp.int32(1), jnp.int32(2)))


def test_paths_name_attributes_keys_and_indices_alike_and_skip_none():
    assert [path for path, _ in leaf_paths(_state())] == [
        "params/layer/b",
        "params/layer/w",
        "moments/0",
        "moments/1",
    ]
    assert [path for path, _ in leaf_paths({"params": {"layer": {"w": 1}}})] == ["params/layer/w"]


def test_two_leaves_of_one_path_are_refused():
    with pytest.raises(ValueError, match="the path 'a/b'"):
        leaf_paths({"a/b": 1, "a": {"b": 2}})


def test_from_paths_is_the_inverse_in_any_order_and_gives_the_structure_of_like():
    state = _state()
    again = from_paths(state, dict(reversed(leaf_paths(state))))
    assert isinstance(again, State)
    assert again.params["layer"]["w"] is state.params["layer"]["w"]
    assert int(again.moments[1]) == 2
    with pytest.raises(KeyError, match="moments/1"):
        from_paths(state, dict(leaf_paths(state)[:-1]))


def test_num_bytes_counts_arrays_abstract_or_not_and_keys():
    state = _state()
    assert num_bytes(state) == 2 * 3 * 4 + 3 * 2 + 4 + 4
    assert num_bytes(jax.eval_shape(_state)) == num_bytes(state)
    assert num_bytes(jax.random.split(jax.random.key(0), 3)) == 3 * 8


def test_keys_are_told_from_other_arrays():
    assert is_key(jax.random.key(0))
    assert is_key(jax.eval_shape(lambda: jax.random.key(0)))
    assert not is_key(jax.random.key_data(jax.random.key(0)))
