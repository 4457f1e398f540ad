"""The evaluation list on disk."""

import gzip
import hashlib
import json

import pytest

from maxtrain.core.errors import DataError, UserError
from maxtrain.corpus.decontaminate import ScanConfig, Scanner, build_eval_index, load_eval_index, suite_identity
from maxtrain.corpus.decontaminate.items import items_sha256

LINE = {"id": "1", "question": " ".join(f"word{n}" for n in range(60)), "answer": "end", "licence": "MIT"}


def write(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_suite_identity():
    expected = hashlib.sha256(b"a 11\nb 22\n").hexdigest()
    assert suite_identity([("b", "22"), ("a", "11")]) == suite_identity([("a", "11"), ("b", "22")]) == expected
    assert suite_identity([("a", "12"), ("b", "22")]) != expected


def test_compression_does_not_matter(tmp_path):
    plain = write(tmp_path / "task.jsonl", LINE)
    packed = tmp_path / "task.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert items_sha256(plain) == items_sha256(packed) == hashlib.sha256(plain.read_bytes()).hexdigest()
    first = build_eval_index([plain], tmp_path / "a")
    assert build_eval_index([packed], tmp_path / "b") == first
    assert (tmp_path / "a" / "task.grams").read_bytes() == (tmp_path / "b" / "task.grams").read_bytes()
    with pytest.raises(UserError, match="second file"):
        build_eval_index([plain, packed], tmp_path / "c")


def test_no_text_is_in_it(tmp_path):
    build_eval_index([write(tmp_path / "task.jsonl", LINE)], tmp_path / "index")
    for path in (tmp_path / "index").iterdir():
        assert b"word5" not in path.read_bytes()


def test_fewer_grams(tmp_path):
    short = {"id": "2", "question": "nine words make a question that is short enough"}
    path = write(tmp_path / "task.jsonl", LINE, short)
    build_eval_index([path], tmp_path / "index", max_grams=4)
    index = load_eval_index(tmp_path / "index")
    assert index.totals.tolist() == [[4, 0], [0, 0], [0, 2], [0, 0]]
    scanner = Scanner(index, ScanConfig())
    assert [hit.item for hit in scanner.scan(LINE["question"])] == ["1"]
    assert [hit.item for hit in scanner.scan("Nine words make a question that is short enough!")] == ["2"]
    words = LINE["question"].split()
    assert [hit.item for hit in scanner.scan(" ".join(words[:13]))] == ["1"]


def test_tasks_can_be_chosen(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / f"{name}.jsonl", LINE | {"id": name})
    told = build_eval_index(list(tmp_path.glob("*.jsonl")), tmp_path / "index")
    both = load_eval_index(tmp_path / "index")
    assert both.identity == told["suite"]
    assert (both.tasks, both.ids, both.task_of(1)) == (["one", "two"], ["one", "two"], "two")
    assert (both.spread == 2).all()
    assert load_eval_index(tmp_path / "index", ["two"]).ids == ["two"]
    with pytest.raises(UserError, match="no task three; there are one, two"):
        load_eval_index(tmp_path / "index", ["three"])


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "task.jsonl"
    path.write_text('{"question": "a"}\nnot json\n')
    with pytest.raises(DataError, match=r"task\.jsonl, line 2: no JSON"):
        build_eval_index([path], tmp_path / "index")
    with pytest.raises(DataError, match="line 1: an item needs text in one of"):
        build_eval_index([write(path, {"choices": ["a"]})], tmp_path / "index")
    with pytest.raises(DataError, match="cannot be read"):
        build_eval_index([tmp_path / "none.jsonl.gz"], tmp_path / "index")
    with pytest.raises(DataError, match="no index"):
        load_eval_index(tmp_path / "nowhere")
    build_eval_index([write(path, LINE)], tmp_path / "index")
    grams = tmp_path / "index" / "task.grams"
    grams.write_bytes(b"\0" + grams.read_bytes()[1:])
    with pytest.raises(DataError, match="SHA-256"):
        load_eval_index(tmp_path / "index")
    manifest = tmp_path / "index" / "task.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 0}))
    with pytest.raises(DataError, match="version 0"):
        load_eval_index(tmp_path / "index")


def test_the_list_of_the_repository(root):
    folder = root / "data" / "eval"
    index = load_eval_index(folder / "grams")
    assert index.identity in (folder / "README.md").read_text()
    for path in sorted((folder / "items").iterdir()):
        manifest = json.loads((folder / "grams" / path.name.replace(".jsonl.gz", ".json")).read_text())
        assert manifest["items_sha256"] == items_sha256(path)
        assert manifest["max_grams"] is None
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 3_000_000
    # An item of a task without its text here, as it would stand in a web page.
    scanner = Scanner(index, ScanConfig())
    text = (
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
        "How many clips did Natalia sell altogether in April and May? 72"
    )
    assert [hit.task for hit in scanner.scan(text)] == ["gsm8k_fewshot"]
