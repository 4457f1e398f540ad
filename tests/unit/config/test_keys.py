from typing import Any

import pytest

from maxtrain.config.keys import SYNONYMS, all_keys, find_key, nearest_key


def test_there_are_fewer_than_200_keys_and_each_has_its_text() -> None:
    keys = all_keys()
    assert 100 < len(keys) < 200
    assert [path for path, key in keys.items() if not key.doc] == []
    assert [path for path, key in keys.items() if not key.doc.endswith(".")] == []


@pytest.mark.parametrize(
    ("path", "type_text", "default"),
    [
        ("model.num_layers", "a whole number > 0 and <= 1,048,576", None),
        ("train.total_tokens", "a count (as 65536, 64Ki, 1.5M or 10T) > 0", None),
        ("schedule.warmup_tokens", "a count (as 65536, 64Ki, 1.5M or 10T) >= 0 or null", None),
        ("optimizer.beta1", "a number >= 0 and <= 0.999999", 0.9),
        ("model.dropout", "a number >= 0 and <= 1", 0.0),
        ("remat.policy", "one of none, full, save_attention, save_dots, offload_dots", "none"),
        ("remat.layers.0.last", "a whole number >= 0", None),
        ("model.qk_norm", "true or false", False),
        ("data.mixture.code.filter.lang", "a text or a list of texts with at least one entry or null", None),
        ("data.stages.0.mixture.code.weight", "a number > 0", None),
        ("data.stages", "a list of sections", ()),
        ("mesh.data", "a whole number >= -1 and <= 1,048,576", 1),
    ],
)
def test_a_key_knows_its_type_and_default(path: str, type_text: str, default: Any) -> None:
    key = find_key(path)
    assert key is not None
    assert (key.type_text, key.default) == (type_text, default)


@pytest.mark.parametrize("path", ["model.nothing", "nothing", "model.num_layers.x", "data.mixture.a.b", ""])
def test_what_is_no_key_is_not_found(path: str) -> None:
    assert find_key(path) is None


def test_every_synonym_leads_to_a_key_and_is_none_itself() -> None:
    assert [known for known in SYNONYMS.values() if find_key(known) is None] == []
    assert set(SYNONYMS) & set(all_keys()) == set()


def test_a_key_with_its_last_letter_lost_is_found_again() -> None:
    leaves = [key.path for key in all_keys().values() if "*" not in key.path and key.section is None]
    # Without its digit, beta2 is as near to beta1.
    typed = {path: path[:-1] for path in leaves if path != "optimizer.beta2"}
    lost = {path: nearest_key(wrong) for path, wrong in list(typed.items())[::3] if find_key(wrong) is None}
    assert {path: near for path, near in lost.items() if near != path} == {}


def test_what_is_like_nothing_has_no_nearest_key() -> None:
    assert nearest_key("xyzzy") is None
