"""`python -m maxtrain.config`, in this process; its freedom from JAX is seen in a fresh one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maxtrain.config import load_config
from maxtrain.config.__main__ import main
from maxtrain.config.editor_schema import editor_schema

WriteConfig = Callable[..., Path]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_show_prints_yaml_that_loads_again(write: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    code, out, err = run(capsys, "show", path, "model.num_layers=6")
    assert (code, err) == (0, "")
    assert load_config(write(out, "shown.yaml")) == load_config(path, ["model.num_layers=6"])
    code, out, _ = run(capsys, "show", path, "--json", "model.num_layers=6")
    assert json.loads(out)["model"]["num_layers"] == 6


def test_diff_names_what_differs(write: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    first = write()
    second = write("extends: run.yaml\nmodel: {num_layers: 6}\ndata: {mixture: {code: {weight: 1}}}\n", "second.yaml")
    code, out, _ = run(capsys, "diff", first, second)
    assert code == 0
    assert "model.num_layers: 4 -> 6" in out
    assert "data.mixture.code.weight: (absent) -> 1.0" in out
    assert "data.mixture.all.weight: 1.0 -> (absent)" in out
    assert "d_model" not in out
    assert run(capsys, "diff", first, first)[1] == "no difference\n"
    assert json.loads(run(capsys, "diff", first, second, "--json")[1])["model.num_layers"] == {"before": 4, "after": 6}


def test_diff_with_the_defaults_names_what_is_set(write: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("extends: run.yaml\nmodel: {qk_norm: true, dropout: 0}\n", "second.yaml")
    write()
    lines = run(capsys, "diff", path)[1].splitlines()
    assert "model.qk_norm: false -> true" in lines
    assert "model.num_layers: (required) -> 4" in lines
    assert not [line for line in lines if "dropout" in line or "mixture" in line]


def test_explain_tells_meaning_limits_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", "optimizer.beta2")
    assert code == 0
    assert out.splitlines() == [
        "optimizer.beta2: Decay of Adam's second moment.",
        "  type     a number >= 0 and <= 0.999999",
        "  default  0.95",
    ]
    assert "default  (required)" in run(capsys, "explain", "schedule.lr")[1]
    section = run(capsys, "explain", "guard")[1]
    assert "guard.max_skips: a whole number > 0; default 5. Skips in a row" in section


def test_explain_tells_value_and_origin(write: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    out = run(capsys, "explain", "schedule.lr", path)[1]
    assert "value    0.001" in out
    assert f"from     {path}:6" in out
    out = run(capsys, "explain", "data.mixture.code.weight", path, "data.mixture.code.weight=3")[1]
    assert "value    3.0" in out
    assert "from     command line" in out
    assert "from     default" in run(capsys, "explain", "model.dropout", path)[1]
    assert "from     (absent)" in run(capsys, "explain", "data.mixture.web.weight", path)[1]
    found = json.loads(run(capsys, "explain", "model", path, "--json")[1])
    assert found["value"]["num_layers"] == 4
    assert {each["key"] for each in found["keys"]} >= {"model.num_layers", "model.moe.top_k"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "model.num_layer"], "error: model.num_layer: unknown key; did you mean model.num_layers?"),
        (["explain", "xyzzy"], "error: xyzzy: unknown key; the sections are run, data, batch"),
        (["show", "gone.yaml"], "error: gone.yaml: no such config"),
        (["diff", "gone.yaml", "gone.yaml"], "error: gone.yaml: no such config"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_validate_tells_all_violations(write: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    assert run(capsys, "validate", path, "--devices", 1) == (0, f"{path}: valid\n", "")
    assert json.loads(run(capsys, "validate", path, "--json")[1]) == {"valid": True, "violations": []}
    code, out, err = run(capsys, "validate", path, "--devices", 3, "--json", "model.num_kv_heads=3", "mesh.fsdp=-1")
    assert code == 2
    found = json.loads(out)
    assert found["valid"] is False
    assert [each["path"] for each in found["violations"]] == [
        "mesh.fsdp",
        "model.num_kv_heads",
        "batch.global_batch_tokens",
    ]
    assert found["violations"][1]["origin"] == "command line"
    assert err.startswith(f"error: {path}: 3 violations\n")
    code, out, err = run(capsys, "validate", path, "model.foo=1", "--json")
    assert (code, json.loads(out)["violations"][0]["limit"]) == (2, "unknown key")


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["shaw", "x"],
        ["validate", "x", "--devices", "0"],
        ["diff", "a", "b", "c"],
        ["show", "a", "--wrong"],
        [],
    ],
)
def test_a_wrong_command_line_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage:" in capsys.readouterr().err


def test_the_schema_for_editors_lets_a_file_state_its_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schema.json"
    assert run(capsys, "schema", "--output", path)[0] == 0
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert schema == json.loads(run(capsys, "schema")[1]) == editor_schema()
    assert schema["properties"]["extends"]["type"] == "string"
    sections = [schema, *schema["$defs"].values()]
    assert not [section for section in sections if "required" in section]
    assert all(section["additionalProperties"] is False for section in sections)
    tokens = schema["$defs"]["TrainConfig"]["properties"]["total_tokens"]
    assert [kind["type"] for kind in tokens["anyOf"]] == ["integer", "string"]
    domains = schema["$defs"]["DataConfig"]["properties"]["mixture"]["additionalProperties"]
    assert {"type": "null"} in domains["anyOf"]
    staged = schema["$defs"]["StageConfig"]["properties"]["mixture"]["anyOf"][0]["additionalProperties"]
    assert {"type": "null"} in staged["anyOf"]


def test_an_unwritable_schema_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "schema", "--output", tmp_path / "none" / "schema.json")
    assert code == 1
    assert err.startswith("error: No such file or directory")


def test_config_and_plan_start_without_jax(root: Path) -> None:
    preset = root / "configs" / "learning" / "first.yaml"
    program = (
        "import sys\n"
        "from maxtrain.config.__main__ import main as config\n"
        "from maxtrain.plan.__main__ import main as plan\n"
        f"assert config(['show', {str(preset)!r}]) == 0\n"
        f"assert plan([{str(preset)!r}]) == 0\n"
        "heavy = {'jax', 'flax', 'optax', 'orbax', 'numpy', 'grain', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
