"""A run that is stopped, killed or evaluated on the way is bit-identical to one that is not."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("overrides", [(), DROPOUT], ids=["plain", "dropout"])
@pytest.mark.parametrize("k", range(1, 12))
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
