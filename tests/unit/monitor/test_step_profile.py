import pytest

from maxtrain.core.errors import DataError
from maxtrain.monitor.step_profile import (
    Event,
    axes_of,
    parse_program,
    read_profiles,
    summarise,
    to_markdown,
    union_seconds,
    write_profile,
)

MESH = {"data": 2, "fsdp": 1, "pipeline": 1, "expert": 2, "context": 1, "tensor": 2}
PROGRAM = """\
HloModule jit_train_step

%fused (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%p, %p), metadata={op_name="jit(train_step)/transpose(jvp(experts))/dot_general"}
}

%plain (q: f32[8]) -> f32[8] {
  ROOT %q = f32[8]{0} parameter(0)
}

ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %ynn_fusion = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%fused
  %add.2 = f32[8,8]{1,0} add(%a, %a), metadata={op_name="jit(train_step)/jvp(attention)/while/body/add"}
  %norm = f32[8,8]{1,0} multiply(%a, %a), metadata={op_name="jit(train_step)/attention_norm/mul"}
  %loop = (s32[], /*index=1*/f32[8,8]{1,0}) while(%a), condition=%c, body=%b
  %all-reduce.3 = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%sum
  %all-gather-start.1 = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  ROOT %dot.9 = f32[8,8]{1,0} dot(%a, %a), metadata={op_name="jit(train_step)/optimizer/dot_general"}
}
"""


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ["tensor"]),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", ["data"]),
        ("replica_groups=[4,2]<=[8]", ["tensor"]),
        ("replica_groups=[2,4]<=[8]", ["expert", "tensor"]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ["data"]),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1)", ["expert"]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_1'}, use_global_device_ids=true", ["expert"]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ["data"]),
        ("replica_groups={}", ["data", "expert", "tensor"]),
        ("source_target_pairs={{0,2},{2,0},{1,3},{3,1}}", ["expert"]),
        ("replica_groups={{0},{1},{2},{3}}", []),
        ("replica_groups={{0,9}}", []),
        ("channel_id=1", []),
    ],
)
def test_the_mesh_axes_of_a_collective(text, axes):
    assert axes_of(f"f32[8]{{0}} all-reduce(%x), channel_id=1, {text}, metadata={{}}", MESH) == axes


def test_every_instruction_gets_its_row():
    program = parse_program(PROGRAM, MESH)
    assert (program["ynn_fusion"].row, program["ynn_fusion"].is_product) == ("experts", True)
    assert (program["add.2"].row, program["add.2"].is_product) == ("attention", False)
    assert program["norm"].row == "other"
    assert program["loop"].is_control_flow
    assert program["all-reduce.3"].row == "all-reduce (tensor)"
    assert program["all-gather-start.1"].row == "all-gather (data)"
    assert (program["dot.9"].row, program["dot.9"].is_product) == ("optimizer", True)


@pytest.fixture(name="profile")
def profile_fixture():
    # One after another, from here: (start, seconds).
    spent = {"ynn_fusion": (7, 4.0), "add.2": (11, 2.0), "loop": (7, 50.0), "all-reduce.3": (13, 1.0), "new": (14, 1.0)}
    events = [Event(name, device, *when) for name, when in spent.items() for device in range(2)]
    return summarise(
        events, parse_program(PROGRAM, MESH), steps=(3, 4), num_devices=2, step_seconds=5.0, host_seconds=0.5
    )


def test_seconds_are_a_step_and_device(profile):
    assert {row.name: (row.product_seconds, row.seconds) for row in profile.rows} == {
        "experts": (2.0, 2.0),
        "attention": (0.0, 1.0),
        "all-reduce (tensor)": (0.0, 0.5),
        "other": (0.0, 0.5),
    }
    assert profile.idle_seconds == pytest.approx(0.5)
    assert profile.communication_fraction == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (3, 4)], 3),
        ([(5, 7), (1, 3)], 4),
        ([(1, 4), (2, 3), (2, 6)], 5),
        ([(1, 9), (2, 3), (4, 5), (8, 10)], 9),
        ([(1, 3), (1, 3), (1, 3)], 2),
        ([(2, 2)], 0),
    ],
)
def test_the_length_of_a_union(spans, seconds):
    assert union_seconds(spans) == seconds
    assert union_seconds(reversed(spans)) == seconds


def summarise_spans(spans, *, step_seconds=10.0, host_seconds=1.0, num_devices=1):
    events = [Event(name, device, start, end - start) for name, device, start, end in spans]
    return summarise(
        events,
        parse_program(PROGRAM, MESH),
        steps=(3, 3),
        num_devices=num_devices,
        step_seconds=step_seconds,
        host_seconds=host_seconds,
    )


def test_what_goes_on_at_once_is_counted_once():
    profile = summarise_spans(
        [
            ("ynn_fusion", 0, 0, 4),
            ("ynn_fusion", 0, 2, 5),  # another thread
            ("all-reduce.3", 0, 1, 3),  # hidden by the experts
            ("all-reduce.3", 0, 2, 6),
            ("all-gather-start.1", 0, 5, 8),  # another axis, at once with the sum
        ]
    )
    assert {row.name: (row.product_seconds, row.seconds) for row in profile.rows} == {
        "experts": (5, 5),
        "all-reduce (tensor)": (0, 5),
        "all-gather (data)": (0, 3),
    }
    assert profile.communication_fraction == pytest.approx(0.7)  # 1 to 8
    assert profile.host_seconds == 1
    assert profile.idle_seconds == pytest.approx(1)  # 10 less 0 to 8 less the host's


def test_devices_do_not_hide_each_other():
    spans = [("add.2", 0, 0, 4), ("add.2", 1, 0, 4), ("all-reduce.3", 1, 2, 6)]
    profile = summarise_spans(spans, num_devices=2, host_seconds=0.0)
    assert {row.name: row.seconds for row in profile.rows} == {"attention": 4, "all-reduce (tensor)": 2}
    assert profile.idle_seconds == pytest.approx(5)  # 4 seconds of one device, 6 of the other


def test_the_host_is_told_only_where_the_device_had_nothing_to_do():
    busy = summarise_spans([("add.2", 0, 0, 9.5)], host_seconds=3.0)
    assert (busy.host_seconds, busy.idle_seconds) == (0.5, 0)
    over = summarise_spans([("add.2", 0, 0, 11)], host_seconds=3.0)
    assert (over.host_seconds, over.idle_seconds) == (0, 0)


def test_a_profile_is_written_and_read(profile, tmp_path):
    write_profile(tmp_path, profile)
    assert read_profiles(tmp_path) == [profile]
    text = (tmp_path / "steps_3_4.md").read_text(encoding="utf-8")
    assert text == to_markdown(profile)
    assert "| all-reduce (tensor)                |    0.0000 |    0.5000 |  10.0% |" in text
    assert "Products of matrices 40.0% of the step, collectives 10.0%." in text
    (tmp_path / "steps_5_6.json").write_text("{}")
    with pytest.raises(DataError, match=r"steps_5_6\.json: no table"):
        read_profiles(tmp_path)
