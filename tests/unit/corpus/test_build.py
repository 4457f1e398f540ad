import errno
import gzip
import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from maxtrain.config.schema import TagFilter
from maxtrain.core.errors import BusyError, DataError
from maxtrain.core.files import DirectoryLock
from maxtrain.corpus.__main__ import main
from maxtrain.corpus.build import BUILD_VERSION, build
from maxtrain.corpus.read import read_file
from maxtrain.corpus.recipe import load_recipe
from maxtrain.corpus.split import split_of
from maxtrain.dataset import Dataset, document_id
from maxtrain.tokenizer import Tokenizer, train_tokenizer


def run(recipe, **options):
    return build(load_recipe(recipe), recipe.parent, **options)


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def add_lines(recipe, *lines):
    with (recipe.parent / "in" / "a.jsonl").open("ab") as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")


def number_of(table, doc_id):
    """Number of the one document with this id."""
    (number,) = np.flatnonzero(table.doc_id == doc_id.encode())
    return int(number)


def test_every_text_is_in_the_dataset_with_its_tags(recipe, records):
    dataset = Dataset.open(str(run(recipe).output))
    tokenizer = Tokenizer.load(dataset.tokenizer_model(), expected_hash=dataset.tokenizer_hash)
    assert len(dataset.documents) == len(records)
    for record in records:
        doc_id = document_id(record["source"], original_id=record["id"], url=None, text=record["text"])
        number = number_of(dataset.documents, doc_id)
        tokens = dataset.tokens(number)
        assert tokenizer.decode(tokens[:-1]) == record["text"]
        assert tokens[-1] == dataset.eod_id
        table = dataset.documents
        assert (table.source[number], table.lang[number], table.category[number]) == (
            record["source"], record["lang"], record["category"]
        )  # fmt: skip
        assert table.num_bytes[number] == len(record["text"].encode())
        assert table.licence(number) == record["licence"]
        assert table.origin(number) == record["origin"]
        file, line = table.place(number).split(":")
        assert json.loads((recipe.parent / file).read_text().split("\n")[int(line) - 1])["id"] == record["id"]


