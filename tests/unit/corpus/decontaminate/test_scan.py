"""Documents against the evaluation list."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.corpus.decontaminate import (
    Decontaminate,
    ScanConfig,
    Scanner,
    build_eval_index,
    load_eval_index,
    summarise,
)
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Drop

ITEMS = [
    {
        "id": "q/1",
        "question": "A farmer has seventeen sheep and all but nine of them run away over the old stone bridge at "
        "night. How many sheep does the farmer still have in the morning when he counts them?",
        "answer": "nine",
        "solution": "All but nine ran away, which says directly that nine of the sheep are still there in the morning.",
    },
    {"id": "q/2", "question": "Why do cats purr when they sit near a warm stove", "answer": "they like it"},
    {"id": "q/3", "question": "Too short", "answer": "yes"},
    {
        "id": "zh/1",
        "context": "清晨的集市上人来人往，卖菜的老人把新摘的黄瓜整整齐齐地摆在竹筐里。",
        "question": "老人卖什么？",
        "answer": "黄瓜",
    },
    {"id": "zh/2", "question": "征鴻辭塞雪", "answer": "戰馬識邊秋"},
    {"id": "zh/3", "question": "空山新雨后万里", "answer": "天气晚来秋已凉"},
    {
        "id": "code/1",
        "question": "def tower(n, a, b, c):\n    if n == 0:\n        return 0\n    return tower(n - 1, a, c, b) + 1",
    },
]


def make(folder, items, name="q", **options):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), "utf-8")
    build_eval_index([path], folder / "index", **options)
    return folder / "index"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return make(tmp_path_factory.mktemp("eval"), ITEMS)


@pytest.fixture(scope="module")
def scanner(index):
    return Scanner(load_eval_index(index), ScanConfig())


def touched(scanner, text):
    return [hit.item for hit in scanner.scan(text)]


@pytest.fixture(scope="session")
def corpora(shared, rows):
    return [row for path in sorted((shared / "corpora").glob("*.zst")) for row in rows(f"corpora/{path.name}")]


@pytest.fixture(scope="session")
def whole_index(shared, tmp_path_factory):
    paths = [path for path in (shared / "eval").glob("*.jsonl*") if path.name != "contamination.jsonl"]
    output = tmp_path_factory.mktemp("eval") / "index"
    build_eval_index(paths, output)
    return load_eval_index(output)


def test_contaminated_corpora(corpora, whole_index, rows):
    truth = {row["id"] for row in rows("eval/contamination.jsonl")}
    texts = [row["text"] for row in corpora]
    first = Scanner(whole_index, ScanConfig())
    shards = [texts[start : start + 10_000] for start in range(0, len(texts), 10_000)]
    counts = np.sum([first.count_documents(shard) for shard in shards], axis=0)
    assert counts.max() > 50
    scanner = Scanner(whole_index, ScanConfig(), counts)
    findings = [(str(number), hits) for number, text in enumerate(texts) if (hits := scanner.scan(text))]
    found = {hit.item for _, hits in findings for hit in hits}
    # Three of the list are of a task whose items are not there.
    assert truth - found <= truth - set(whole_index.ids)
    assert len(truth & found) >= 122
    others = [hits for _, hits in findings if not any(hit.item in truth for hit in hits)]
    assert len(others) <= 0.001 * len(texts)
    for number, hits in findings:
        for hit in hits:
            assert all(0 <= start < stop <= len(texts[int(number)]) for start, stop in hit.spans)
    report = summarise(whole_index, findings, len(texts))
    assert json.loads(json.dumps(report)) == report
    assert report["tasks"]["gsm8k_fewshot"]["items_touched"] == 64
    assert report["tasks"]["gsm8k_fewshot"]["max_share"] > 0.95
    assert report["tasks"]["piqa_val"]["documents"] == 0


def test_whole_items_are_found_in_other_texts(shared, rows, whole_index, corpora):
    # Items set into clean texts.
    scanner = Scanner(whole_index, ScanConfig())
    clean = [row["text"] for row in corpora if row["category"] == "web_en"][:40]
    for name in (
        "boolq_val.jsonl.gz",
        "cmrc2018_dev.jsonl.gz",
        "hellaswag_val.jsonl.gz",
        "mmlu.jsonl.gz",
        "mbpp.jsonl",
    ):
        items = [
            (row, text)
            for row in rows(f"eval/{name}")[::97][:40]
            if len(text := "\n".join(row.get(key) or "" for key in ("context", "question", "answer"))) > 120
        ]
        hits = [
            row["id"] in touched(scanner, f"{around}\n\n{text}\n\n{around}")
            for (row, text), around in zip(items, clean, strict=False)
        ]
        assert np.mean(hits) >= 0.98, name


def test_one_long_gram_is_a_hit(scanner):
    text = ITEMS[0]["question"]
    middle = " ".join(text.split()[6:19])
    assert touched(scanner, f"In the book stood: {middle.upper()}, and so on.") == ["q/1"]
    assert touched(scanner, f"In the book stood: {' '.join(text.split()[6:18])}.") == []
    (hit,) = scanner.scan(f"Before. {middle}. After.")
    assert hit.spans == ((8, 8 + len(middle)),)
    assert touched(scanner, "So: " + ITEMS[0]["solution"]) == ["q/1"]


def test_edits_do_not_hide_an_item(scanner):
    words = (ITEMS[0]["question"] + " nine").split()
    edited = ["xyz" if at % 12 == 11 else word for at, word in enumerate(words)]
    config = ScanConfig(near_share=0.3)
    assert touched(Scanner(scanner.index, config), " ".join(edited)) == ["q/1"]
    assert touched(scanner, "征鴻辭塞雪，戰馬識邊秋。") == ["zh/2"]
    # One character of fourteen is another one: three of the five 10-grams are left.
    assert touched(scanner, "空山新雨后万里。天气晚来秋已寒。") == ["zh/3"]
    assert touched(scanner, "空山新雨后万里。天气晚无秋已寒。") == []


def test_chinese_without_spaces(scanner):
    assert touched(scanner, "他说：卖菜的老人把新摘的黄瓜整整齐齐地\n摆在竹筐里。然后就走了。") == ["zh/1"]
    assert touched(scanner, "卖菜的老人把新摘的黄瓜。") == []


def test_code_with_other_comments(scanner):
    code = ITEMS[-1]["question"].replace("\n    if", "\n    # 如果没有盘子\n    if").replace("0\n", "0  # 结束\n")
    assert touched(scanner, "# 汉诺塔\n" + code) == ["code/1"]


def test_short_items_match_as_a_whole(scanner):
    assert touched(scanner, "why do cats purr when they sit near a warm stove? They like it.") == ["q/2"]
    assert touched(scanner, "Why do cats purr when they sit in rain") == []
    assert touched(scanner, "Too short? yes") == []


def test_turns_of_phrase_are_no_evidence(tmp_path):
    phrase = "which of the following statements about the passage that you have just read is true according to"
    items = [{"id": str(n), "question": f"{phrase} writer number {n} of the {n * 7} writers"} for n in range(20)]
    scanner = Scanner(load_eval_index(make(tmp_path, items)), ScanConfig())
    assert touched(scanner, f"The exam asks {phrase} someone.") == []
    assert touched(scanner, items[4]["question"]) == ["4"]


def test_frequent_grams_alone_are_no_evidence_but_copies_are(index):
    loaded = load_eval_index(index)
    boilerplate = " ".join(ITEMS[0]["question"].split()[:13])
    first = Scanner(loaded, ScanConfig())
    texts = [f"Page {n}: {boilerplate}" for n in range(60)]
    counts = first.count_documents(texts)
    assert counts.max() == 60
    assert (np.sum([first.count_documents(texts[at::3]) for at in range(3)], axis=0) == counts).all()
    assert touched(first, texts[0]) == ["q/1"]
    assert touched(Scanner(loaded, ScanConfig(), counts), texts[0]) == []
    # A leak that was copied a hundred times is still found.
    counts = first.count_documents([ITEMS[0]["question"]] * 100)
    assert touched(Scanner(loaded, ScanConfig(), counts), ITEMS[0]["question"]) == ["q/1"]


@given(st.text(max_size=80), st.sampled_from(ITEMS))
@settings(max_examples=100, deadline=None)
def test_any_text(scanner, text, item):
    scanner.scan(text)
    text = f"{text} {item['question']} {text}"
    for hit in scanner.scan(text):
        assert all(0 <= start < stop <= len(text) for start, stop in hit.spans)


def test_rule(index):
    rule = Decontaminate(index=str(index))
    body = "\n\n".join(f"Paragraph {n} of a text that has nothing to do with any task at all." for n in range(20))

    def document(text):
        return Document("a", text, "s", "en", "web_en", "MIT", "in", 1)

    assert rule.apply(document(body)) is None
    assert rule.apply(document("")) is None
    dirty = document(body + "\n\n" + ITEMS[0]["question"] + "\n\n" + body)
    drop = rule.apply(dirty)
    assert isinstance(drop, Drop)
    assert drop.span is not None
    assert drop.score is not None
    assert drop.reason == "contaminated"
    assert dirty.text[slice(*drop.span)].startswith("A farmer")
    assert dirty.scores["contamination"] == drop.score > 0.8
    cut = Decontaminate(index=str(index), action="cut")
    change = cut.apply(dirty)
    assert isinstance(change, Change)
    assert "seventeen sheep" not in change.text
    assert change.text.count("Paragraph 3 ") == 2
    assert cut.apply(document(change.text)) is None
    assert isinstance(cut.apply(document("It asks: " + ITEMS[0]["question"])), Drop)
