from collections.abc import Callable
from pathlib import Path

import pytest

from maxtrain.config import load_config
from maxtrain.config.merge import load_source
from maxtrain.core.errors import UserError

WriteConfig = Callable[..., Path]

MIXTURE = """\
extends: run.yaml
data:
  mixture:
    code: {weight: 0.5, filter: {category: code}}
    math: {weight: 0.5, filter: {category: math}}
"""


def test_a_child_states_its_difference(write: WriteConfig) -> None:
    write()
    child = write("extends: ../run.yaml\nmodel: {num_layers: 6}\nschedule: {lr: 2e-3, name: wsd}\n", "deep/child.yaml")
    config = load_config(child)
    assert (config.model.num_layers, config.model.d_model) == (6, 32)
    assert (config.schedule.lr, config.schedule.name) == (2e-3, "wsd")


def test_a_grandchild_wins_and_null_takes_a_section_away(write: WriteConfig) -> None:
    write()
    write("extends: run.yaml\nmodel: {moe: {num_experts: 4, top_k: 1, d_expert: 8}}\n", "moe.yaml")
    two = load_config(write("extends: moe.yaml\nmodel: {moe: {top_k: 2}}\n", "two.yaml"))
    assert two.model.moe is not None
    assert (two.model.moe.top_k, two.model.moe.num_experts) == (2, 4)
    assert load_config(write("extends: moe.yaml\nmodel: {moe: null}\n", "dense.yaml")).model.moe is None


def test_domains_merge_by_name_and_null_removes_one(write: WriteConfig) -> None:
    write()
    write(MIXTURE, "mixed.yaml")
    child = write("extends: mixed.yaml\ndata: {mixture: {code: {weight: 2}, math: null, web: {weight: 1}}}\n", "c.yaml")
    mixture = load_config(child).data.mixture
    assert list(mixture) == ["code", "web"]
    assert (mixture["code"].weight, mixture["code"].filter.category) == (2.0, "code")
    assert list(load_config(child, ["data.mixture.web=null"]).data.mixture) == ["code"]


def test_a_mapping_tagged_replace_takes_the_place_of_the_whole(write: WriteConfig) -> None:
    write()
    write(MIXTURE, "mixed.yaml")
    child = write("extends: mixed.yaml\ndata:\n  mixture: !replace\n    all: {weight: 1}\n", "c.yaml")
    assert list(load_config(child).data.mixture) == ["all"]
    grandchild = write("extends: c.yaml\ndata: {mixture: {web: {weight: 1}}}\n", "g.yaml")
    assert list(load_config(grandchild).data.mixture) == ["all", "web"]


def test_lists_are_replaced(write: WriteConfig) -> None:
    write("batch: {warmup: [{tokens: 1}, {tokens: 2}]}\n", "base.yaml")
    child = write("extends: base.yaml\nbatch:\n  warmup:\n  - {global_batch_tokens: 3}\n", "c.yaml")
    source = load_source(child)
    assert source.tree["batch"]["warmup"] == [{"global_batch_tokens": 3}]
    assert [path for path in source.origins if path.endswith("tokens")] == ["batch.warmup.0.global_batch_tokens"]


def test_origins_name_the_last_writer(write: WriteConfig) -> None:
    base = write()
    child = write("extends: run.yaml\nschedule:\n  lr: 2e-3\n", "c.yaml")
    source = load_source(child, ["model.num_layers=2", "data.mixture.code={weight: 1}"])
    assert source.origins["schedule.lr"] == f"{child}:3"
    assert source.origins["model.d_model"] == f"{base}:4"
    assert source.origins["model.num_layers"] == source.origins["data.mixture.code.weight"] == "command line"
    assert "extends" not in source.origins


def test_circles_are_refused_with_the_chain(write: WriteConfig) -> None:
    write("extends: b.yaml\n", "a.yaml")
    write("extends: c.yaml\n", "b.yaml")
    path = write("extends: a.yaml\n", "c.yaml")
    with pytest.raises(UserError, match=r"runs in a circle: .*c.yaml -> .*a.yaml -> .*b.yaml -> .*c.yaml"):
        load_config(path)
    with pytest.raises(UserError, match="circle"):
        load_config(write("extends: self.yaml\n", "self.yaml"))


def test_extends_is_one_name(write: WriteConfig) -> None:
    with pytest.raises(UserError, match=r"two.yaml:1: extends = \['a', 'b'\]: should be one file's name"):
        load_config(write("extends: [a, b]\n", "two.yaml"))


@pytest.mark.parametrize("asked", ["learning/frist.yaml", "lerning/first.yaml", "first.yml", "learning/first"])
def test_a_missing_file_names_presets_nearby(write: WriteConfig, asked: str) -> None:
    preset = write(name="configs/learning/first.yaml")
    write(name="configs/learning/other.yaml")
    missing = preset.parent.parent / asked
    with pytest.raises(UserError, match=rf"no such config; did you mean {preset}\?"):
        load_config(missing)


def test_a_missing_parent_names_who_asked(write: WriteConfig) -> None:
    with pytest.raises(UserError, match=r"gone.yaml: no such config \(extended by .*c.yaml\)"):
        load_config(write("extends: gone.yaml\n", "c.yaml"))


def test_overrides_are_yaml_and_apply_in_turn(write: WriteConfig) -> None:
    config = load_config(
        write(),
        [
            "train.total_tokens=1Mi",
            "schedule.lr=3e-4",
            "--model.qk_norm=true",
            "model.num_layers=2",
            "model.num_layers=3",
            "data.mixture.code.filter.lang=[zh, en]",
            "data.mixture.code.weight=0.5",
            "data.stages.0={name: a, tokens: 1Mi}",
            "data.stages.0.tokens=2Mi",
            "data.stages.1.name=b",
            "data.stages.1.tokens=4Ki",
            "run.directory=runs/a=b",
            "model.num_kv_heads=",
        ],
    )
    assert config.train.total_tokens == 2**20
    assert config.schedule.lr == 3e-4
    assert config.model.qk_norm is True
    assert config.model.num_layers == 3
    assert config.model.num_kv_heads is None
    assert config.data.mixture["code"].filter.lang == ("zh", "en")
    assert [(stage.name, stage.tokens) for stage in config.data.stages] == [("a", 2**21), ("b", 4096)]
    assert config.run.directory == "runs/a=b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_layers", "should be key=value, such as train.total_tokens=1M"),
        ("=4", "should be key=value"),
        ("model..d_ff=4", "should be key=value"),
        ("model.moe={a: 1", r"override model.moe:\d: .*; correct the YAML"),
        ("model.d_ff.x=4", "model.d_ff = 64 is a value, not a section; set model.d_ff itself"),
        ("data.stages.2.name=x", "data.stages is a list of 0; give an index from 0 to 0"),
        ("data.stages.first.name=x", "data.stages is a list of 0; give an index"),
        ("model.num_layer=4", "model.num_layer = 4: unknown key; did you mean model.num_layers"),
    ],
)
def test_overrides_that_cannot_be_applied(write: WriteConfig, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_config(write(), [override])
    assert "\n" not in str(caught.value)
