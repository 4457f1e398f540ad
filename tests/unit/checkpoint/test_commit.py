"""The commit record against damage of every kind, on steps that Orbax wrote."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maxtrain.checkpoint import list_steps, verify_step
from maxtrain.checkpoint.commit import (
    canonical_json,
    parse_commit,
    read_commit,
    read_manifest,
    seal_files,
    write_commit,
)
from maxtrain.checkpoint.health import Health, Verdict
from maxtrain.checkpoint.layout import find_checkpoints, step_directories
from maxtrain.checkpoint.ledger import append_health, read_health, was_ever_committed
from maxtrain.core.errors import CheckpointError, UserError
from maxtrain.core.files import sha256_bytes


@pytest.fixture
def copy(committed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(committed, tmp_path / "checkpoints")


def _files(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def test_a_committed_step_lists_every_file_and_verifies(copy):
    step = copy / "step_00000003"
    commit = verify_step(step)
    names = {path.relative_to(step).as_posix() for path in _files(step)}
    assert {file.path for file in commit.files} == names - {"commit.json"}
    assert {"manifest.json", "state/_METADATA", "state/manifest.ocdbt"} <= names
    assert commit.num_bytes == sum(path.stat().st_size for path in _files(step)) - (step / "commit.json").stat().st_size


def test_one_flipped_bit_in_any_file_is_noticed_and_named(copy):
    step = copy / "step_00000003"
    for path in _files(step):
        data = path.read_bytes()
        for bit in (0, len(data) * 4, len(data) * 8 - 1):
            _flip(path, bit)
            with pytest.raises(CheckpointError) as caught:
                verify_step(step)
            assert path.relative_to(step).as_posix() in str(caught.value)
            assert "\n" not in str(caught.value)
            path.write_bytes(data)
    verify_step(step)


def test_every_flipped_bit_of_the_commit_record_is_noticed(tmp_path):
    step = tmp_path / "step_00000001"
    step.mkdir()
    (step / "data").write_bytes(b"words")
    write_commit(step, 1, seal_files(step))
    data = (step / "commit.json").read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CheckpointError, match=r"commit\.json"):
            parse_commit(bytes(flipped), step.name)
    for size in range(len(data)):
        with pytest.raises(CheckpointError, match="is damaged"):
            parse_commit(data[:size], step.name)
    with pytest.raises(CheckpointError, match="is damaged"):
        parse_commit(data + b" ", step.name)
    assert parse_commit(data, step.name) == read_commit(step)


def test_each_file_truncated_emptied_or_missing_is_noticed(copy):
    step = copy / "step_00000003"
    for path in _files(step):
        data = path.read_bytes()
        for damage in (data[:-1], b"", data + b"\0", None):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            infos = {info.step: info for info in list_steps(copy)}
            assert infos[2].verified, path
            assert not infos[3].verified, path
            assert path.name in infos[3].reason
            # All but the record itself is noticed without hashing too.
            assert not list_steps(copy, full=False)[1].verified
            path.write_bytes(data)
    assert all(info.verified for info in list_steps(copy))


def test_a_step_under_another_name_is_refused(copy):
    shutil.copytree(copy / "step_00000003", copy / "step_00000009")
    assert [info.verified for info in list_steps(copy)] == [True, True, False]
    with pytest.raises(CheckpointError, match="belongs to step_00000003"):
        verify_step(copy / "step_00000009")


def test_another_format_is_named(copy):
    step = copy / "step_00000003"
    record = json.loads((step / "commit.json").read_bytes())
    del record["checksum"]
    record["format_version"] = 99
    checksum = sha256_bytes(canonical_json(record))
    (step / "commit.json").write_bytes(canonical_json(record | {"checksum": checksum}))
    with pytest.raises(CheckpointError, match="has format 99, this code reads 1"):
        verify_step(step)


def test_files_that_change_while_being_committed_are_refused(tmp_path):
    step = tmp_path / "step_00000001"
    step.mkdir()
    (step / "data").write_bytes(b"words")
    sealed = seal_files(step)
    (step / "more").write_bytes(b"late")
    with pytest.raises(CheckpointError, match="changed while step 1 was being committed"):
        write_commit(step, 1, sealed)
    assert not (step / "commit.json").exists()


def test_processes_can_share_the_hashing(copy):
    step = copy / "step_00000003"
    victim = step / read_commit(step).files[1].path
    _flip(victim, 5)
    verify_step(step, share=(0, 2))
    with pytest.raises(CheckpointError):
        verify_step(step, share=(1, 2))


def test_the_manifest_tells_of_the_state_without_arrays(copy):
    manifest = read_manifest(copy / "step_00000003")
    assert manifest["record"] == {"step": 3, "seed": 7, "fingerprint": {"manifest": "ab"}}
    leaves = {leaf["path"]: leaf for leaf in manifest["leaves"]}
    assert leaves["params/half"]["dtype"] == "bfloat16"
    assert leaves["params/w"]["shape"] == [8, 64]
    assert leaves["key"]["dtype"].startswith("key<")
    assert leaves["expert_bias"]["shape"] == [0, 0]
    assert len(leaves["step"]["digest"]) == 16


def test_what_was_never_committed_is_not_a_step(copy):
    (copy / "step_00000004.partial" / "state").mkdir(parents=True)
    (copy / "step_00000001.removed").mkdir()
    (copy / "step_5").mkdir()
    (copy / "step_00000006").write_text("a file")
    assert list(step_directories(copy)) == [2, 3]
    assert list_steps(copy / "absent") == []


def test_a_step_without_a_record_is_listed_with_its_reason(copy):
    (copy / "step_00000003" / "commit.json").unlink()
    info = list_steps(copy)[1]
    assert (info.step, info.verified, info.health, info.record) == (3, False, None, None)
    assert "its save never finished" in info.reason


def test_the_last_verdict_counts_and_a_torn_line_does_not(copy):
    assert [info.health for info in list_steps(copy)] == [Health.PROVISIONAL, Health.PROVISIONAL]
    spike, clean = Verdict(Health.UNHEALTHY, "loss spike"), Verdict(Health.HEALTHY, "clean steps")
    append_health(copy, 3, spike)
    append_health(copy, 2, Verdict(Health.UNHEALTHY, "doubt"))
    append_health(copy, 2, clean)
    with (copy / "health.jsonl").open("a") as file:
        file.write('{"step": 3, "health": "a word of later days", "reason": ""}\n{"step": 2, "heal')
    assert [(info.health, info.reason) for info in list_steps(copy)] == [clean, spike]
    append_health(copy, 2, Verdict(Health.UNHEALTHY, "after the torn line"))
    assert read_health(copy)[2].reason == "after the torn line"


def test_garbage_in_the_ledger_is_told_once_and_passed_over(copy, caplog):
    append_health(copy, 3, Verdict(Health.UNHEALTHY, "loss spike"))
    ledger = copy / "health.jsonl"
    begin = ledger.read_bytes().count(b"\n")
    garbage = [b"\x00\xff", b"[" * 100_000, b"{}", b'{"step": true, "health": "healthy"}', b'{"step": 2, "health": []}']
    with ledger.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in garbage))
    append_health(copy, 2, Verdict(Health.HEALTHY, "clean steps"))
    for _ in range(3):
        assert [info.health for info in list_steps(copy)] == [Health.HEALTHY, Health.UNHEALTHY]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(garbage)
    for number, message in enumerate(told, begin + 1):
        assert message.startswith(f"{ledger} line {number} is no verdict on a step (")
        assert len(message) < 300


def test_a_commit_is_remembered_after_its_directory_is_gone(copy, tmp_path):
    shutil.rmtree(copy / "step_00000002")
    shutil.rmtree(copy / "step_00000003")
    assert was_ever_committed(copy)
    (copy / "commits.jsonl").unlink()
    assert not was_ever_committed(copy)
    (copy / "quarantine" / "step_00000002").mkdir(parents=True)
    assert was_ever_committed(copy)
    assert not was_ever_committed(tmp_path / "absent")


def test_checkpoints_are_found_from_the_run_or_themselves(copy, tmp_path):
    assert find_checkpoints(tmp_path) == find_checkpoints(copy) == copy
    with pytest.raises(UserError, match="holds no checkpoints"):
        find_checkpoints(tmp_path / "elsewhere")


def test_judging_steps_needs_no_jax(copy):
    code = (
        "import sys; from pathlib import Path; from maxtrain.checkpoint import list_steps, verify_step\n"
        "from maxtrain.checkpoint.__main__ import main\n"
        "assert all(info.verified for info in list_steps(Path(sys.argv[1]))) and main(['list', sys.argv[1]]) == 0\n"
        "assert not {'jax', 'orbax', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(copy)], check=True)
