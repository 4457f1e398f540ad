"""The sample corpus is what its licence page and its script say."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.inputs import find_inputs
from maxtrain.corpus.recipe import load_recipe
from maxtrain.corpus.split import split_of
from maxtrain.dataset import document_id

FREE = re.compile(r"public domain|MIT\b|BSD-3-Clause|BSL-1\.0|PSF-2\.0|CC0-1\.0")
NOT_FREE = re.compile(r"GPL|SA-|-SA|NC|ND|Artistic")


@pytest.fixture(scope="module")
def sample(root):
    return root / "data" / "sample"


@pytest.fixture(scope="module")
def records(sample):
    return [json.loads(line) for path in sorted(sample.glob("*.jsonl.zst")) for line in iterate_lines(path)]


def test_only_free_texts_each_with_its_place_on_the_licence_page(sample, records):
    for record in records:
        assert FREE.search(record["licence"])
        assert not NOT_FREE.search(record["licence"])
        assert record["origin"]
        assert record["text"].strip()
    page = (sample / "LICENCES.md").read_text()
    total = sum(len(record["text"].encode()) for record in records)
    assert f"{len(records):,} documents, {total:,} bytes" in page
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| (book|code|math)", line)]
    by_page = Counter[str]()
    for row in rows:
        by_page[row[1].strip()] += int(row[3].replace(",", ""))
    by_file = Counter[str]()
    for record in records:
        by_file[record["category"]] += len(record["text"].encode())
    assert by_page == by_file


def test_size_and_balance(sample, records):
    assert sum(path.stat().st_size for path in sample.glob("*.zst")) < 3_000_000
    sizes = Counter[str]()
    held_out = Counter[str]()
    recipe = load_recipe(sample.parent / "recipes" / "sample.yaml")
    for record in records:
        size = len(record["text"].encode())
        sizes[record["category"]] += size
        doc_id = document_id(record["source"], original_id=record["id"], url=None, text=record["text"])
        if split_of(doc_id, recipe.splits) == "heldout":
            held_out[record["category"]] += size
    assert set(sizes) == {"book_en", "book_zh", "code", "math"}
    assert min(sizes.values()) > 0.9 * max(sizes.values())
    assert min(held_out.values()) > 90_000, "about 30,000 tokens each"
    assert [Path(file.location).name for file in find_inputs(recipe, sample.parent / "recipes")] == sorted(
        f"{name}.jsonl.zst" for name in sizes
    )


def test_the_script_chooses_the_same_again(root, sample, shared, tmp_path):
    script = root / "tools" / "data" / "make_sample.py"
    subprocess.run([sys.executable, script, shared / "corpora", "--output", tmp_path], check=True, capture_output=True)
    names = sorted(path.name for path in sample.glob("*.zst"))
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert list(iterate_lines(tmp_path / name)) == list(iterate_lines(sample / name))
