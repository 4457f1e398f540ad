"""The coordinate check: maximal update keeps the change of activations, the standard parametrization does not."""

import json

import pytest

from maxtrain import coordinate_check
from maxtrain.config import check_config
from maxtrain.config.schema import Config
from maxtrain.core.errors import UserError
from maxtrain.train.coordinates import _short_run, drifting, resize, sweep


def config(**model) -> Config:
    return Config.model_validate(
        {
            "run": {"directory": "unused"},
            "data": {"source": "synthetic", "sequence_length": 64},
            "batch": {"global_batch_tokens": 256, "micro_batch": 4},
            "model": {
                "vocab_size": 64,
                "num_layers": 1,
                "d_model": 32,
                "num_heads": 2,
                "num_kv_heads": 1,
                "d_ff": 64,
                "init_std": 0.1,
                **model,
            },
            "train": {"total_tokens": 2560, "scan_unroll": 1},
            "optimizer": {"clip_norm": None},
            "schedule": {"name": "constant", "lr": 3e-3},
        }
    )


def test_standard_grows_with_width_and_maximal_update_is_flat():
    standard = sweep(config(), 3, 0.25, widths=[32, 128])["widths"]
    assert standard["slopes"]["layer 0"] > 0.8
    assert "layer 0" in standard["drifting"]
    mup = sweep(config(parametrization={"kind": "mup", "base_d_model": 32}), 3, 0.25, widths=[128, 32])["widths"]
    assert mup["drifting"] == []
    assert abs(mup["slopes"]["layer 0"]) < 0.15
    assert mup["changes"][32] == standard["changes"][32]  # the base model itself


@pytest.mark.campaign
def test_standard_grows_with_depth_and_completep_is_flat():
    standard = sweep(config(init_std=0.05), 3, 0.25, depths=[4, 16])["depths"]
    assert standard["slopes"]["last layer"] > 0.6
    assert {"middle layer", "last layer"} <= set(standard["drifting"])
    base = {"kind": "completep", "base_d_model": 32, "base_num_layers": 4}
    completep = sweep(config(init_std=0.05, parametrization=base), 3, 0.25, depths=[4, 16])["depths"]
    assert completep["drifting"] == []
    assert abs(completep["slopes"]["last layer"]) < 0.15


def test_a_width_scales_heads_and_hidden_widths_and_keeps_the_head():
    moe = {"num_experts": 4, "top_k": 2, "d_expert": 24, "num_shared": 1, "d_shared": 8}
    model = resize(config(moe=moe), width=96, depth=5).model
    assert (model.d_model, model.num_heads, model.kv_heads, model.d_ff, model.num_layers) == (96, 6, 3, 192, 5)
    assert model.dim_per_head == 16
    assert model.moe is not None
    assert (model.moe.d_expert, model.moe.d_shared, model.moe.num_experts) == (72, 24, 4)
    with pytest.raises(UserError, match=r"--widths 40: model.num_heads = 2 × 40 . 32 is no whole"):
        resize(config(), width=40)


def test_every_size_is_checked_before_the_first_is_trained(monkeypatch):
    monkeypatch.setattr("maxtrain.train.coordinates.measure", lambda *_: pytest.fail("trained"))
    with pytest.raises(UserError, match=r"--widths 40: model.num_heads"):
        sweep(config(), 1, 0.25, widths=(32, 40))
    with pytest.raises(UserError, match=r"--widths 320000: parameters, gradients and moments need .* use smaller"):
        sweep(config(), 1, 0.25, widths=(32, 320_000))
    with pytest.raises(UserError, match=r"--widths 3200000: must be at most 1,048,576"):
        sweep(config(), 1, 0.25, widths=(32, 3_200_000))
    with pytest.raises(UserError, match=r"--widths 1040000: model.d_ff would be 2,080,000, over 1,048,576"):
        sweep(config(), 1, 0.25, widths=(32, 1_040_000))


def test_windows_without_effect_in_the_short_rows_are_left_out():
    for window, every, kept in ((4096, 2, (None, 0)), (16, 2, (16, 2)), (16, 4, (16, 0)), (64, 0, (None, 0))):
        short = _short_run(config(num_layers=2, window=window, global_every=every), 1)
        assert (short.model.window, short.model.global_every) == kept
        assert check_config(short, 1) == []


def test_what_drifts():
    assert drifting("layer 0", 0.3, 0.25)
    assert drifting("layer 0", -0.3, 0.25)
    assert not drifting("logits", -0.6, 0.25)
    assert drifting("logits", 0.3, 0.25)


def test_the_command_prints_draws_and_judges(monkeypatch, root, tmp_path, capsys):
    found = {
        "sizes": {64: {"layer 0": 1.0}, 128: {"layer 0": 1.1}},
        "changes": {64: {"layer 0": 0.1}, 128: {"layer 0": 0.2}},
        "slopes": {"layer 0": 1.0},
        "drifting": ["layer 0"],
    }
    monkeypatch.setattr("maxtrain.train.coordinates.sweep", lambda *_, **__: {"widths": found})
    words = [str(root / "configs/learning/dense.yaml"), "--widths", "64", "128"]
    assert coordinate_check.main([*words, "--plot", str(tmp_path / "a.png")]) == 6
    out = capsys.readouterr().out
    assert "layer 0                  0.1         0.2      +1.000  drifts" in out
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(
        "maxtrain.train.coordinates.sweep", lambda *_, **__: {"widths": {**found, "slopes": {}, "drifting": []}}
    )
    assert coordinate_check.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flat"] is True
    with pytest.raises(UserError, match="give two sizes or more"):
        coordinate_check.main([words[0], "--widths", "64"])
    for option, value in (("--steps", "0"), ("--steps", str(10**20)), ("--tolerance", "nan"), ("--tolerance", "0")):
        with pytest.raises(UserError, match=f"{option} .*: must be"):
            coordinate_check.main([*words, option, value])
    with pytest.raises(UserError, match="nothing to compare"):
        coordinate_check.main([words[0]])
