"""Every number of the config, at values that nobody means: refused in lines of their own, or good for a plan."""

import re
from collections.abc import Callable

import pytest

from maxtrain.config import Config, ConfigError, check_config
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.keys import all_keys

MakeConfig = Callable[..., Config]

RICH = (
    "data.mixture={all: {weight: 1, max_epochs: 3, filter: {quality_score: {min: 0, max: 2}, num_tokens: {min: 1}}}}",
    "data.block_tokens=64",
    "model.window=16",
    "model.head_dim=8",
    "model.rope.scaling={kind: yarn, factor: 2, original_length: 32}",
    "model.parametrization={kind: completep, base_d_model: 32, base_num_layers: 4}",
    "model.moe={num_experts: 8, top_k: 2, d_expert: 32, num_shared: 1, d_shared: 16, first_dense: 1, balance: bias}",
    "model.moe.capacity_factor=2",
    "remat.layers=[{first: 0, last: 1, policy: full}]",
    "mesh.devices=1",
    "optimizer={name: muon, qk_clip: 100, groups: {experts: {lr_factor: 0.5, weight_decay: 0.1}}}",
    "schedule={name: wsd, lr: 1e-3, min_lr: 1e-4, warmup_tokens: 512}",
    "guard.max_grad_norm=10",
    "checkpoint={every: 2, keep_every: 4}",
    "evaluation.every=2",
    "profile.steps=[3, 4]",
)
STAGES = "data.stages=[{name: a, tokens: 2560, sequence_length: 32, global_batch_tokens: 512}, {name: b, tokens: 2560}]"
WARMUP = "batch.warmup=[{tokens: 512, global_batch_tokens: 256}]"
NUMBERS = ("0", "-1", "1e30", "1e-45", ".nan", ".inf", "-.inf", "9223372036854775807", "1e400", "2147483647", "1048576")
NAMES = {"mixture.*": "mixture.all", "groups.*": "groups.experts", "stages.*": "stages.0", "warmup.*": "warmup.0"}


def number_keys() -> list[str]:
    """Paths of all keys that hold a number."""
    paths = []
    for key in all_keys().values():
        if key.section is None and re.search(r"\b(number|count)\b", key.type_text):
            path = key.path.replace("layers.*", "layers.0")
            for name, own in NAMES.items():
                path = path.replace(name, own)
            paths += [f"{path}.0", f"{path}.1"] if path == "profile.steps" else [path]
    return paths


def base_of(path: str) -> tuple[str, ...]:
    """Overrides by which the key has an effect."""
    if path.startswith("data.stages"):
        own = (f"{path.partition('.mixture')[0]}.mixture={{all: {{weight: 1}}}}",) if ".mixture" in path else ()
        return (*RICH, STAGES, "schedule.warmup_tokens=null", *own)
    return (*RICH, WARMUP) if path.startswith("batch.warmup") else RICH


def test_the_bases_are_sound(make: MakeConfig) -> None:
    for path in ("model.d_ff", "data.stages.0.tokens", "data.stages.0.mixture.all.weight", "batch.warmup.0.tokens"):
        assert check_config(make(*base_of(path)), 1) == [], path


@pytest.mark.parametrize("path", number_keys())
def test_an_absurd_number_is_refused_in_one_line_or_plans(make: MakeConfig, path: str) -> None:
    for number in NUMBERS:
        try:
            config = make(*base_of(path), f"{path}={number}")
        except ConfigError as error:
            (violation,) = error.violations
            assert violation.path.startswith(path.removesuffix(".0").removesuffix(".1"))
            assert "\n" not in str(violation)
            continue
        violations = check_config(config, 1)
        assert all("\n" not in str(violation) for violation in violations)
        if not violations:
            assert 0 < plan_batches(config).num_steps < 2**31


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf"])
def test_no_key_takes_what_is_no_number(make: MakeConfig, number: str) -> None:
    for path in number_keys():
        with pytest.raises(ConfigError):
            make(*base_of(path), f"{path}={number}")
