import math

import pytest

from maxtrain.monitor.events import EVENT_KINDS, EventLog, read_events
from maxtrain.monitor.heldout import HeldOutResult, HeldOutWriter, Score, read_heldout
from maxtrain.monitor.metrics import MetricsWriter, iterate_metrics, next_attempt, read_metrics
from maxtrain.monitor.record import read_columns


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_lines_come_back_equal(path, make_line):
    with MetricsWriter(path, attempt=1) as writer:
        written = [writer.write(make_line(step, loss=10 / 3 / step)) for step in (1, 2, 3)]
    assert read_metrics(path) == written
    assert written[0]["attempt"] == 1
    assert written[0]["time"].endswith("Z")


def test_a_line_that_breaks_the_schema_is_not_written(path, make_line):
    with MetricsWriter(path, attempt=1) as writer, pytest.raises(ValueError, match="loss should be float"):
        writer.write(make_line(1, loss=1))
    assert path.read_bytes() == b""


def test_the_last_line_of_a_step_counts(path, make_line):
    with MetricsWriter(path, attempt=1) as writer:
        for step in (1, 2, 3):
            writer.write(make_line(step, loss=1.0))
    with MetricsWriter(path, attempt=2) as writer:
        for step in (2, 3, 4):
            writer.write(make_line(step, loss=2.0))
    lines = read_metrics(path)
    assert [(line["step"], line["attempt"], line["loss"]) for line in lines] == [
        (1, 1, 1.0),
        (2, 2, 2.0),
        (3, 2, 2.0),
        (4, 2, 2.0),
    ]
    assert [line["step"] for line in iterate_metrics(path)] == [1, 2, 3, 2, 3, 4]


def test_lines_of_a_way_that_was_left_do_not_count(path, make_line):
    for attempt, steps in ((1, range(1, 10)), (2, range(3, 5)), (3, range(5, 6))):
        with MetricsWriter(path, attempt) as writer:
            for step in steps:
                writer.write(make_line(step, loss=float(attempt)))
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]
    columns = read_columns(path)
    assert columns.steps.tolist() == [1, 2, 3, 4, 5]
    assert columns.load_tokens.tolist() == columns.tokens.tolist()


def test_a_torn_line_is_cut_away_and_told(path, make_line):
    with MetricsWriter(path, attempt=1) as writer:
        writer.write(make_line(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert len(read_metrics(path)) == 1
    with MetricsWriter(path, attempt=2) as writer:
        assert writer.removed_bytes == len(whole) // 2
        writer.write(make_line(2))
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_chosen_fields_only(path, make_line):
    with MetricsWriter(path, attempt=1) as writer:
        writer.write(make_line(1, loss=math.nan))
    ((step, loss),) = [tuple(line.values()) for line in read_metrics(path, ["step", "loss"])]
    assert step == 1
    assert math.isnan(loss)


def test_attempts_count_on_over_both_files(tmp_path, make_line):
    metrics, events = tmp_path / "metrics.jsonl", tmp_path / "events.jsonl"
    assert next_attempt(metrics, events) == 1
    with MetricsWriter(metrics, attempt=1) as writer:
        writer.write(make_line(1))
    assert next_attempt(metrics, events) == 2
    log = EventLog(events, attempt=2)  # an attempt that dies before its first step
    log.write("start")
    log.close()
    assert next_attempt(metrics, events) == 3
    metrics.write_bytes(metrics.read_bytes() + b'{"attempt": 9')
    assert next_attempt(metrics, events) == 3


def test_an_absent_file_has_no_lines(tmp_path):
    assert read_metrics(tmp_path / "none") == []
    assert read_heldout(tmp_path / "none") == []
    assert read_events(tmp_path / "none") == []


def test_heldout_results_come_back_equal_and_the_last_of_a_step_counts(tmp_path):
    path = tmp_path / "eval" / "heldout.jsonl"
    score = Score(loss=2 / 3, bits_per_byte=None, tokens=10, bytes=0)
    first = HeldOutResult(10, 5120, {"数学": Score(math.inf, 1.25, 4, 9)}, score)
    for attempt, result in [(1, first), (2, first), (2, HeldOutResult(20, 10240, {}, score))]:
        writer = HeldOutWriter(path, attempt)
        writer.write(result)
        writer.close()
    back = read_heldout(path)
    assert [(result.step, result.attempt) for result in back] == [(10, 2), (20, 2)]
    assert back[0].by_domain == first.by_domain
    assert back[0].total == score


def test_events_are_durable_and_come_back(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, attempt=1)
    log.write("skip", 7, reason="loss is not finite", loss=math.nan)
    (event,) = read_events(path)
    assert (event.attempt, event.kind, event.step) == (1, "skip", 7)
    assert event.fields == {"reason": "loss is not finite", "loss": "nan"}
    with pytest.raises(ValueError, match="event kind 'skipp' is not one of"):
        log.write("skipp", 7)
    log.close()
    assert len(read_events(path)) == 1


def test_a_repaired_event_log_says_so(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"time": "2026')
    EventLog(path, attempt=1).close()
    (event,) = read_events(path)
    assert event.kind == "repair"
    assert event.fields == {"file": "events.jsonl", "removed_bytes": 14}


def test_event_kinds_are_described():
    assert {"start", "stop", "skip", "save", "save_failed", "restore", "fallback", "evaluate"} <= set(EVENT_KINDS)
