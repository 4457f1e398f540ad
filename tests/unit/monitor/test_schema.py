import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.monitor.schema import BY_NAME, DETERMINISTIC, FIELDS, check_line, decode, deterministic_view, encode

NAMES = [
    "attempt",
    "time",
    "step",
    "updates",
    "tokens_seen",
    "batch_digest",
    "target_tokens",
    "loss",
    "cross_entropy",
    "balance_loss",
    "router_z_loss",
    "z_loss",
    "loss_by_domain",
    "tokens_by_domain",
    "epochs",
    "padding_fraction",
    "grad_norm",
    "grad_norm_by_group",
    "update_norm",
    "param_norm",
    "lr",
    "max_attention_logit",
    "skipped",
    "skipped_target_tokens",
    "skips_in_a_row",
    "expert_load",
    "expert_load_max_over_mean",
    "expert_entropy",
    "router_entropy",
    "dropped_tokens",
    "flops_per_token",
    "num_devices",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "mfu",
    "step_seconds",
    "data_wait_seconds",
    "device_seconds",
    "host_seconds",
    "save_stall_seconds",
    "communication_fraction",
    "memory_bytes",
    "memory_peak_bytes",
]
MEASURED = {
    "attempt",
    "time",
    "num_devices",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "mfu",
    "step_seconds",
    "data_wait_seconds",
    "device_seconds",
    "host_seconds",
    "save_stall_seconds",
    "communication_fraction",
    "memory_bytes",
    "memory_peak_bytes",
}


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def whole(make_line, **changes):
    return {"attempt": 1, "time": "2026-01-01T00:00:00.000Z", **make_line(3, **changes)}


def test_field_names_are_pinned():
    assert [field.name for field in FIELDS] == NAMES


def test_deterministic_fields_are_pinned():
    assert set(DETERMINISTIC) == set(NAMES) - MEASURED


def test_every_field_is_described():
    assert all(field.description.endswith(".") for field in FIELDS)


def test_a_whole_line_passes(make_line):
    check_line(whole(make_line))
    check_line(whole(make_line, expert_load=[], expert_load_max_over_mean=[], dropped_tokens=[], router_entropy=[]))
    check_line(whole(make_line, expert_load=None, mfu=None))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_raises(make_line, name):
    line = whole(make_line)
    del line[name]
    with pytest.raises(ValueError, match=name):
        check_line(line)


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_another_type_raises(make_line, name):
    for wrong in (object(), b"x", {1: 2.0}, [[1.5]], [[1], [1, 2]]):
        with pytest.raises(ValueError, match=f"{name} should be"):
            check_line(whole(make_line) | {name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("step", True),
        ("step", 3.0),
        ("loss", 3),
        ("loss", None),
        ("skipped", 0),
        ("loss_by_domain", {"english": 3}),
        ("tokens_by_domain", {"english": None}),
        ("grad_norm_by_group", {"encoder": 1.0}),
        ("expert_load", [[1, 2], [3]]),
        ("expert_load", [[1.0]]),
        ("dropped_tokens", [None]),
    ],
)
def test_near_misses_raise(make_line, name, wrong):
    with pytest.raises(ValueError, match=f"{name} should be"):
        check_line(whole(make_line) | {name: wrong})


def test_an_unknown_field_raises(make_line):
    with pytest.raises(ValueError, match="unknown \\['los'\\]"):
        check_line(whole(make_line) | {"los": 1.0})


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=False, width=32))
def test_floats_come_back_with_the_same_bits(loss, domain_loss):
    text = encode({"loss": loss, "loss_by_domain": {"a": domain_loss}})
    back = decode(json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON")))
    assert bits(back["loss"]) == bits(math.nan if math.isnan(loss) else loss)
    assert bits(back["loss_by_domain"]["a"]) == bits(domain_loss)


def test_non_finite_floats_have_a_written_form():
    assert encode({"loss": math.nan, "grad_norm": math.inf, "epochs": {"a": -math.inf}}) == (
        '{"loss":"nan","grad_norm":"inf","epochs":{"a":"-inf"}}'
    )


def test_only_fields_of_floats_are_decoded():
    assert decode({"time": "nan", "loss": "nan"})["time"] == "nan"


def test_deterministic_view_drops_what_was_measured(make_line):
    view = deterministic_view(whole(make_line))
    assert set(view) == set(DETERMINISTIC)
    assert all(BY_NAME[name].deterministic for name in view)
