"""A run that is stopped, killed or evaluated on the way is bit-identical to one that is not."""

import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from maxtrain.checkpoint import list_steps, store
from maxtrain.checkpoint.steps import newest_record
from maxtrain.core.errors import CheckpointError, StoppedError
from maxtrain.loader import Loader
from maxtrain.monitor.events import read_events
from maxtrain.monitor.metrics import read_metrics
from maxtrain.monitor.step_profile import SCOPES, read_profiles

DROPOUT = ("model.dropout=0.1",)


@pytest.fixture(scope="module")
def whole(runner, tmp_path_factory):
    """An uninterrupted run, without and with dropout: (final leaves, lines)."""
    results = {}
    for overrides in ((), DROPOUT):
        directory = tmp_path_factory.mktemp("whole") / "run"
        assert runner.train(directory, *overrides) == 0
        results[overrides] = runner.final_state(directory, *overrides), runner.lines(directory)
    return results


def stops() -> list:
    """Every step without and with dropout; most of the latter are left to the campaign."""
    plain = [pytest.param((), k, id=f"plain-{k}") for k in range(1, 12)]
    rare = [() if k in (1, 6, 11) else (pytest.mark.campaign,) for k in range(1, 12)]
    dropped = [pytest.param(DROPOUT, k, id=f"dropout-{k}", marks=marks) for k, marks in enumerate(rare, 1)]
    return plain + dropped


@pytest.mark.parametrize(("overrides", "k"), stops())
def test_stop_at_every_step(runner, whole, same_bits, tmp_path, overrides, k):
    directory = tmp_path / "run"
    assert runner.train(directory, *overrides, stop_at=k) == 0
    assert len(runner.lines(directory)) == k
    assert runner.train(directory, *overrides) == 0
    final, lines = whole[overrides]
    same_bits(runner.final_state(directory, *overrides), final)
    assert runner.lines(directory) == lines
    assert [line["step"] for line in lines] == list(range(1, 13))


def test_dropout_and_domains_are_real(whole):
    plain, dropped = whole[()][1], whole[DROPOUT][1]
    assert [line["batch_digest"] for line in plain] == [line["batch_digest"] for line in dropped]
    assert plain[-1]["loss"] != dropped[-1]["loss"]
    assert len({line["batch_digest"] for line in plain}) == 12
    assert all(count > 0 for count in plain[-1]["tokens_by_domain"].values())


def test_evaluation_saving_and_logging_change_no_bit(runner, whole, same_bits, tmp_path):
    directory = tmp_path / "run"
    extra = ("evaluation.every=3", "evaluation.max_tokens=2048", "checkpoint.every=1", "checkpoint.asynchronous=false")
    assert runner.train(directory, *extra, "logging.tensorboard=true") == 0
    same_bits(runner.final_state(directory), whole[()][0])
    assert runner.lines(directory) == whole[()][1]


def test_profiling_changes_no_bit_and_tells_every_part(runner, whole, same_bits, tmp_path):
    directory = tmp_path / "run"
    assert runner.train(directory, "profile.steps=[5,6]", "checkpoint.every=6") == 0
    same_bits(runner.final_state(directory), whole[()][0])
    assert runner.lines(directory) == whole[()][1]
    [profile] = read_profiles(directory / "profile")
    assert (profile.first_step, profile.last_step) == (5, 6)
    assert {row.name for row in profile.rows} == {*SCOPES, "other"}
    assert all(row.product_seconds > 0 for row in profile.rows if row.name in ("attention", "experts", "cross_entropy"))
    measured = [line["communication_fraction"] for line in read_metrics(directory / "metrics.jsonl")]
    assert measured == [None] * 4 + [0.0] * 2 + [None] * 6


def kill_at_random_instants(runner, directory: Path, num_kills: int, seed: int) -> None:
    """Start the run again and again, kill it at random instants after it has begun, then let it end."""
    instants = random.Random(seed)
    config = str(runner.write(directory))
    for _ in range(num_kills):
        process = runner.command("maxtrain.train", config, "checkpoint.every=2")
        begun = directory / "events.jsonl"
        size = begun.stat().st_size if begun.exists() else 0
        while process.poll() is None and (not begun.exists() or begun.stat().st_size <= size):
            time.sleep(0.02)
        time.sleep(instants.uniform(0, 6))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    process = runner.command("maxtrain.train", config, "checkpoint.every=2")
    _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.campaign)])
