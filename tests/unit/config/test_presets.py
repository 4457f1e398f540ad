"""Every preset: valid, true to its header, and stating only its difference."""

import re
from pathlib import Path

import pytest

from maxtrain.config import check_config, load_config, to_plain
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.compare import ABSENT
from maxtrain.config.merge import flatten, load_source
from maxtrain.config.yaml_files import read_mapping
from maxtrain.plan import count_parameters

CONFIGS = Path(__file__).parent.parent.parent.parent / "configs"
PRESETS = sorted(CONFIGS.rglob("*.yaml"))
DEVICES = {"moe_100b.yaml": 256, "moe_1b.yaml": 8, "dense_1b.yaml": 8}

each_preset = pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.relative_to(CONFIGS).as_posix())


def test_the_promised_presets_exist() -> None:
    names = {path.relative_to(CONFIGS).as_posix() for path in PRESETS}
    assert names >= {
        "learning/first.yaml",
        "learning/dense.yaml",
        "research/moe_300m.yaml",
        "research/moe_1b.yaml",
        "research/dense_1b.yaml",
        "production/moe_100b.yaml",
    }


@each_preset
def test_a_preset_is_sound_on_its_devices(path: Path) -> None:
    config = load_config(path)
    assert check_config(config) == []
    assert check_config(config, DEVICES.get(path.name, 1)) == []
    assert plan_batches(config).num_tokens == config.train.total_tokens


@each_preset
def test_the_header_names_the_command_and_the_counted_parameters(path: Path) -> None:
    header = "".join(line for line in path.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    name = path.relative_to(CONFIGS.parent).as_posix()
    assert f"python -m maxtrain.train {name}" in header
    count = count_parameters(load_config(path).model)
    said = re.search(r"Parameters: ([\d,]+), (?:of them ([\d,]+)|all) active", header)
    assert said is not None
    total = int(said[1].replace(",", ""))
    active = int(said[2].replace(",", "")) if said[2] else total
    assert (total, active) == (count.total, count.active)


@each_preset
def test_a_preset_states_only_its_difference(path: Path) -> None:
    tree, _ = read_mapping(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return
    base = dict(flatten(to_plain(load_config(path.parent / parent))))
    config = dict(flatten(to_plain(load_config(path))))
    assert [key for key, _ in flatten(tree) if base.get(key, ABSENT) == config.get(key, ABSENT)] == []


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("moe_300m", 0.27e9, 0.33e9), ("moe_1b", 0.95e9, 1.05e9), ("dense_1b", 0.95e9, 1.05e9), ("moe_100b", 95e9, 105e9)],
)
def test_a_preset_has_the_size_in_its_name(name: str, least: float, most: float) -> None:
    (path,) = [path for path in PRESETS if path.stem == name]
    assert least <= count_parameters(load_config(path).model).total <= most


def test_run_directories_differ() -> None:
    directories = [load_source(path).tree["run"]["directory"] for path in PRESETS]
    assert len(set(directories)) == len(directories)
