"""The documents of a batch, from a run or a dataset, printed and as JSON."""

import json
import subprocess
import sys

import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import load_config, to_yaml
from maxtrain.core.errors import DataError, UserError
from maxtrain.core.lines import iterate_lines
from maxtrain.dataset import Dataset, DatasetWriter, Document, History, TokenizerRecord, document_id
from maxtrain.inspect import main, printable
from maxtrain.loader import Loader
from maxtrain.tokenizer import train_tokenizer

VOCAB = 1536
CONFIG = """
run: {directory: RUN, seed: 3}
data:
  dataset: DATASET
  sequence_length: 64
  mixture:
    math: {weight: 0.75, filter: {source: math}}
    prose: {weight: 0.25, filter: {source: prose}}
batch: {global_batch_tokens: 256, micro_batch: 4}
model: {vocab_size: 1536, num_layers: 1, d_model: 16, num_heads: 2, d_ff: 32}
train: {total_tokens: 2560}
schedule: {lr: 1e-3}
"""


@pytest.fixture(scope="module")
def texts(root):
    """Real documents: (source, text)."""
    found = []
    for source, name, count in (("math", "math", 40), ("prose", "book_zh", 2)):
        lines = iterate_lines(root / "data" / "sample" / f"{name}.jsonl.zst")
        found += [(source, json.loads(next(lines))["text"][:2000]) for _ in range(count)]
    return found


