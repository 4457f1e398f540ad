from collections.abc import Callable
from pathlib import Path

import pytest

from maxtrain.config import Config, ConfigError, load_config, to_yaml
from maxtrain.config.violations import show_value
from maxtrain.core.errors import ExitCode, UserError

WriteConfig = Callable[..., Path]
MakeConfig = Callable[..., Config]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_layers=-1", "model.num_layers = -1: should be a whole number > 0 and <= 1,048,576; correct"),
        ("model.num_layers=2.5", "model.num_layers = 2.5: should be a whole number > 0"),
        ("model.num_layers='2'", "model.num_layers = '2': should be a whole number > 0"),
        ("model.num_layers=true", "model.num_layers = true: should be a whole number > 0"),
        (
            "model.num_layers=3000000000",
            "model.num_layers = 3,000,000,000: should be a whole number > 0 and <= 1,048,576",
        ),
        ("checkpoint.every=3000000000", "checkpoint.every = 3,000,000,000: should be at most 2,147,483,647"),
        ("model.qk_norm=yes", "model.qk_norm = yes: should be true or false; YAML 1.2 reads it as a text"),
        ("model.qk_norm=1", "model.qk_norm = 1: should be true or false"),
        ("model.activation=swiglo", "should be one of swiglu, geglu, relu2; did you mean swiglu?"),
        ("model.dropout=1.5", "model.dropout = 1.5: should be a number >= 0 and <= 1"),
        ("schedule.lr=.nan", "schedule.lr = nan: should be a number >= 1e-12 and <= 1,000"),
        ("schedule.lr=.inf", "schedule.lr = inf: should be a number >= 1e-12"),
        ("data.mixture.a.weight=1e300", "weight = 1e+300: should be at most 3.40282e+38, what a float32 holds; lower"),
        ("profile.steps=[5]", "profile.steps = [5]: should be a list [a whole number > 0, a whole number > 0]"),
        ("profile.steps=[]", "profile.steps = []: should be a list [a whole number > 0, a whole number > 0]"),
        ("profile.steps=[a, 5]", "profile.steps.0 = a: is no entry of a list [a whole number > 0"),
        ("mesh.expert_fold=fsdp", "mesh.expert_fold = fsdp: should be a list of data, fsdp, context, tensor"),
        ("mesh.expert_fold=[bogus]", "mesh.expert_fold.0 = bogus: is no entry of a list of data, fsdp, context"),
        ("schedule.lr=fast", "schedule.lr = fast: should be a number >= 1e-12 and <= 1,000; correct the value"),
        ("optimizer.beta1=1", "optimizer.beta1 = 1: should be a number >= 0 and <= 0.999999"),
        ("schedule.lr=1001", "schedule.lr = 1,001: should be a number >= 1e-12 and <= 1,000; correct the value"),
        ("optimizer.eps=0", "optimizer.eps = 0: should be a number >= 1e-20 and <= 1; correct the value"),
        ("optimizer.qk_clip=0.5", "optimizer.qk_clip = 0.5: should be a number >= 1 or null; correct the value"),
        ("mesh.data=1048577", "mesh.data = 1,048,577: should be a whole number >= -1 and <= 1,048,576"),
        ("model.vocab_size=1G", "model.vocab_size = 1G: should be a count"),
        ("model.vocab_size=1Gi", "Gi: should be a count (as 65536, 64Ki, 1.5M or 10T) > 0 and <= 16,777,216; correct"),
        ("train.total_tokens=1,5M", "train.total_tokens = 1,5M: should be a count such as 65536, 64Ki, 1.5M or 10T"),
        ("train.total_tokens=1.5", "train.total_tokens = 1.5: should be a count"),
        ("train.total_tokens=0.5", "train.total_tokens = 0.5: should be a count"),
        ("train.total_tokens='1.0001K'", "train.total_tokens = 1.0001K: is not a whole number (1000.1)"),
        ("mesh.data=-2", "mesh.data = -2: should be a whole number >= -1"),
        ("model=4", "model = 4: should be a section; give its keys"),
        ("optimizer=null", "optimizer = null: should be a section; give its keys, or delete the line"),
        ("model.moe=8", "model.moe = 8: should be a section or null"),
        (
            "optimizer.groups={routers: {lr_factor: 0.5}}",
            "optimizer.groups.routers = {'lr_factor': 0.5}: its name should be one of embedding, attention, "
            "feed_forward, experts, router, norms, output; did you mean router?",
        ),
        ("optimizer.groups={zebra: {}}", "feed_forward, experts, router, norms, output; rename it"),
        ("optimizer.groups={router: 1}", "optimizer.groups.router = 1: should be a section; give its keys"),
        (
            "optimizer.groups=1",
            "optimizer.groups = 1: should be a mapping of embedding, attention, feed_forward, experts",
        ),
        ("data.mixture={}", "data.mixture = {}: should be a mapping of names to sections with at least one name"),
        ("data.mixture=[a]", "data.mixture = ['a']: should be a mapping of names to sections"),
        ("data.mixture.a b.weight=1", "data.mixture.a b = {'weight': 1}: a domain's name has letters"),
        ("data.mixture.a.filter={}", "data.mixture.a.weight: is required and missing; give a number > 0 (Relative"),
        ("data.mixture.a={weight: 1, filter: {lang: 4}}", "data.mixture.a.filter.lang = 4: should be a text or a list"),
        (
            "data.mixture.a={weight: 1, filter: {lang: [zh, 4]}}",
            "data.mixture.a.filter.lang = ['zh', 4]: should be a text or a list of texts",
        ),
        (
            "data.mixture.a={weight: 1, filter: {lang: []}}",
            "data.mixture.a.filter.lang = []: should be a text or a list",
        ),
        ("data.stages={name: a}", "data.stages = {'name': 'a'}: should be a list of sections"),
        ("data.stages=[{name: a}]", "data.stages.0.tokens: is required and missing; give a count"),
        (
            "schedule={}",
            "schedule.lr: is required and missing; give a number >= 1e-12 and <= 1,000 (Peak learning rate)",
        ),
        ("run.directory=5", "run.directory = 5: should be a text"),
    ],
)
def test_a_wrong_value_is_told_with_its_limit(write: WriteConfig, override: str, message: str) -> None:
    path = write()
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{path}: ")
    assert len(caught.value.violations) == 1
    assert "\n" not in text
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("modell.num_layers=4", "model.num_layers"),
        ("model.num_layer=4", "model.num_layers"),
        ("num_layers=4", "model.num_layers"),
        ("moe.top_k=4", "model.moe.top_k"),
        ("train.lr=4", "schedule.lr"),
        ("data.mixture.code.wieght=4", "data.mixture.code.weight"),
        ("data.mixture.code.lang=zh", "data.mixture.code.filter.lang"),
        ("optimiser.name=muon", "optimizer.name"),
        ("optimizer.learning_rate=1", "schedule.lr"),
        ("train.batch_size=1", "batch.global_batch_tokens"),
        ("model.n_layers=1", "model.num_layers"),
        ("model.hidden_size=1", "model.d_model"),
        ("train.dtype=bfloat16", "precision.compute"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(write: WriteConfig, override: str, near: str) -> None:
    path = write()
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["data.mixture.code.weight=1", override])
    (violation,) = caught.value.violations
    assert (violation.limit, violation.cure) == ("unknown key", f"did you mean {near}?")
    assert violation.path == override.split("=")[0]
    assert violation.origin == "command line"


