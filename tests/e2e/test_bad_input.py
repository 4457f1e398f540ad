"""Every mistake gets one clear line, an exit code, and loses nothing."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.core.errors import ExitCode, run_command
from maxtrain.loader import Loader
from maxtrain.monitor.events import read_events
from maxtrain.train.__main__ import main
from maxtrain.train.memory import MemoryTable, OutOfMemoryError
from maxtrain.train.session import run_training


def fails(capsys, *arguments: str, code: ExitCode = ExitCode.USAGE) -> str:
    """Run the train command, which must fail before it trains; its message."""
    assert run_command(lambda: main([str(argument) for argument in arguments])) == code
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: ")
    assert "Traceback" not in message
    return message


@pytest.fixture
def config(runner, tmp_path) -> Path:
    return runner.write(tmp_path / "run")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.num_layer=4", ["model.num_layer", "model.num_layers"]),
        ("schedule.lr=fast", ["schedule.lr", "fast"]),
        ("batch.global_batch_tokens=1000", ["batch.global_batch_tokens", "1000", "1024"]),
        ("mesh={devices: 3, pipeline: 3}", ["model.num_layers", "mesh.pipeline 3"]),
        ("train.total_tokens=12289", ["train.total_tokens", "12288", "13312"]),
    ],
)
def test_a_wrong_value(capsys, config, override, words):
    message = fails(capsys, config, override)
    assert all(word in message.replace(",", "") for word in words), message


def test_several_mistakes_are_told_at_once(capsys, config):
    message = fails(capsys, config, "model.num_heads=5", "model.moe.top_k=9", "mesh.tensor=3", "mesh.devices=3")
    for word in ("model.num_kv_heads", "model.moe.top_k", "mesh.tensor"):
        assert word in message


def test_a_missing_config(capsys, tmp_path):
    assert "nowhere.yaml" in fails(capsys, tmp_path / "nowhere.yaml")


def test_a_missing_dataset(capsys, config):
    assert "nowhere" in fails(capsys, config, "data.dataset=nowhere", code=ExitCode.DATA)


def test_a_flipped_bit_in_a_shard(capsys, config, sample_dataset, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(sample_dataset, broken)
    shard = next((broken / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    assert shard.name in fails(capsys, config, f"data.dataset={broken}", code=ExitCode.DATA)


def test_a_vocabulary_under_the_tokenizers(capsys, config):
    message = fails(capsys, config, "model.vocab_size=4096", code=ExitCode.DATA)
    assert "4096" in message.replace(",", "")
    assert "8192" in message.replace(",", "")


def test_an_empty_domain(capsys, config):
    message = fails(capsys, config, "data.mixture.math.filter.category=maths")
    assert "maths" in message


def test_a_changed_seed_or_model_at_resume(runner, tmp_path):
    directory = tmp_path / "run"
    assert runner.train(directory, stop_at=2) == 0
    before = sorted(path.name for path in (directory / "checkpoints").iterdir())
    for override, word in (("run.seed=6", "seed"), ("model.d_ff=96", "model.d_ff"), ("model.vocab_size=8256", "vocab")):
        with pytest.raises(ValueError, match=word) as error:
            runner.train(directory, override)
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == before
    assert runner.train(directory, stop_at=3) == 0


def test_a_run_that_is_over_says_so(runner, tmp_path, capsys):
    directory = tmp_path / "run"
    assert runner.train(directory, stop_at=2) == 0
    assert runner.train(directory, stop_at=2) == 0
    assert "stands at step 2" in capsys.readouterr().err


def test_a_stop_after_the_end(capsys, config):
    assert "--stop-at 99999: the run has 12 steps" in fails(capsys, config, "--stop-at=99999")


def test_a_second_run_in_the_directory_is_refused(runner, tmp_path):
    directory = tmp_path / "run"
    first = runner.command("maxtrain.train", str(runner.write(directory)))
    while first.poll() is None and not (directory / "events.jsonl").exists():
        pass
    try:
        with pytest.raises(ValueError, match=str(first.pid)) as error:
            runner.train(directory)
        assert "\n" not in str(error.value)
    finally:
        _, errors = first.communicate()
    assert first.returncode == 0, errors
    assert len(runner.lines(directory)) == 12


@pytest.mark.parametrize("place", ["file", "proc"])
def test_a_run_directory_that_cannot_be_written(runner, tmp_path, place):
    if place == "file":
        (tmp_path / "taken").write_text("a file, not a folder")
    directory = tmp_path / "taken" / "run" if place == "file" else Path("/proc/maxtrain-run")
    with pytest.raises(ValueError, match="cannot be written"):
        runner.train(tmp_path / "x", f"run.directory={directory}")


@pytest.mark.parametrize("place", ["step", "state"])
def test_a_device_without_memory_ends_the_run_with_the_memory_table(runner, tmp_path, monkeypatch, place):
    directory = tmp_path / "run"
    config = runner.load(directory)
    parts = runner.parts(config)
    table = MemoryTable(1, 2, 1, 1, 1, 1, 1, None)
    monkeypatch.setattr("maxtrain.train.memory.measure_memory", lambda *_: table)

    def too_much(*_):
        return jax.jit(lambda: jnp.zeros(2**50, jnp.int8))()

    broken = replace(parts, train_step=too_much) if place == "step" else replace(parts, new_state=too_much)
    plan = plan_batches(config)
    loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    with pytest.raises(OutOfMemoryError, match=r"(?s)a device is out of memory .*parameters .*moments .*largest cure"):
        run_training(config, plan, loader, None, None, broken)
    stop = read_events(directory / "events.jsonl")[-1]
    assert stop.kind == "stop"
    assert "largest cure" in stop.fields["reason"]


def test_a_memory_report_reads_no_data_and_leaves_no_run(capsys, config, tmp_path):
    small = ["data.dataset=nowhere", "model.moe=null", "model.num_layers=1"]
    assert run_command(lambda: main([str(config), "--memory-report", *small])) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memory of one device (cpu; mesh: one device; mesh.zero 3)")
    assert [line.split()[0] for line in lines[1:9]] == [
        "parameters", "moments", "gradients", "activations", "logits", "batch", "temporary", "total"
    ]  # fmt: skip
    assert lines[9].startswith("largest cure: ")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_stops_the_run_and_keeps_what_is_committed(runner, tmp_path, same_bits):
    directory = tmp_path / "run"
    assert runner.train(directory, stop_at=4) == 0
    # A limit on file sizes stands for the full disk: the arrays of a checkpoint are larger, all else is smaller.
    script = (
        "import resource, runpy, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "sys.argv = ['maxtrain.train', sys.argv[1]]\n"
        "runpy.run_module('maxtrain.train', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(runner.write(directory))],
        cwd=runner.root,
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.CHECKPOINT, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "step" in error
    assert "Traceback" not in done.stderr
    assert runner.train(directory) == 0
    reference = tmp_path / "reference"
    assert runner.train(reference) == 0
    same_bits(runner.final_state(directory), runner.final_state(reference))
