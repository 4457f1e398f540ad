import pytest

from maxtrain.config.yaml_files import read_mapping
from maxtrain.core.errors import UserError
from maxtrain.corpus.__main__ import main
from maxtrain.corpus.inputs import find_inputs
from maxtrain.corpus.recipe import load_recipe
from maxtrain.corpus.registry import NAMES

GOOD = """\
output: out
inputs:
  - files: in/**/*.jsonl
    licence: MIT
tokenizer:
  train: {vocab_size: 8Ki}
splits: {heldout: 0.05}
"""


def refuse(tmp_path, text, *words):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_recipe(path)
    for word in words:
        assert word in str(error.value)
    return str(error.value)


def test_defaults_and_human_sizes(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(GOOD)
    recipe = load_recipe(path)
    assert recipe.tokenizer.train is not None
    assert recipe.tokenizer.train.vocab_size == 8192
    assert recipe.shard_tokens == 2**27
    assert not recipe.add_bos


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("splits:", "split:", ["split", "unknown key", "did you mean splits.heldout?", "r.yaml:7"]),
        ("    licence: MIT\n", "", ["inputs.0.licence", "required and missing"]),
        ("licence: MIT", "license: MIT", ["inputs.0.license", "did you mean inputs.0.licence?"]),
        ("{vocab_size: 8Ki}", "{vocab_size: many}", ["tokenizer.train.vocab_size = many", "count such as"]),
        (
            "{vocab_size: 8Ki}",
            "{vocab_sise: 8Ki}",
            ["tokenizer.train.vocab_sise", "did you mean tokenizer.train.vocab_size?"],
        ),
        ("  train: {vocab_size: 8Ki}", "  path: t\n  train: {vocab_size: 8Ki}", ["exactly one of path and train"]),
        ("heldout: 0.05", "train: 0.05", ["splits", "train is what the other splits leave; delete it"]),
        ("heldout: 0.05", "heldout: 1", ["less than 1"]),
        ("heldout: 0.05", "heldout: 1.5", ["splits.heldout = 1.5", ">= 0 and <= 1"]),
        ("heldout: 0.05", "heldout: 0.05, heldout: 0.1", ["duplicate key"]),
        ("files: in/**/*.jsonl", "files: 3", ["inputs.0.files = 3: should be a text or a list of texts"]),
        ("files: in/**/*.jsonl", "files:", ["inputs.0.files = null: should be a text or a list of texts"]),
        (
            "files: in/**/*.jsonl",
            "files: []",
            ["inputs.0.files = []: should be a text or a list of texts with at least one entry"],
        ),
        ("files: in/**/*.jsonl", "files: [1, 2]", ["inputs.0.files = [1, 2]: should be a text or a list of texts"]),
        (
            "\n  - files: in/**/*.jsonl\n    licence: MIT",
            " []",
            ["inputs = []: should be a list of sections with at least one entry"],
        ),
        ("\n  - files: in/**/*.jsonl\n    licence: MIT", " [5]", ["inputs.0 = 5: should be a section"]),
        ("{vocab_size: 8Ki}", "{vocab_size: 3B}", ["vocab_size = 3B", "at most 2,147,483,647"]),
        ("{heldout: 0.05}", "0.05", ["splits = 0.05: should be a mapping of names to numbers"]),
        ("output: out\n", "", ["output", "required and missing"]),
    ],
)
def test_mistakes_are_named_with_their_cure(tmp_path, old, new, words):
    assert old in GOOD
    told = refuse(tmp_path, GOOD.replace(old, new), *words)
    assert told.count("inputs.0.files") <= 1
    assert "function-" not in told


def test_all_mistakes_at_once(tmp_path):
    text = GOOD.replace("splits:", "split:").replace("8Ki", "-1").replace("output: out\n", "")
    refuse(tmp_path, text, "3 violations", "split", "vocab_size", "output")


def test_missing_or_unreadable_recipe(tmp_path, capsys):
    assert main(["build", str(tmp_path / "none.yaml")]) == 2
    (tmp_path / "r.yaml").write_bytes(b"\xff")
    assert main(["build", str(tmp_path / "r.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_inputs_are_found_relative_to_the_recipe_in_order(tmp_path):
    for name in ("in/b.jsonl", "in/a.jsonl", "in/deep/c.jsonl", "side/d.jsonl.zst"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    folder = tmp_path / "recipes"
    folder.mkdir()
    path = folder / "r.yaml"
    path.write_text(GOOD.replace("in/**/*.jsonl", "[../in/**/*.jsonl, ../side/*]"))
    found = find_inputs(load_recipe(path), folder)
    assert [file.name for file in found] == [
        "../in/a.jsonl", "../in/b.jsonl", "../in/deep/c.jsonl", "../side/d.jsonl.zst"
    ]  # fmt: skip
    path.write_text(GOOD.replace("in/**/*.jsonl", str(tmp_path / "in" / "*.jsonl")))
    assert [file.name for file in find_inputs(load_recipe(path), folder)] == [
        f"{tmp_path}/in/a.jsonl", f"{tmp_path}/in/b.jsonl"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("none/*.jsonl", "no such file"),
        ("[a.jsonl, 'a*.jsonl']", "named twice"),
        ("[a.jsonl, ./a.jsonl]", "named twice"),
        ("[a.jsonl, {folder}/a.jsonl]", "a.jsonl is named twice"),
        ("[a.jsonl, link.jsonl]", "link.jsonl is named twice, also as .*a.jsonl"),
        ("[in/*.jsonl, linked/*.jsonl]", "linked/b.jsonl is named twice, also as .*in/b.jsonl"),
        ("in", r"in is a directory; name the files in it, such as in/\*"),
        ("deep.jsonl", "deep.jsonl is a directory"),
        ("a.csv", "no kind of input is told by this name"),
        ("a**b.jsonl", r"a\*\*b.jsonl': is no pattern"),
        ("'./'", "is no pattern"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path, files, message):
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.jsonl").write_text("")
    (tmp_path / "linked").symlink_to("in")
    (tmp_path / "deep.jsonl").mkdir()
    path = tmp_path / "r.yaml"
    path.write_text(GOOD.replace("in/**/*.jsonl", files.format(folder=tmp_path)))
    with pytest.raises(UserError, match=message) as error:
        find_inputs(load_recipe(path), tmp_path)
    assert "\n" not in str(error.value)


def test_the_recipe_of_rules_names_all_that_need_no_list(root):
    tree = read_mapping(root / "data" / "recipes" / "rules.yaml")[0]
    assert set(tree["rules"]) == set(NAMES) - {"length", "opt_out", "licence", "domains"}
    assert all(value is True for value in tree["rules"].values())
