from maxtrain.config.load import load_config
from maxtrain.train.run_directory import changed_keys


def test_a_key_that_an_older_run_did_not_know_had_its_default(root):
    config = load_config(str(root / "configs/learning/first.yaml"))
    saved = config.model_dump(mode="json")
    del saved["model"]["attention_gate"]
    assert changed_keys(saved, config) == []
    saved["model"]["d_ff"] = 512
    assert changed_keys(saved, config) == ["model.d_ff"]
    saved["model"]["gone"] = 1
    assert "model.gone" in changed_keys(saved, config)