def test_kill_at_random_instants(runner, same_bits, tmp_path, num_kills):
    reference = tmp_path / "reference"
    process = runner.command("maxtrain.train", str(runner.write(reference)), "checkpoint.every=2")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    directory = tmp_path / "killed"
    kill_at_random_instants(runner, directory, num_kills, seed=num_kills)
    same_bits(runner.final_state(directory), runner.final_state(reference))
    assert runner.lines(directory) == runner.lines(reference)


def test_sigterm_saves_and_stops(runner, whole, same_bits, tmp_path):
    directory = tmp_path / "run"
    config = str(runner.write(directory))
    process = runner.command("maxtrain.train", config, "checkpoint.every=1000")
    metrics = directory / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.stat().st_size == 0):
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode in (0, 128 + signal.SIGTERM), errors  # 0 if it was faster than the signal
    assert runner.train(directory) == 0
    assert runner.lines(directory)[-1]["step"] == 12
    assert [line["batch_digest"] for line in runner.lines(directory)] == [line["batch_digest"] for line in whole[()][1]]


def verdicts(directory: Path) -> list[tuple[int, str]]:
    """Step and health of every line of health.jsonl."""
    lines = (directory / "checkpoints" / "health.jsonl").read_text().splitlines()
    return [(line["step"], line["health"]) for line in map(json.loads, lines)]


def test_a_skipped_step_at_a_save_leaves_it_good_and_many_in_a_row_do_not(runner, same_bits, tmp_path, monkeypatch):
    batch, probation = Loader.batch, "checkpoint.healthy_after=2"

    def spoiled(self, step, select=None):
        values = batch(self, step, select)
        if step == 3 or step >= 6:  # a weight that the loss overflows with, though the number of target tokens does not
            values["weights"] = (
                np.where(np.arange(values["weights"].size) == 0, np.float32(1e38), 1)
                .reshape(values["weights"].shape)
                .astype(np.float32)
            )
        return values

    monkeypatch.setattr(Loader, "batch", spoiled)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert runner.train(whole, probation, stop_at=6) == 0
    assert runner.train(stopped, probation, stop_at=4) == 0
    (start, saved) = list_steps(stopped / "checkpoints")
    assert start.step == 0
    assert saved.record is not None
    assert (saved.step, saved.health, saved.record["updates"]) == (4, "provisional", 3)
    assert runner.train(stopped, probation, stop_at=6) == 0
    events = read_events(stopped / "events.jsonl")
    assert [event.step for event in events if event.kind == "restore"] == [4]
    assert [event.fields["reason"] for event in events if event.kind == "stop"] == ["stop_at"] * 2
    (skipped,) = [line for line in runner.lines(stopped) if line["skipped"]]
    assert skipped["step"] == 4
    assert not np.isfinite(skipped["loss"])
    assert skipped["skipped_target_tokens"] == skipped["target_tokens"] > 0
    same_bits(runner.final_state(stopped), runner.final_state(whole))
    # Steps 1 and 2, and 5 and 6 were clean in a row; the stop in between is not seen.
    known = [(0, "provisional"), (0, "healthy"), (4, "provisional"), (4, "healthy"), (6, "provisional")]
    assert verdicts(stopped) == verdicts(whole) == known
    with pytest.raises(StoppedError, match="5 steps in a row were skipped"):
        runner.train(stopped, probation)
    assert verdicts(stopped) == [*known, (8, "provisional"), (6, "unhealthy"), (8, "unhealthy")]
    newest = newest_record(stopped / "checkpoints")
    assert newest is not None
    assert newest["step"] == 4


def test_a_failed_save_is_told_at_once_and_at_the_end(runner, tmp_path, monkeypatch):
    directory, commit = tmp_path / "run", store.write_commit

    def failing(path, step, files):
        if step == 4:
            raise OSError(28, "No space left on device", str(path))
        return commit(path, step, files)

    monkeypatch.setattr(store, "write_commit", failing)
    with pytest.raises(CheckpointError, match="step 4 could not be saved: No space left") as error:
        runner.train(directory)
    assert error.value.exit_code == 4
    kinds = [(event.kind, event.step) for event in read_events(directory / "events.jsonl") if event.step]
    # The rest of the save is moved aside when the next one begins.
    assert kinds == [("save_failed", 4), ("warning", 4), ("save", 8), ("save", 12)]
    last = read_events(directory / "events.jsonl")[-1]
    assert last.kind == "stop"
    assert "step 4 could not be saved" in last.fields["reason"]
    assert runner.train(directory) == 0
