"""A run over stages, one of them with a newer dataset, resumed on both sides of the boundaries."""

import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def newer(root, sample_dataset, tmp_path_factory):
    """Part of the sample as another dataset with the same tokenizer."""
    folder = tmp_path_factory.mktemp("newer")
    recipe = folder / "recipe.yaml"
    files = [f"{root}/data/sample/{name}.jsonl.zst" for name in ("book_en", "math")]
    recipe.write_text(
        f"output: dataset\ninputs: [{{files: {files}, licence: stated by each record}}]\n"
        f"tokenizer: {{path: {sample_dataset}/tokenizer.model}}\nsplits: {{heldout: 0.1}}\n"
    )
    output = folder / "dataset"
    command = [sys.executable, "-m", "maxtrain.corpus", "build", str(recipe), "--output", str(output)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    return output


@pytest.fixture(scope="module")
def staged(runner, newer):
    """Overrides that cut the run into stages of 4, 4 and 4 steps."""
    mixture = "{english: {weight: 0.2, filter: {category: book_en}}, code: {weight: 0.8, filter: {category: code}}}"
    return (
        "data.block_tokens=128",
        "data.mixture.math.packing=concat",
        "data.stages=["
        "{name: wide, tokens: 4096}, "
        f"{{name: code, tokens: 4096, mixture: {mixture}}}, "
        f"{{name: newer, tokens: 4096, dataset: {newer}, sequence_length: 128}}]",
        "batch.micro_batch=4",
    )


def test_resume_is_exact_across_stage_boundaries(runner, staged, same_bits, tmp_path):
    whole = tmp_path / "whole"
    assert runner.train(whole, *staged) == 0
    lines = runner.lines(whole)
    assert [bool(line["tokens_by_domain"].get("code")) for line in lines] == [False] * 4 + [True] * 4 + [False] * 4
    final = runner.final_state(whole, *staged)
    for k in (4, 9):
        directory = tmp_path / f"stop{k}"
        assert runner.train(directory, *staged, stop_at=k) == 0
        assert runner.train(directory, *staged) == 0
        same_bits(runner.final_state(directory, *staged), final)
        assert runner.lines(directory) == lines


@pytest.mark.campaign
def test_a_declared_stage_may_be_added_later_and_a_silent_change_may_not(runner, staged, same_bits, tmp_path):
    later = tuple(item.replace("{name: newer, tokens: 4096", "{name: newer, tokens: 2048") for item in staged)
    later = (*later, "train.total_tokens=10240", "schedule.name=constant", "schedule.warmup_frac=0")
    whole = tmp_path / "whole"
    assert runner.train(whole, *later) == 0
    # The same run with no third stage yet, and with a second one that was meant to be longer.
    first = tuple(re.sub(r", \{name: newer.*?\}\]", "]", item) for item in later)
    first = tuple(item.replace("name: code, tokens: 4096", "name: code, tokens: 6144") for item in first)
    assert first != later
    directory = tmp_path / "run"
    assert runner.train(directory, *first, stop_at=6) == 0
    changed = tuple(item.replace("weight: 0.2", "weight: 0.3") for item in later)
    with pytest.raises(ValueError, match="mixture") as error:
        runner.train(directory, *changed)
    assert "\n" not in str(error.value)
    assert runner.train(directory, *later) == 0
    same_bits(runner.final_state(directory, *later), runner.final_state(whole, *later))
    assert runner.lines(directory) == runner.lines(whole)
