"""The stages as a whole: duplicates, the evaluation list, ledger and samples, workers, kills."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from maxtrain.core.errors import DataError
from maxtrain.corpus.__main__ import main
from maxtrain.corpus.build import build
from maxtrain.corpus.decontaminate.index import build_eval_index
from maxtrain.corpus.dedup import DedupConfig, deduplicate
from maxtrain.corpus.document import Document
from maxtrain.corpus.engine import Engine, Options, Task
from maxtrain.corpus.recipe import load_recipe
from maxtrain.dataset import Dataset, document_id

RULES = """\
rules: {too_short: true, repetition: true, gibberish: true, language: true, quality: true}
dedup: {}
decontaminate: {index: index}
samples: 3
"""


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.fixture
def full_recipe(recipe, records):
    """A recipe with every stage; among the records are copies, near-copies, noise and an evaluation item."""
    folder = recipe.parent
    base = max((record for record in records if record["category"] == "book_en"), key=lambda r: len(r["text"]))
    words = base["text"].split()
    item = (
        "Which of the old lighthouse keepers wrote down the names of all ships that passed in the winter of that year"
    )
    (folder / "quiz.jsonl").write_text(
        json.dumps({"id": "q/1", "task": "quiz", "question": item, "answer": "none"}) + "\n"
    )
    build_eval_index([folder / "quiz.jsonl"], folder / "index")
    rows = [
        {"id": "copy", "text": base["text"].upper()},
        {"id": "near", "text": " ".join([*words[:-6], "an", "ending", "of", "another", "kind"])},
        {"id": "leak", "text": f"{' '.join(words[:150])} {item} {' '.join(words[150:200])}"},
        {"id": "noise", "text": "qzx vkjw hgfd lkjqw zxcvb mnbq wrtp sdfgh jklzx plkm qwzx rtgb vfcdx swqaz"},
        {"id": "short", "text": "Too short"},
    ]
    with (folder / "in" / "a.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"source": "made", "lang": "en", "category": "web", **row}) + "\n" for row in rows)
    recipe.write_text(recipe.read_text() + RULES)
    return recipe


def identity_of(source, name):
    return document_id(source, original_id=name, url=None, text="")


def identity(name):
    return identity_of("made", name)


def fates(dataset):
    table = pq.read_table(f"{dataset}/ledger.parquet").to_pylist()
    return {row["doc_id"]: row for row in table if row["action"] != "changed"}


def test_every_document_has_one_fate_and_the_ledger_adds_up(full_recipe, records):
    built = build(load_recipe(full_recipe), full_recipe.parent)
    dataset = Dataset.open(str(built.output))
    rows = pq.read_table(built.output / "ledger.parquet").to_pylist()
    ends = Counter(row["doc_id"] for row in rows if row["action"] in ("kept", "dropped"))
    assert len(ends) == len(records) + 5
    assert set(ends.values()) == {1}
    kept = {row["doc_id"] for row in rows if row["action"] == "kept"}
    assert kept == {doc_id.decode() for doc_id in dataset.documents.doc_id}
    told = fates(built.output)
    reasons = {
        name: (told[identity(name)]["rule"], told[identity(name)]["reason"]) for name in ("leak", "noise", "short")
    }
    assert reasons["noise"] == ("gibberish", "letters")
    assert reasons["short"] == ("too_short", "too_short")
    assert reasons["leak"] == ("decontaminate", "contaminated")
    one_text = [told[identity(name)] for name in ("copy", "near")]
    assert {row["rule"] for row in one_text} == {"dedup"}
    assert all(row["survivor"] in kept for row in one_text)
    dropped = Counter(row["rule"] for row in rows if row["action"] == "dropped")
    assert dropped == {
        name: sum(counts.dropped.values())
        for name, counts in dataset.manifest.rules.items()
        if counts.dropped and name != "read"
    }
    assert dataset.manifest.evaluation_suite is not None
    assert not built.output.with_name(".out.work").exists()


def test_workers_and_an_interruption_change_no_byte(full_recipe):
    recipe, folder = load_recipe(full_recipe), full_recipe.parent
    one = build(recipe, folder, output=folder / "one", options=Options(workers=1))
    in_processes = (
        "import sys; from maxtrain.corpus.engine import engine; engine.SMALL_BYTES = 0; "
        "from maxtrain.corpus.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["build", str(full_recipe), "--output", str(folder / "two"), "--workers", "2"]
    subprocess.run([sys.executable, "-c", in_processes, *arguments], check=True, capture_output=True)
    command = [sys.executable, "-m", "maxtrain.corpus", "build", str(full_recipe), "--output", str(folder / "three")]
    work = folder / ".three.work"
    for stage in ("read", "clean", "select"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(work.glob(f"{stage}/*/done.json")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = {path: path.stat().st_mtime_ns for path in work.glob("read/*/done.json")}
    assert left, "killed after the first stage was done"
    three = build(recipe, folder, output=folder / "three")
    assert tree(one.output) == tree(folder / "two") == tree(three.output)


def test_a_damaged_stage_of_an_interrupted_build_is_made_again(full_recipe, monkeypatch):
    recipe, folder = load_recipe(full_recipe), full_recipe.parent
    whole = build(recipe, folder, output=folder / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("maxtrain.corpus.build.DatasetWriter.finish", lambda *_: _full_disk())
        with pytest.raises(OSError, match="No space"):
            build(recipe, folder)
    work = folder / ".out.work"
    for part in work.glob("clean/*/00000.parquet"):
        part.write_bytes(part.read_bytes()[:-20])
    assert tree(build(recipe, folder).output) == tree(whole.output)


def _full_disk():
    raise OSError(28, os.strerror(28), "disk")


def test_an_input_that_changed_since_the_interruption_is_told_and_read_anew(full_recipe, monkeypatch, capsys):
    recipe, folder = load_recipe(full_recipe), full_recipe.parent
    with monkeypatch.context() as patch:
        patch.setattr("maxtrain.corpus.build.DatasetWriter.finish", lambda *_: _full_disk())
        with pytest.raises(OSError, match="No space"):
            build(recipe, folder)
    more = {
        "id": "more",
        "source": "made",
        "text": "A new line of text that was not there when the build began to read it.",
    }
    with (folder / "in" / "b.jsonl").open("a") as file:
        file.write(json.dumps(more) + "\n")
    capsys.readouterr()
    built = build(recipe, folder)
    assert "in/b.jsonl: changed since the build was interrupted" in "".join(capsys.readouterr())
    assert identity("more") in fates(built.output)


def test_what_a_dataset_answers(full_recipe, capsys, tmp_path):
    folder = full_recipe.parent
    assert main(["build", str(full_recipe)]) == 0
    dataset = str(folder / "out")
    capsys.readouterr()
    assert main(["explain", dataset, identity("noise")]) == 0
    assert "dropped by gibberish: letters" in capsys.readouterr().out
    assert main(["explain", dataset, "in/a.jsonl:1"]) == 0
    assert "kept:" in capsys.readouterr().out
    assert main(["explain", dataset, identity("near"), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["entries"][-1]["rule"] == "dedup"
    assert main(["explain", dataset, "https://example.org/none"]) == 3
    assert "no document of" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["sample", dataset, "--rule", "dedup", "--output", str(page)]) == 0
    assert "dropped: exact" in page.read_text()
    assert main(["sample", dataset, "--rule", "dedupp"]) == 2
    assert "did you mean dedup?" in capsys.readouterr().err
    assert main(["stats", dataset, "--output", str(page)]) == 0
    assert "gibberish" in page.read_text()
    assert main(["stats", dataset, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(row["read"] for row in told["dropped_by"]["lang"]) == sum(
        row["read"] for row in told["dropped_by"]["source"]
    )
    assert main(["card", dataset]) == 0
    assert "## Licences" in capsys.readouterr().out
    full_recipe.write_text(full_recipe.read_text().replace("too_short: true", "too_short: false"))
    assert main(["build", str(full_recipe), "--output", str(folder / "other")]) == 0
    capsys.readouterr()
    assert main(["diff", dataset, str(folder / "other"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["moved"]["too_short too_short -> kept"]["examples"] == [identity("short")]
    assert "rules.too_short.min_words" in found["recipe"] or "rules.too_short" in found["recipe"]


def test_pages_escape_what_the_data_says(recipe, capsys, tmp_path):
    folder = recipe.parent
    with (folder / "in" / "a.jsonl").open("a") as file:
        file.write(
            json.dumps({"id": "<b>", "source": "<script>alert(1)</script>", "text": "<img src=x onerror=alert(2)>"})
            + "\n"
        )
    recipe.write_text(recipe.read_text() + "rules: {length: {min_bytes: 40}}\n")
    assert main(["build", str(recipe)]) == 0
    page = tmp_path / "page.html"
    for command in (["sample", "--rule", "length"], ["stats"]):
        name, *options = command
        assert main([name, str(folder / "out"), *options, "--output", str(page)]) == 0
        assert "<script>alert" not in page.read_text()
        assert "<img" not in page.read_text()
    assert (
        "&lt;img src=x onerror=alert(2)&gt;"
        in (main(["sample", str(folder / "out"), "--rule", "length", "--output", str(page)]), page.read_text())[1]
    )


def test_sources_are_spared_rules_by_name(recipe, capsys):
    text = recipe.read_text() + "rules: {length: {min_bytes: 1Mi}}\n"
    recipe.write_text(text.replace("licence: MIT", "licence: MIT\n    without: [length]"))
    assert main(["build", str(recipe)]) == 0
    assert "length" not in Dataset.open(str(recipe.parent / "out")).manifest.rules
    recipe.write_text(text.replace("licence: MIT", "licence: MIT\n    without: [lenght]"))
    assert main(["build", str(recipe), "--force"]) == 2
    assert "no rule lenght; did you mean length?" in capsys.readouterr().err
    recipe.write_text(text.replace("rules: {length: {min_bytes: 1Mi}}", "rules: {too_shirt: true}"))
    assert main(["build", str(recipe), "--force"]) == 2
    assert "did you mean rules.too_short?" in capsys.readouterr().err
    recipe.write_text(f"extends: {recipe.name}\n{text}")
    assert main(["build", str(recipe), "--force"]) == 2
    assert "`extends` runs in a circle" in capsys.readouterr().err


def test_duplicates_over_shards_are_those_of_the_oracle(records, tmp_path, monkeypatch):
    """Shards of a few documents each, against everything in memory."""
    monkeypatch.setattr("maxtrain.corpus.shards.SHARD_BYTES", 1)
    rng = np.random.default_rng(0)
    rows = []
    for number, record in enumerate(records):
        words = record["text"].split(" ")
        rows.append({**record, "id": f"{number}"})
        for copy in range(2):
            edited = list(words)
            for place in rng.choice(len(words), max(len(words) // 60, 1), replace=False):
                edited[place] = "changed"
            rows.append({**record, "id": f"{number}/{copy}", "text": " ".join(edited)})
    documents = [
        Document(document_id("s", original_id=row["id"], url=None, text=""), row["text"], "s", "en", "web", "", "", 1)
        for row in rows
    ]
    expected = deduplicate(documents, DedupConfig())
    (tmp_path / "in").mkdir()
    for part in range(4):
        lines = [json.dumps({"id": row["id"], "text": row["text"], "source": "s"}) for row in rows[part::4]]
        (tmp_path / "in" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("maxtrain.corpus.build._READ_BYTES", 1)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "output: out\ninputs: [{files: in/*.jsonl, licence: MIT}]\ndedup: {}\n"
        "tokenizer: {train: {vocab_size: 4096, character_coverage: 0.98}}\n"
    )
    told = fates(build(load_recipe(path), tmp_path).output)
    gone = {document.doc_id for document, drop in zip(documents, expected.dropped, strict=True) if drop}
    assert len(gone) > len(records)
    assert {doc_id for doc_id, row in told.items() if row["rule"] == "dedup"} == gone
    for document, drop in zip(documents, expected.dropped, strict=True):
        if drop is not None:
            assert told[document.doc_id]["survivor"] == documents[drop.survivor].doc_id
            assert told[document.doc_id]["reason"] == drop.rule


def test_the_same_identity_twice_is_a_duplicate_where_duplicates_are_looked_for(recipe):
    with (recipe.parent / "in" / "a.jsonl").open("a") as file:
        for text in ("One text that stands here for a page.", "Another text of the very same address."):
            file.write(json.dumps({"text": text, "id": "x", "source": "s"}) + "\n")
    with pytest.raises(DataError, match="two records with one identity"):
        build(load_recipe(recipe), recipe.parent)
    recipe.write_text(recipe.read_text() + "dedup: {}\n")
    built = build(load_recipe(recipe), recipe.parent)
    assert built.manifest.rules["dedup"].dropped == {"id": 1}


def test_the_same_record_in_two_files_is_sampled_like_any_other(recipe, records):
    """Both stand in the samples of the rule that drops them, though their ids are the same."""
    line = json.dumps({"text": "Too short", "id": "x", "source": "s"}) + "\n"
    for name in "cd":
        (recipe.parent / "in" / f"{name}.jsonl").write_text(line)
    recipe.write_text(recipe.read_text() + "rules: {too_short: true}\ndedup: {}\n")
    built = build(load_recipe(recipe), recipe.parent)
    samples = pq.read_table(built.output / "samples.parquet").to_pylist()
    assert [sample["doc_id"] for sample in samples].count(identity_of("s", "x")) == 2


def test_a_worker_that_dies_again_and_again_is_told(tmp_path):
    tasks = [Task("s", "maxtrain.corpus.stages:no_such_function", {"number": number}, 1) for number in range(2)]
    with Engine(tmp_path / "work", Options(workers=1)) as engine, pytest.raises(RuntimeError, match="no_such_function"):
        engine.run(tasks, "try")
