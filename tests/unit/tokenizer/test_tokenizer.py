import json
import re
import subprocess
import sys

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxtrain.core.errors import DataError, UserError
from maxtrain.core.lines import iterate_lines
from maxtrain.tokenizer import Tokenizer, train_tokenizer
from maxtrain.tokenizer.__main__ import main
from maxtrain.tokenizer.model_proto import normalise
from maxtrain.tokenizer.train import sample_texts

SPECIAL_TEXTS = ["<|pad|>", "<|bos|>", "<|eod|>", "<|unk|>", "<|reserved_0|>", "<unk>", "<s>", "<0x41>"]
CHARACTERS = list(" \t\r\n\0\u2581\u2585\ufeff\u00a0\u2028\x7fa1é界\U0001f600")
AWKWARD = st.lists(st.sampled_from(CHARACTERS) | st.sampled_from(SPECIAL_TEXTS)).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.text() | AWKWARD)
@example("")
@example("\u2581")
@example(" " * 100 + "\n" * 30 + "\t" * 20 + "\r\n")
def test_every_text_comes_back_and_holds_no_special_id(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.special_ids & set(ids)
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_real_texts_come_back_and_encoding_in_bulk_is_the_same(tokenizer, texts):
    bulk = tokenizer.encode_many(texts, num_threads=2)
    assert bulk == [tokenizer.encode(text) for text in texts]
    assert [tokenizer.decode(ids) for ids in bulk] == texts


def test_bytes_of_ids_add_up_to_the_texts(tokenizer, texts):
    for text in [*texts[:50], "\u2581 a  b \U0001f600\0\ufffd é"]:
        assert sum(tokenizer.num_bytes(token) for token in tokenizer.encode(text)) == len(text.encode())
    assert tokenizer.num_bytes(tokenizer.eod_id) == 0


def test_special_ids_are_fixed_and_distinct(tokenizer):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eod_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert len(tokenizer.reserved_ids) == 60
    assert [tokenizer.piece(token) for token in tokenizer.reserved_ids[:2]] == ["<|reserved_0|>", "<|reserved_1|>"]
    assert tokenizer.vocab_size == 4096
    assert tokenizer.decode([0, 1, 2, 3, *tokenizer.reserved_ids]) == ""
    assert tokenizer.decode([1, *tokenizer.encode(" a"), 2]) == " a"


def test_digits_stand_alone_and_runs_of_space_are_one_piece(tokenizer):
    assert [tokenizer.piece(token) for token in tokenizer.encode("12345")] == list("12345")
    for run in ("\n\n", "\t\t\t", "\r\n", " " * 16):
        assert len(tokenizer.encode(run)) == 1
    assert len(tokenizer.encode("\n" * 8 + "\n")) == 2


def test_bytes_are_a_small_share_of_the_tokens_of_real_text(tokenizer, texts):
    ids = [token for text in texts for token in tokenizer.encode(text)]
    share = sum(bool(re.fullmatch(r"<0x..>", tokenizer.piece(token))) for token in ids) / len(ids)
    assert share < 0.02


def test_what_cannot_be_encoded_or_decoded_is_one_line(tokenizer):
    with pytest.raises(UserError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(UserError, match="token id 4096 is outside the vocabulary of 4096"):
        tokenizer.decode([4096])
    with pytest.raises(UserError, match="token id -1 is outside"):
        tokenizer.decode([-1])


def test_training_depends_on_the_texts_alone(tokenizer, texts, tmp_path):
    assert train_tokenizer(texts[::-1], vocab_size=4096, num_threads=1).hash == tokenizer.hash
    script = (
        "import json, sys; from maxtrain.tokenizer import train_tokenizer\n"
        "print(train_tokenizer(json.load(open(sys.argv[1])), vocab_size=4096).hash)"
    )
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(texts))
    run = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == tokenizer.hash
    assert train_tokenizer(texts[1:], vocab_size=4096).hash != tokenizer.hash


def test_sample_is_the_least_hashes_whatever_the_order(texts):
    some = sample_texts(texts, 50_000)
    sizes = [len(text.encode()) for text in some]
    assert sum(sizes) >= 50_000 > sum(sizes[:-1])
    assert sample_texts(texts[::-1], 50_000) == some
    assert set(sample_texts(texts, 10_000)) <= set(some)
    assert sorted(sample_texts(texts, 10**9)) == sorted(texts)


def test_hash_ignores_how_a_model_was_trained_and_sees_what_it_does(tmp_path, texts):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts[:20]))
    models = []
    for threads, name in ((1, "a"), (2, "b")):
        prefix = tmp_path / name
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=str(prefix), vocab_size=1500, model_type="bpe", num_threads=threads,
            byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, character_coverage=0.98,
            remove_extra_whitespaces=False, pad_id=3, minloglevel=2,
        )  # fmt: skip
        models.append(prefix.with_suffix(".model").read_bytes())
    assert models[0] != models[1]
    first, second = (Tokenizer(model) for model in models)
    assert first.hash == second.hash
    assert normalise(first.model) == first.model
    assert Tokenizer(first.model).encode(texts[0]) == sentencepiece.SentencePieceProcessor(
        model_proto=models[0]
    ).encode(texts[0])
    changed = models[0].replace(b"<0x41>", b"<0x42>", 1)
    assert normalise(changed) != normalise(models[0])


def test_hash_of_a_tokenizer_of_texts_with_spaces_stays(tokenizer):
    assert tokenizer.hash == "91ae0a0690d94aeca21e025f5a590676215f34c2a7433671889f2b9dd5bd0f88"


