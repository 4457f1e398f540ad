"""The command on a finished run; the e2e tests profile a real one."""

import json

from maxtrain.core.errors import run_command
from maxtrain.monitor.step_profile import Row, StepProfile, write_profile
from maxtrain.profile import main

PROFILE = StepProfile(3, 5, 1, 2.0, (Row("experts", 1.0, 1.5),), 0.25, 0.25, 0.0)


def test_the_table_again(tmp_path, capsys):
    write_profile(tmp_path / "profile", PROFILE)
    assert main([str(tmp_path)]) == 0
    assert "| experts                            |    1.0000 |    1.5000 |  75.0% |" in capsys.readouterr().out
    assert main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"name": "experts", "product_seconds": 1.0, "seconds": 1.5}]


def test_a_run_without_a_profile_names_the_key(tmp_path, capsys):
    assert run_command(lambda: main([str(tmp_path)])) == 2
    assert "no profile; train with profile.steps=[10,15]" in capsys.readouterr().err
