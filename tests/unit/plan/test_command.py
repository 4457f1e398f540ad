import json
from pathlib import Path

import pytest

from maxtrain.config import load_config
from maxtrain.plan import count_parameters, state_bytes, training_flops_per_token
from maxtrain.plan.__main__ import main, plan_run

FIRST = "configs/learning/first.yaml"


def test_the_figures_are_those_of_the_config(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / FIRST
    assert main([str(path), "--json", "model.num_layers=6"]) == 0
    figures = json.loads(capsys.readouterr().out)
    config = load_config(path, ["model.num_layers=6"])
    count = count_parameters(config.model)
    assert (figures["parameters"]["total"], figures["parameters"]["active"]) == (count.total, count.active)
    assert sum(part["total"] for part in figures["parameters"]["components"]) == count.total
    assert figures["num_tokens"] == config.train.total_tokens
    flops = training_flops_per_token(config.model, config.data.sequence_length).total
    assert figures["training_flops"] == flops * config.train.total_tokens
    state = state_bytes(config)
    assert figures["state_bytes"] == {**vars(state), "total": state.parameters + state.moments + state.counters}


def test_the_tables_name_every_component_and_sum(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root / FIRST)]) == 0
    out = capsys.readouterr().out
    figures = plan_run(load_config(root / FIRST))
    for part in figures["parameters"]["components"]:
        assert part["name"] in out
        assert f"{part['total']:,}" in out
    assert f"{figures['parameters']['active']:,}" in out
    assert f"{figures['num_steps']:,}" in out
    assert all(f"{name:<20}{size:>22,}" in out for name, size in figures["state_bytes"].items())


def test_stages_have_their_own_lines(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = "data.stages=[{name: short, tokens: 16384, sequence_length: 128}, {name: long, tokens: 8192}]"
    sizes = ["batch.global_batch_tokens=8192", "batch.micro_batch=8", "train.total_tokens=24576"]
    assert main([str(root / FIRST), "data.sequence_length=256", stages, *sizes, "--json"]) == 0
    short, long = json.loads(capsys.readouterr().out)["segments"]
    assert (short["stage"], short["num_steps"], short["batch_rows"]) == ("short", 2, 64)
    assert (long["stage"], long["num_steps"], long["batch_rows"]) == ("long", 1, 32)
    assert short["flops_per_token"]["attention"] < long["flops_per_token"]["attention"]


def test_a_config_with_violations_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root / FIRST), "model.num_kv_heads=3", "data.dataset=null"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {root / FIRST}: 2 violations\n  model.num_kv_heads = 3: must divide")
    assert "[command line]" in err