def test_the_output_is_relative_to_the_recipe(recipe, tmp_path, monkeypatch, capsys):
    recipe.write_text(recipe.read_text().replace(f"output: {tmp_path / 'out'}", "output: ../made/out"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["build", str(recipe)]) == 0
    made = (tmp_path / ".." / "made" / "out").resolve()
    assert f"{made}: built" in capsys.readouterr().out
    monkeypatch.chdir(made.parent)
    assert main(["build", str(recipe)]) == 0
    assert "out: up to date" in capsys.readouterr().out, "told as short as it can be"
    assert main(["build", str(recipe), "--output", "mine"]) == 0
    assert "mine: built" in capsys.readouterr().out, "an option is relative to where the command runs"
    assert (made.parent / "mine" / "manifest.json").is_file()
    shutil.rmtree(made.parent)


def test_two_builds_are_the_same_bytes(recipe, tmp_path):
    first = tree(run(recipe).output)
    other = tmp_path / "elsewhere"
    shutil.copytree(recipe.parent / "in", other / "in")
    shutil.copy(recipe, other)
    second = tree(run(other / "recipe.yaml", output=tmp_path / "out2").output)
    assert first == second
    assert len([name for name in first if name.startswith("shards/")]) > 1


def test_second_build_has_nothing_to_do_until_something_changes(recipe, capsys):
    assert main(["build", str(recipe)]) == 0
    assert "built" in capsys.readouterr().out
    output = recipe.parent / "out"
    before = tree(output)
    assert main(["build", str(recipe)]) == 0
    assert "up to date" in capsys.readouterr().out
    add_lines(recipe, {"text": "one more", "source": "s"})
    assert main(["build", str(recipe)]) == 3
    assert "--force" in capsys.readouterr().err
    assert tree(output) == before
    assert main(["build", str(recipe), "--force"]) == 0
    assert "built" in capsys.readouterr().out
    text = recipe.read_text()
    recipe.write_text(text.replace("heldout: 0.2", "heldout: 0.3"))
    assert main(["build", str(recipe)]) == 3
    recipe.write_text(text)
    shard = next((output / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-2])
    capsys.readouterr()
    assert main(["build", str(recipe)]) == 3
    assert "truncated" in capsys.readouterr().err


def test_only_a_dataset_is_replaced_and_nothing_beside_it(recipe, capsys):
    output = recipe.parent / "out"
    output.mkdir()
    (output / "manifest.json").write_text('{"name": "my-app"}')
    (output / "thesis.txt").write_text("years of work")
    before = tree(output)
    assert main(["build", str(recipe), "--force"]) == 3
    assert "something else than a dataset" in capsys.readouterr().err
    assert tree(output) == before
    shutil.rmtree(output)
    assert main(["build", str(recipe)]) == 0
    for foreign in (output / "notes.txt", output / "shards" / "notes.txt"):
        foreign.write_text("mine")
        before = tree(output)
        assert main(["build", str(recipe)]) == 0, "it is up to date all the same"
        assert main(["build", str(recipe), "--force"]) == 3
        assert f"{foreign}: is no part of the dataset" in capsys.readouterr().err
        assert tree(output) == before
        foreign.unlink()
    assert main(["build", str(recipe), "--force"]) == 0


GOLDEN = (2, "662faa73c4ad61b5553820f598b5e2c381c33bf573e74a289543ce96c1819a42")
"""BUILD_VERSION, and a hash of what it makes of the fixture's recipe."""


def test_what_a_build_gives_changes_only_with_its_version(recipe):
    add_lines(recipe, b"no json", {"text": "a number", "id": 7, "quality_score": 0.25}, {"text": "   "})
    dataset = Dataset.open(str(run(recipe).output))
    manifest = dataset.manifest
    assert [attachment.file for attachment in manifest.attachments] == ["quarantine.jsonl", "ledger.parquet"]
    hashes = [manifest.tokenizer.sha256, manifest.attachments[0].sha256, *(shard.sha256 for shard in manifest.shards)]
    # Not the bytes of these two, which name the version of the library that wrote them.
    tables = [pq.read_table(f"{dataset.location}/{name}.parquet").to_pydict() for name in ("documents", "ledger")]
    digest = hashlib.sha256(json.dumps([hashes, tables]).encode()).hexdigest()
    assert (manifest.build_version, digest) == GOLDEN, "raise BUILD_VERSION, then write the new pair here"


def test_a_dataset_of_another_build_version_is_not_up_to_date(recipe, monkeypatch, capsys):
    assert main(["build", str(recipe)]) == 0
    monkeypatch.setattr("maxtrain.corpus.build.BUILD_VERSION", BUILD_VERSION + 1)
    capsys.readouterr()
    assert main(["build", str(recipe)]) == 3
    assert "by other code" in capsys.readouterr().err
    assert main(["build", str(recipe), "--force"]) == 0
    assert Dataset.open(str(recipe.parent / "out")).manifest.build_version == BUILD_VERSION + 1
    assert main(["build", str(recipe)]) == 0
    assert "up to date" in capsys.readouterr().out


def test_an_input_that_changes_meanwhile_is_refused(recipe, monkeypatch, capsys):
    """Between its hash and its reading: same size, same time."""
    file = recipe.parent / "in" / "b.jsonl"

    def change(*arguments):
        before, data = file.stat(), file.read_bytes()
        file.write_bytes(data.replace(b"e", b"a"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return read_file(*arguments)

    monkeypatch.setattr("maxtrain.corpus.stages.read_file", change)
    assert main(["build", str(recipe)]) == 3
    told = capsys.readouterr().err
    assert f"{file}: changed while it was read" in told
    assert told.count("\n") == 1
    assert not (recipe.parent / "out").exists()


def test_the_list_of_bad_lines_is_part_of_the_dataset(recipe, capsys):
    add_lines(recipe, b"no json", b"[]")
    output = run(recipe).output
    path = output / "quarantine.jsonl"
    data = path.read_bytes()
    (quarantine,) = [file for file in Dataset.open(str(output)).manifest.attachments if file.file == path.name]
    assert (quarantine.num_bytes, quarantine.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    path.write_bytes(data.replace(b"no", b"on").replace(b"a.jsonl", b"c.jsonl"))
    Dataset.open(str(output), verify="size")
    with pytest.raises(DataError, match=r"quarantine\.jsonl: damaged"):
        Dataset.open(str(output))
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"quarantine\.jsonl: truncated"):
        Dataset.open(str(output), verify="size")
    path.unlink()
    assert main(["verify", str(output)]) == 3
    assert "quarantine.jsonl: the attachment is missing" in capsys.readouterr().err


def test_two_entries_of_one_source_with_the_same_ids_name_both_places(recipe, capsys):
    folder = recipe.parent / "in"
    entries = ""
    for name in "cd":
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": name, "id": "1"}) + "\n")
        entries += f"  - {{files: in/{name}.jsonl, licence: MIT, tags: {{source: web}}}}\n"
    recipe.write_text(
        recipe.read_text().replace("in/*.jsonl", "'in/[ab].jsonl'").replace("tokenizer:", entries + "tokenizer:")
    )
    assert main(["build", str(recipe)]) == 3
    told = capsys.readouterr().err
    assert "in/c.jsonl:1 and in/d.jsonl:1: two records with one identity" in told
    assert "name the sources apart" in told
    assert told.count("\n") == 1


def test_an_input_that_may_not_be_read_is_one_line(recipe, monkeypatch, capsys):
    file = recipe.parent / "in" / "b.jsonl"
    open_path = Path.open

    def refuse(path, *arguments, **options):  # a superuser may read everything, so no mode of the file would do
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert main(["build", str(recipe)]) == 1
    assert capsys.readouterr().err == f"error: Permission denied ({file})\n"
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["in", "recipe.yaml"]


def test_an_output_that_is_no_local_path_is_refused(recipe, capsys):
    assert main(["build", str(recipe), "--output", "s3://bucket/dataset"]) == 2
    assert "a local path is needed" in capsys.readouterr().err


def test_splits_follow_a_hash_of_the_id_and_the_tokenizer_sees_train_only(recipe, records):
    splits = {"heldout": 0.2, "test": 0.1}
    dataset = Dataset.open(str(run(recipe).output))
    names = [dataset.documents.split[number] for number in range(len(dataset.documents))]
    assert names == [split_of(doc_id.decode(), splits) for doc_id in dataset.documents.doc_id]
    assert set(names) == {"train", "heldout", "test"}
    assert dataset.select(TagFilter(split="test")).tolist() == [n for n, name in enumerate(names) if name == "test"]
    assert {name: split.documents for name, split in dataset.manifest.splits.items()} == Counter(names)
    train = []
    for record in records:
        doc_id = document_id(record["source"], original_id=record["id"], url=None, text=record["text"])
        if split_of(doc_id, splits) == "train":
            train.append(record["text"])
    assert train_tokenizer(train, vocab_size=4096, character_coverage=0.98).hash == dataset.tokenizer_hash


def test_shares_of_splits_are_as_asked_and_a_later_split_moves_no_earlier_one():
    ids = [document_id("s", original_id=str(number), url=None, text="") for number in range(20_000)]
    one = [split_of(doc_id, {"heldout": 0.05}) for doc_id in ids]
    two = [split_of(doc_id, {"heldout": 0.05, "test": 0.1}) for doc_id in ids]
    assert abs(one.count("heldout") / len(ids) - 0.05) < 0.006
    assert abs(two.count("test") / len(ids) - 0.1) < 0.008
    assert [name == "heldout" for name in one] == [name == "heldout" for name in two]


def test_unusable_lines_are_set_aside_with_their_reasons(recipe, records, capsys):
    lines = {
        b"no json": "not_json",
        b'{"text": "cut of': "not_json",
        b'{"text": "\xff\xfe"}': "invalid_utf8",
        b'["text"]': "not_a_record",
        b'{"id": "1"}': "missing_text",
        b'{"text": null}': "missing_text",
        b'{"text": 3}': "bad_text",
        b'{"text": ""}': "empty_text",
        b'{"text": " \\n\\t"}': "empty_text",
        b'{"text": "a", "lang": 3}': "bad_tag",
        b'{"text": "a", "id": ["1"]}': "bad_tag",
        b'{"text": "a", "quality_score": "good"}': "bad_tag",
        b'{"text": "a", "quality_score": NaN}': "bad_tag",
        b'{"text": "a", "quality_score": true}': "bad_tag",
        b'{"text": "a", "quality_score": 1%s}' % (b"0" * 400): "bad_tag",
        b'{"text": "a\\ud800"}': "lone_surrogate",
        b'{"text": "a", "source": "\\ud800"}': "lone_surrogate",
        b'{"text": "a", "text": "b"}': "doubled_key",
        b"[" * 100_000: "not_json",
    }
    first = len((recipe.parent / "in" / "a.jsonl").read_bytes().split(b"\n"))
    add_lines(recipe, *lines, b"", b"   ")
    assert main(["build", str(recipe)]) == 0
    told = capsys.readouterr().err
    assert f"{len(lines)} records quarantined" in told
    assert told.count("\n") == 1
    assert main(["build", str(recipe)]) == 0
    assert capsys.readouterr().err == "", "told when they were set aside, not by every build that has nothing to do"
    output = recipe.parent / "out"
    found = [json.loads(line) for line in (output / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["input"], line["line"], line["reason"]) for line in found] == [
        ("in/a.jsonl", first + number, reason) for number, reason in enumerate(lines.values())
    ]
    rules = Dataset.open(str(output)).manifest.rules
    assert rules["read"].dropped == Counter(lines.values())
    assert rules["read"].kept == len(records)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x\nx\n", "4 lines read, of them 4 not_json; the first unusable line is in/a.jsonl:1 (Expecting value"),
        ("", "0 lines read, in/a.jsonl and 1 more: empty; give inputs"),
        ('{"text": "a"}\n', "2 lines read, of them 2 min_bytes; loosen the recipe's rules"),
        ('{"text": "a"}\n\n[]\n', "4 lines read, of them 2 min_bytes, 2 not_a_record; the first unusable line is in/a"),
    ],
)
def test_nothing_left_is_an_error_with_counts(recipe, tokenizer_model, capsys, given, content, message):
    text = recipe.read_text() + "rules: {length: {min_bytes: 20}}\n"
    if given:
        (recipe.parent / "in" / "t.model").write_bytes(tokenizer_model)
        text = text.replace("train: {vocab_size: 4096, character_coverage: 0.98}", "path: in/t.model")
    recipe.write_text(text)
    for file in (recipe.parent / "in").glob("*.jsonl"):
        file.write_text(content)
    assert main(["build", str(recipe)]) == 3
    told = capsys.readouterr().err
    assert f"no document is left to write: {message}" in told
    assert told.count("\n") == 1
    assert not (recipe.parent / "out").exists()


def test_a_byte_order_mark_before_a_record_costs_nothing(recipe):
    line = b'\xef\xbb\xbf{"text": "%s"}\n'
    (recipe.parent / "in" / "joined.jsonl").write_bytes(line % b"one" + line % b"two")
    rules = Dataset.open(str(run(recipe).output)).manifest.rules
    assert rules["read"].dropped == {}


def test_one_identity_twice_names_both_places(recipe, records):
    add_lines(recipe, {"text": "a", "id": "x", "source": "s"}, {"text": "b", "id": "x", "source": "s"})
    number = len(records[::2])
    with pytest.raises(DataError, match=rf"in/a\.jsonl:{number + 1} and in/a\.jsonl:{number + 2}: two records"):
        run(recipe)
    assert not (recipe.parent / "out").exists()


def test_absent_tags_take_the_entrys_defaults(recipe):
    (recipe.parent / "in" / "mine.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "with a mark"}\n{"text": "a number", "id": 7, "url": "u", "quality_score": 1}'
    )
    dataset = Dataset.open(str(run(recipe).output))
    table = dataset.documents
    for original_id, url, text in ((None, None, "with a mark"), ("7", "u", "a number")):
        number = number_of(table, document_id("mine", original_id=original_id, url=url, text=text))
        assert (table.source[number], table.lang[number], table.category[number]) == ("mine", "und", "unknown")
        assert table.licence(number) == "MIT"
        assert table.origin(number) == (url or "")
    assert table.quality_score[number] == 1.0


def test_compressed_inputs_read_the_same(recipe):
    plain = Dataset.open(str(run(recipe).output))
    folder = recipe.parent / "in"
    a, b = folder / "a.jsonl", folder / "b.jsonl"
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(a.read_bytes()))
    (folder / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b.read_bytes()))
    a.unlink()
    b.unlink()
    recipe.write_text(recipe.read_text().replace("in/*.jsonl", "in/*"))
    packed = Dataset.open(str(run(recipe, output=recipe.parent / "out2").output))
    assert [shard.sha256 for shard in packed.manifest.shards] == [shard.sha256 for shard in plain.manifest.shards]
    file = folder / "b.jsonl.zst"
    file.write_bytes(file.read_bytes()[:-50])
    cut = run(recipe, output=recipe.parent / "out3")
    assert cut.manifest.rules["read"].dropped == {"truncated_zst": 1}, "what came before the cut stands"
    assert 0 < len(plain.documents) - cut.manifest.totals.documents < len(plain.documents)


