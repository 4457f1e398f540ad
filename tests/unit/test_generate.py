"""The command, on a run directory with a real tokenizer and a real checkpoint of an untrained model."""

import json

import jax
import pytest

from maxtrain import generate
from maxtrain.checkpoint import CheckpointStore
from maxtrain.core.errors import CheckpointError, DataError, UserError, run_command
from maxtrain.model import Model
from maxtrain.tokenizer import train_tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. 春天来了，小鸟在树上唱歌。\n"

CONFIG = """\
run: {{directory: {directory}}}
data: {{dataset: {directory}/no_dataset, sequence_length: 64}}
batch: {{global_batch_tokens: 64, micro_batch: 1}}
model: {{vocab_size: 448, num_layers: 1, d_model: 16, num_heads: 2, d_ff: 16}}
train: {{total_tokens: 640, compilation_cache: false}}
schedule: {{lr: 1e-3}}
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT * 20], vocab_size=420)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    directory = tmp_path_factory.mktemp("run")
    (directory / "config.yaml").write_text(CONFIG.format(directory=directory))
    (directory / "tokenizer.model").write_bytes(tokenizer.model)
    model = Model(generate._load_run(directory).model)
    state = {"params": jax.jit(model.init)(jax.random.key(0)), "expert_bias": model.expert_bias()}
    record = {"step": 3, "finite": True, "fingerprint": {"stages": [{"tokenizer_hash": tokenizer.hash}]}}
    with CheckpointStore(directory / "checkpoints", asynchronous=False) as store:
        store.save(3, state, record)
    return directory


def arguments(run, *more):
    return [str(run), "--tokenizer", str(run / "tokenizer.model"), "--max-tokens", "4", *more]


def test_json_and_text_agree_and_a_seed_repeats(run, tokenizer, capsys):
    prompts = ["--prompt", "The quick", "--prompt", "春天"]
    assert generate.main(arguments(run, *prompts, "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 3
    assert [sample["prompt"] for sample in result["samples"]] == ["The quick", "春天"]
    for sample in result["samples"]:
        assert sample["text"] == tokenizer.decode(sample["tokens"])
        assert len(sample["log_probs"]) == len(sample["tokens"]) <= 4
    assert generate.main(arguments(run, *prompts)) == 0
    text = capsys.readouterr().out
    first, second = result["samples"]
    assert text == f"The quick{first['text']}\n---\n春天{second['text']}\n"


def test_mistakes_are_told_in_a_line(run, tmp_path, capsys):
    with pytest.raises(UserError, match="no run here"):
        generate.main([str(tmp_path), "--prompt", "x"])
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text((run / "config.yaml").read_text())
    with pytest.raises(DataError, match=r"holds no tokenizer\.model"):
        generate.main([str(bare), "--prompt", "x"])
    with pytest.raises(UserError, match="--max-tokens 0"):
        generate.main([*arguments(run, "--prompt", "x"), "--max-tokens", "0"])
    with pytest.raises(UserError, match="--max-tokens 9999999999: must be from 1 to 1,000,000"):
        generate.main([*arguments(run, "--prompt", "x"), "--max-tokens", "9999999999"])
    with pytest.raises(UserError, match="--seed 4294967296: must be from 0"):
        generate.main([*arguments(run, "--prompt", "x"), "--seed", str(2**32)])
    with pytest.raises(UserError, match="--top-k 100000: the vocabulary has"):
        generate.main(arguments(run, "--prompt", "x", "--top-k", "100000"))
    with pytest.raises(UserError, match="top_p: 2"):
        generate.main(arguments(run, "--prompt", "x", "--top-p", "2"))
    with pytest.raises(CheckpointError, match="step 9"):
        generate.main(arguments(run, "--prompt", "x", "--step", "9"))
    assert run_command(lambda: generate.main([str(tmp_path), "--prompt", "x"])) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_another_tokenizer_is_refused(run, tmp_path):
    other = train_tokenizer(["Entirely different words make other pieces. " * 30], vocab_size=395)
    (tmp_path / "other.model").write_bytes(other.model)
    with pytest.raises(DataError, match="is not the one that the checkpoint was trained with"):
        generate.main([str(run), "--tokenizer", str(tmp_path / "other.model"), "--prompt", "x"])


def test_a_prompt_begins_as_the_training_documents_did(tokenizer):
    plain = tokenizer.encode("The fox")
    assert tokenizer.bos_id is not None
    assert generate._encode(tokenizer, "The fox", {"bos_id": None}) == plain
    assert generate._encode(tokenizer, "The fox", {"bos_id": tokenizer.bos_id}) == [tokenizer.bos_id, *plain]
    assert generate._encode(tokenizer, "", {"bos_id": tokenizer.bos_id}) == [tokenizer.bos_id]
    with pytest.raises(UserError, match="give some text"):
        generate._encode(tokenizer, "", {"bos_id": None})
