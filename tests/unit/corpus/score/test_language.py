import json
from collections import Counter

import pytest

from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop
from maxtrain.corpus.score import Language, Quality
from maxtrain.corpus.score.language import detect, is_traditional

NOT_KNOWN = {"zu"}
"""Languages that the model has never seen."""


def test_languages_of_longer_texts_are_told(shared):
    rows = [json.loads(line) for line in (shared / "langid" / "langid_test.jsonl").read_text("utf-8").splitlines()]
    right, seen = Counter[str](), Counter[str]()
    for row in rows:
        if len(row["text"]) <= 100 or row["lang"] in ("und", "code", "mixed", *NOT_KNOWN):
            continue
        for key in ("all", row["domain"]):
            seen[key] += 1
            right[key] += detect(row["text"])[0] == row["lang"]
    assert seen["all"] > 1500
    assert right["all"] / seen["all"] >= 0.93
    assert right["udhr"] / seen["udhr"] >= 0.97
    gibberish = [row for row in rows if row["domain"] in ("gibberish", "symbols", "numbers", "urls")]
    assert len(gibberish) > 50
    assert sum(detect(row["text"])[0] == "und" for row in gibberish) / len(gibberish) >= 0.9


@pytest.mark.parametrize(
    ("written", "traditional"),
    [
        ("這個軟體會讓電腦變慢，請關閉後再試。", True),
        ("这个软件会让电脑变慢，请关闭后再试。", False),
        ("plain text", False),
    ],
)
def test_the_two_ways_to_write_chinese_are_told_apart(written, traditional):
    assert is_traditional(written) == traditional


def tagged(written, lang="und", category="web"):
    return Document("0" * 32, written, "s", lang, category, "", "", 1)


def reason_of(rule, document):
    """Why a rule drops a document; an error where it does not."""
    found = rule.apply(document)
    assert isinstance(found, Drop)
    return found.reason


def test_short_and_declared_languages():
    short = tagged("Bonjour")
    assert Language().apply(short) is None
    assert short.lang == "und"
    long = "Die Katze schläft auf dem Sofa, während draußen der Regen gegen die Fenster schlägt."
    told = tagged(long, lang="en")
    assert Language().apply(told) is None
    assert (told.lang, told.scores["lang_confidence"] > 0.5) == ("de", True)
    declared = tagged(long, lang="en")
    assert Language(trust="declared").apply(declared) is None
    assert declared.lang == "en"
    assert reason_of(Language(only=("en", "zh")), tagged(long)) == "language"
    assert Language(only=("de",)).apply(tagged(long)) is None
    code = tagged("def f(x):\n    return x + 1\n", lang="python", category="code")
    assert Language().apply(code) is None
    assert code.lang == "python"


def test_quality_orders_texts_and_may_drop_them():
    good = tagged(
        "The river rose during the night, and by morning the lower fields lay under a sheet of brown water. " * 1
    )
    poor = tagged("buy shoes buy shoes buy shoes buy cheap shoes buy shoes now shoes shoes " * 20)
    for document in (good, poor):
        assert Quality().apply(document) is None
    assert good.quality_score > 0.8 > 0.7 > poor.quality_score
    poor.quality_score = None
    assert reason_of(Quality(min_score=0.75), poor) == "quality"
    given = tagged("short")
    given.quality_score = 0.9
    assert Quality().apply(given) is None
    assert given.quality_score == 0.9, "a score that the record brings stays"