def test_bos_rules_and_a_given_tokenizer(recipe, records):
    tokenizer = train_tokenizer([record["text"] for record in records], vocab_size=4096, character_coverage=0.98)
    (recipe.parent / "t.model").write_bytes(tokenizer.model)
    recipe.write_text(
        f"output: {recipe.parent / 'out'}\ninputs: [{{files: [in/a.jsonl, in/b.jsonl], licence: MIT}}]\n"
        "tokenizer: {path: t.model}\nadd_bos: true\nrules: {length: {min_bytes: 500, max_bytes: 3Ki}}\n"
    )
    built = run(recipe)
    dataset = Dataset.open(str(built.output))
    sizes = [len(record["text"].encode()) for record in records]
    assert dataset.manifest.rules["length"].dropped == {
        "max_bytes": sum(size > 3072 for size in sizes),
        "min_bytes": sum(size < 500 for size in sizes),
    }
    assert len(dataset.documents) == sum(500 <= size <= 3072 for size in sizes)
    assert dataset.tokenizer_hash == tokenizer.hash
    assert all(dataset.tokens(number, 0, 1)[0] == dataset.bos_id == 1 for number in range(len(dataset.documents)))
    assert run(recipe).up_to_date
    (recipe.parent / "t.model").write_bytes(train_tokenizer([r["text"] for r in records], vocab_size=4200).model)
    with pytest.raises(DataError, match="--force"):
        run(recipe)