def test_an_unknown_key_like_no_other_names_its_siblings(write: WriteConfig) -> None:
    with pytest.raises(ConfigError, match="xyzzy = 4: unknown key; known here: directory, seed"):
        load_config(write(), ["run.xyzzy=4"])


def test_every_violation_is_told_at_once_with_its_line(write: WriteConfig) -> None:
    path = write(
        "run: {directory: runs/test}\n"
        "data: {sequence_length: 64}\n"
        "batch: {global_batch_tokens: 512}\n"
        "model:\n"
        "  vocab_size: 256\n"
        "  num_layers: four\n"
        "  d_model: -32\n"
        "  num_head: 4\n"
        "  num_heads: 4\n"
        "  d_ff: 64\n"
        "train: {total_tokens: 5120}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"{path}: 5 violations"
    assert [line.split(":")[0].split(" = ")[0].strip() for line in lines] == [
        "batch.micro_batch",
        "model.num_layers",
        "model.d_model",
        "model.num_head",
        "schedule.lr",
    ]
    assert lines[1].endswith(f"[{path}:6]")
    assert lines[0].endswith(f"[{path}:3]")


def test_an_empty_mapping_lacks_every_required_key(write: WriteConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("{}\n"))
    assert {"run.directory", "model.num_layers", "schedule.lr"} <= {each.path for each in caught.value.violations}
    assert all(each.limit == "is required and missing" for each in caught.value.violations)


def test_the_resolved_yaml_loads_again_equal(write: WriteConfig, make: MakeConfig, moe: str) -> None:
    config = make(
        moe,
        "data.mixture={'no': {weight: 1}, '123': {weight: 2, filter: {lang: [zh, en], num_tokens: {min: 10}}}}",
        "data.stages=[{name: 'null', tokens: 5120}]",
        "model.norm_eps=1e-12",
        "model.rope.scaling={kind: yarn, factor: 4, original_length: 4Ki}",
        "run.directory='~'",
    )
    assert load_config(write(to_yaml(config), "resolved.yaml")) == config


def test_a_config_is_frozen(make: MakeConfig) -> None:
    config = make()
    with pytest.raises(ValueError, match="frozen"):
        config.model.num_layers = 5


def test_a_user_error_is_no_bare_key_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such config"):
        load_config(tmp_path / "none" / "at" / "all.yaml")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (4096, "4,096"),
        (1e-4, "0.0001"),
        ("a", "a"),
        ("", "''"),
        ("4", "'4'"),
        ([1], "[1]"),
    ],
)
def test_values_are_shown_short(value: object, text: str) -> None:
    assert show_value(value) == text
    assert len(show_value("x" * 100)) == 60