@pytest.mark.parametrize("with_few", [False, True])
def test_texts_without_or_with_hardly_a_space_train_a_tokenizer(root, with_few):
    lines = iterate_lines(root / "data" / "sample" / "book_zh.jsonl.zst")
    chinese = [json.loads(next(lines))["text"].replace(" ", "") for _ in range(30)]
    tokenizer = train_tokenizer([*chinese, "a b"] if with_few else chinese, vocab_size=4096)
    for text in [" a b ", " ", "   ", *chinese]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(" ")) == 1


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [
        (300, "is under"),
        (400, "too small for the characters"),
        (10**6, "support at most"),
        (10**12, "is over 2147483647"),
    ],
)
def test_impossible_vocabularies_are_refused(texts, vocab_size, message):
    with pytest.raises(UserError, match=message) as error:
        train_tokenizer(texts[:12], vocab_size=vocab_size)
    assert "\n" not in str(error.value)


def test_coverage_out_of_range_is_refused(texts):
    with pytest.raises(UserError, match=r"between 0\.98 and 1"):
        train_tokenizer(texts, vocab_size=4096, character_coverage=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_reserved": -1}, "must be 0 or more"), ({"sample_bytes": 0}, "sample_bytes 0 is under 1")],
)
def test_counts_out_of_range_are_refused(texts, options, message):
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, vocab_size=4096, **options)


def test_the_trainers_own_errors_are_one_line(texts, monkeypatch):
    monkeypatch.setattr("maxtrain.tokenizer.train.MOST_IDS", 10**12)
    with pytest.raises(UserError, match="cannot be trained: INVALID_ARGUMENT") as error:
        train_tokenizer(texts, vocab_size=10**11)
    assert "\n" not in str(error.value)


def test_no_text_to_train_on():
    for nothing in ([], ["", "\n\t"]):
        with pytest.raises(DataError, match="no text to train"):
            train_tokenizer(nothing, vocab_size=1000)


def test_unusable_models_are_refused(tmp_path, texts, tokenizer):
    with pytest.raises(DataError, match="no such tokenizer"):
        Tokenizer.load(tmp_path / "none")
    for data in (b"", b"no model", tokenizer.model[:1000], b"\xff" * 20):
        with pytest.raises(DataError, match="not a SentencePiece model"):
            Tokenizer.load(data)
    with pytest.raises(DataError, match="not the expected tokenizer"):
        Tokenizer.load(tokenizer.model, expected_hash="0" * 64)
    assert Tokenizer.load(tokenizer.model, expected_hash=tokenizer.hash).hash == tokenizer.hash
    for options, message in (
        ({"pad_id": 3, "byte_fallback": True}, "back exactly"),
        ({"byte_fallback": True}, "no pad"),
        ({"pad_id": 3, "add_dummy_prefix": False, "remove_extra_whitespaces": False}, "back exactly"),
    ):
        prefix = tmp_path / "other"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts[0].split("\n")), model_prefix=str(prefix), vocab_size=500, model_type="bpe",
            minloglevel=2, hard_vocab_limit=False, **options,
        )  # fmt: skip
        with pytest.raises(DataError, match=message):
            Tokenizer.load(prefix.with_suffix(".model"))


def test_command_line(tmp_path, texts, capsys):
    source, output = tmp_path / "a.jsonl", tmp_path / "t.model"
    records = [json.dumps({"text": text}) for text in texts]
    source.write_text("\n".join([*records, "no json", '{"other": 1}', '{"text": "a", "text": "b"}', ""]))
    arguments = ["train", str(source), "--vocab-size", "2000", "--output", str(output), "--character-coverage", "0.98"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "skipped lines that are no usable record: doubled_key 1, missing_text 1, not_json 1" in told.err
    assert f"the first is {source}:{len(texts) + 1}\n" in told.err
    model = output.read_bytes()
    assert main(arguments) == 0
    assert output.read_bytes() == model
    assert main([*arguments, "--reserved", "10"]) == 3
    assert "is another tokenizer" in capsys.readouterr().err
    (tmp_path / "notes").write_text("mine")
    for other in (tmp_path, tmp_path / "notes"):
        assert main([*arguments, "--output", str(other), "--force"]) == 3
        assert "something else than a tokenizer" in capsys.readouterr().err
    assert (tmp_path / "notes").read_text() == "mine"
    assert main([*arguments, "--reserved", "10", "--force"]) == 0
    assert output.read_bytes() != model
    capsys.readouterr()
    assert main(["show", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == 2000
    assert main(["encode", str(output), "a 界", "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)["ids"]
    assert Tokenizer.load(output).decode(ids) == "a 界"
    text = tmp_path / "b.txt"
    text.write_text("\n".join(texts))
    assert main(["train", str(text), "--vocab-size", "4096", "--output", str(tmp_path / "u.model")]) == 0


def test_command_line_mistakes_are_one_line(tmp_path, capsys):
    recipe, table = tmp_path / "r.yaml", tmp_path / "t.csv"
    recipe.write_text("a: 1")
    table.write_text("a")
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    for file, output, code, message in (
        (recipe, "o", 2, "a recipe trains its own"),
        (table, "o", 2, "not a .jsonl or .txt file"),
        (tmp_path / "none.jsonl", "o", 1, "No such file"),
        (tmp_path, "o", 2, "not a .jsonl or .txt file"),
        (folder, "o", 1, "Is a directory"),
        (table, "none/o", 2, "no such directory"),
    ):
        assert main(["train", str(file), "--vocab-size", "500", "--output", str(tmp_path / output)]) == code
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