def test_output_that_is_no_dataset_is_left_alone(recipe, monkeypatch, capsys):
    output = recipe.parent / "out"
    output.mkdir()
    (output / "precious").write_text("")
    assert main(["build", str(recipe)]) == 3
    assert "something else than a dataset" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("maxtrain.corpus.build.find_inputs", lambda *_: pytest.fail("refused before any work"))
        assert main(["build", str(recipe), "--force"]) == 3
    assert "something else than a dataset" in capsys.readouterr().err
    assert (output / "precious").exists()
    (output / "precious").unlink()
    assert main(["build", str(recipe)]) == 0


def test_second_builder_is_refused(recipe):
    partial = recipe.parent / ".out.partial"
    partial.mkdir()
    with DirectoryLock(partial), pytest.raises(BusyError):
        run(recipe)


def test_show_and_verify(recipe, records, capsys):
    main(["build", str(recipe), "--json"])
    built = json.loads(capsys.readouterr().out)
    output = recipe.parent / "out"
    assert main(["show", str(output), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == built
    assert shown["documents"] == len(records)
    for group in shown["by"].values():
        assert sum(row["tokens"] for row in group.values()) == shown["tokens"]
        assert sum(row["bytes"] for row in group.values()) == shown["bytes"]
    assert shown["by"]["category"]["book_zh"]["documents"] == 12
    assert main(["show", str(output)]) == 0
    text = capsys.readouterr().out
    assert "book_zh" in text
    assert f"rule read: kept {len(records)}" in text
    assert main(["verify", str(output)]) == 0
    assert "sound" in capsys.readouterr().out
    for name in ("shards/00099.bin", ".DS_Store", "old/notes.txt"):
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("")
    assert main(["verify", str(output)]) == 3
    told = capsys.readouterr().err
    assert f"{output}: .DS_Store, old/notes.txt, shards/00099.bin: not in the manifest; move away what is no" in told
    assert told.count("\n") == 1
    for name in ("shards/00099.bin", ".DS_Store", "old/notes.txt"):
        (output / name).unlink()
    shard = output / "shards" / "00000.bin"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 4
    shard.write_bytes(data)
    assert main(["verify", str(output)]) == 3
    told = capsys.readouterr().err
    assert "00000.bin" in told
    assert told.count("\n") == 1
    assert main(["verify", str(recipe.parent / "none")]) == 3
