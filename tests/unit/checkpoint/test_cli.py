import json
import shutil
from pathlib import Path

import pytest

from maxtrain.checkpoint.__main__ import main
from maxtrain.checkpoint.health import Health, Verdict
from maxtrain.checkpoint.ledger import append_health


@pytest.fixture
def run(committed: Path, tmp_path: Path) -> Path:
    shutil.copytree(committed, tmp_path / "run" / "checkpoints")
    return tmp_path / "run"


def _damage(run: Path) -> None:
    path = run / "checkpoints" / "step_00000003" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"7", b"8", 1))


def test_list_is_a_table_and_tells_why(run, capsys):
    _damage(run)
    append_health(run / "checkpoints", 2, Verdict(Health.UNHEALTHY, "loss spike"))
    assert main(["list", str(run)]) == 0
    head, two, three = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "size", "verified", "health", "reason"]
    assert two.split()[0] == "2"
    assert two.split()[3:] == ["yes", "unhealthy", "loss", "spike"]
    assert "no" in three
    assert "manifest.json has another SHA-256" in three
    assert main(["list", str(run / "checkpoints"), "--quick", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert [(step["verified"], step["health"]) for step in steps] == [(True, "unhealthy"), (False, None)]


def test_verify_exits_by_what_it_finds(run, capsys):
    append_health(run / "checkpoints", 2, Verdict(Health.HEALTHY, "clean steps"))
    assert main(["verify", str(run)]) == 0
    two, three = capsys.readouterr().out.splitlines()
    assert two.startswith("step_00000002: verified, healthy (clean steps), ")
    assert three.startswith("step_00000003: verified, provisional, ")
    _damage(run)
    assert main(["verify", str(run)]) == 4
    assert main(["verify", str(run), "--step", "2"]) == 0
    assert main(["verify", str(run), "--step", "3", "--json"]) == 4
    assert main(["verify", str(run), "--step", "9"]) == 4
    assert capsys.readouterr().err.splitlines()[-1].endswith("there is no step 9; there are: 2, 3")


def test_show_is_the_newest_verified_step_or_the_one_asked_for(run, capsys):
    assert main(["show", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step_00000003: verified, provisional")
    assert 'fingerprint: {"manifest": "ab"}' in out
    _damage(run)
    assert main(["show", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["record"]["step"] == 2
    assert shown["health"] == "provisional"
    assert {"path", "shape", "dtype", "digest"} == set(shown["leaves"][0])
    assert main(["show", str(run), "--step", "3"]) == 4
    assert "another SHA-256" in capsys.readouterr().err


def test_mistakes_are_one_line(tmp_path, capsys):
    assert main(["list", str(tmp_path)]) == 2
    (tmp_path / "checkpoints").mkdir()
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no step is committed\n"
    assert main(["verify", str(tmp_path)]) == 4
    assert main(["show", str(tmp_path)]) == 4
    assert main(["show", str(tmp_path), "--step", "-1"]) == 2
    assert all(line.startswith("error: ") for line in capsys.readouterr().err.splitlines())
    with pytest.raises(SystemExit, match="2"):
        main(["remove", str(tmp_path)])