@pytest.fixture(scope="module")
def dataset(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect") / "dataset"
    tokenizer = train_tokenizer((text for _, text in texts), vocab_size=VOCAB, character_coverage=0.98)
    record = TokenizerRecord(
        sha256=tokenizer.hash, vocab_size=VOCAB, pad_id=tokenizer.pad_id, bos_id=None, eod_id=tokenizer.eod_id, unk_id=3
    )
    with DatasetWriter(path, record, tokenizer.model, shard_tokens=4000) as writer:
        for number, (source, text) in enumerate(texts):
            writer.add(
                Document(
                    doc_id=document_id(source, original_id=str(number), url=None, text=text),
                    tokens=tokenizer.encode(text),
                    num_bytes=len(text.encode()),
                    source=source,
                    lang="en",
                    category="any",
                    split="train",
                    quality_score=None,
                    licence="MIT",
                    origin=f"origin-{number}",
                    input="texts.jsonl",
                    line=number + 1,
                )
            )
        writer.finish(History(code_version="test", build_version=1, recipe={}, inputs=(), rules={}, split_fractions={}))
    return Dataset.open(str(path))


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    source = directory / "source.yaml"
    source.write_text(CONFIG.replace("DATASET", dataset.location).replace("RUN", str(directory)))
    (directory / "config.yaml").write_text(to_yaml(load_config(str(source))))
    return directory


def inspect_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_names_the_documents_of_a_step(run, dataset, texts, capsys):
    answer = inspect_json(capsys, run, "--step", 7)
    assert [row["row"] for row in answer["rows"]] == [28, 29, 30, 31]
    assert sorted(row["domain"] for row in answer["rows"]) == ["math", "math", "math", "prose"]
    for row in answer["rows"]:
        for piece in row["pieces"]:
            number = int(piece["origin"].removeprefix("origin-"))
            assert piece["source"] == row["domain"] == texts[number][0]
            assert piece["doc_id"] == dataset.documents.doc_id[piece["document"]].decode()
            assert piece["place"] == f"texts.jsonl:{number + 1}"
            assert piece["licence"] == "MIT"


def test_one_row_gives_its_whole_text_and_a_position_its_token(run, dataset, texts, capsys):
    answer = inspect_json(capsys, run, "--step", 2, "--row", 1, "--position", 40)
    (row,) = answer["rows"]
    for piece in row["pieces"]:
        text = texts[int(piece["origin"].removeprefix("origin-"))][1]
        # A piece may begin or end inside a character that was written as bytes.
        assert piece["text"].strip("\ufffd") in text
        assert len(piece["text"]) > 0
    piece = next(piece for piece in row["pieces"] if piece["start_in_row"] <= 40 < piece["stop_in_row"])
    token = answer["token"]
    assert token["doc_id"] == piece["doc_id"]
    assert token["offset"] == piece["start_in_document"] + 40 - piece["start_in_row"]
    assert token["token"] == int(dataset.tokens(piece["document"])[token["offset"]])


def test_printed_rows_are_clean_lines(run, capsys):
    assert main([str(run), "--step", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("row ") for line in lines) == 4
    assert sum(line.endswith("  licence MIT") for line in lines) >= 4
    assert all(line.isprintable() and len(line) < 240 for line in lines)
    assert main([str(run), "--step", "0", "--row", "3", "--position", "0"]) == 0
    printed = capsys.readouterr().out
    assert "row 3  (row 3 of the run)" in printed
    assert "position 0: id " in printed


def test_a_dataset_is_read_as_one_domain(dataset, capsys):
    arguments = (dataset.location, "--step", 1, "--sequence-length", 128, "--batch-rows", 2)
    answer = inspect_json(capsys, *arguments)
    assert [row["row"] for row in answer["rows"]] == [2, 3]
    assert {row["domain"] for row in answer["rows"]} == {"all"}
    assert inspect_json(capsys, *arguments, "--seed", 5) != answer


def test_padding_has_no_token(dataset, capsys):
    total = dataset.manifest.totals.tokens
    length = total + 10
    arguments = (dataset.location, "--step", 0, "--sequence-length", length, "--batch-rows", 1, "--row", 0)
    assert inspect_json(capsys, *arguments, "--position", total)["token"]["doc_id"] is None
    assert inspect_json(capsys, *arguments, "--position", total - 1)["token"]["token"] == dataset.eod_id
    assert main([*map(str, arguments), "--position", str(total)]) == 0
    assert f"position {total}: padding" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "10"], r"--step 10: the run has 10 steps, 0 to 9"),
        (["--step", "-1"], r"--step -1: must be from 0 to 2147483647"),
        (["--step", "0", "--batch-rows", "65537"], r"--batch-rows 65537: must be from 1 to 65536"),
        (["--step", "9" * 24], r"--step 9+: must be from 0 to 2147483647"),
        (["--step", "1", "--seed", "3", "--batch-rows", "2"], r"--batch-rows, --seed: only for a DATASET"),
        (["--step", "1", "--row", "4"], r"--row 4: the batch of step 1 has rows 0 to 3"),
        (["--step", "1", "--row", "0", "--position", "64"], r"--position 64: a row of step 1 has positions 0 to 63"),
        (["--step", "1", "--position", "3"], r"--position 3: needs --row"),
    ],
)
def test_what_is_not_there_is_refused_with_its_limit(run, arguments, message):
    with pytest.raises(UserError, match=message):
        main([str(run), *arguments])


def test_a_run_whose_dataset_was_replaced_is_refused(run, monkeypatch):
    saved = {"step": 3, "fingerprint": _fingerprint(run)}
    monkeypatch.setattr("maxtrain.inspect.newest_record", lambda _: saved)
    assert main([str(run), "--step", "0"]) == 0
    saved["fingerprint"]["stages"][0]["manifest_hash"] = "of another dataset"
    with pytest.raises(DataError, match=r"manifest_hash.*; bring the dataset back"):
        main([str(run), "--step", "0"])


def _fingerprint(run):
    config = load_config(str(run / "config.yaml"))
    loader = Loader(plan_batches(config), data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    return loader.fingerprint


def test_a_directory_that_is_neither_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a run directory") as error:
        main([str(tmp_path), "--step", "0"])
    assert error.value.exit_code == 2


def test_text_cannot_drive_the_terminal():
    assert printable("a\x1b[31m\tb\n\u202ec 你\u3000好") == "a\\x1b[31m\\tb\\n\\u{202e}c 你\u3000好"
    assert printable("x" * 100, 10) == "x" * 10 + "…"


def test_jax_is_not_imported():
    code = "import sys, maxtrain.inspect; sys.exit('jax' in sys.modules or 'grain' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
