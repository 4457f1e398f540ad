import ftfy.bad_codecs  # noqa: F401  (registers the sloppy codecs)
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.corpus.clean import Mojibake
from maxtrain.corpus.clean.charsets import reread
from maxtrain.corpus.clean.mojibake import repair
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop

CHINESE = (
    "人民文学出版社的编辑告诉记者，这部小说的手稿是在一个旧箱子里发现的。\n"
    "作者生前从来没有提起过它，家人也不知道它写于哪一年。\n"
)
TRADITIONAL = "這部小說的手稿是在一個舊箱子裡發現的，作者生前從來沒有提起過它，家人也不知道它寫於哪一年。\n"
JAPANESE = "この小説の原稿は古い箱の中から見つかりました。作者は生前それについて話したことがありませんでした。\n"
KOREAN = "이 소설의 원고는 낡은 상자 속에서 발견되었다. 작가는 살아 있는 동안 그것에 대해 말한 적이 없었다.\n"
RUSSIAN = "Рукопись этого романа нашли в старом ящике. Автор никогда не говорил о ней при жизни.\n"
FRENCH = (
    "Le manuscrit de ce roman a été retrouvé dans une vieille boîte, où l’auteur l’avait caché à côté de ses lettres.\n"
)
GREEK = "Το χειρόγραφο αυτού του μυθιστορήματος βρέθηκε σε ένα παλιό κουτί.\n"
VIETNAMESE = "Bản thảo của cuốn tiểu thuyết này được tìm thấy trong một chiếc hộp cũ.\n"


@pytest.mark.parametrize(
    ("text", "written", "read"),
    [
        (FRENCH, "utf-8", "latin-1"),
        (FRENCH, "utf-8", "sloppy-windows-1252"),
        (VIETNAMESE, "utf-8", "latin-1"),
        (GREEK, "utf-8", "latin-1"),
        (RUSSIAN, "utf-8", "latin-1"),
        (RUSSIAN, "utf-8", "koi8-r"),
        (RUSSIAN, "utf-8", "cp866"),
        (RUSSIAN, "koi8-r", "cp1251"),
        (RUSSIAN, "cp1251", "koi8-r"),
        (RUSSIAN, "cp866", "cp1251"),
        (RUSSIAN, "cp1251", "latin-1"),
        (RUSSIAN, "koi8-r", "latin-1"),
        (CHINESE, "utf-8", "latin-1"),
        (CHINESE, "gb18030", "latin-1"),
        (TRADITIONAL, "big5", "latin-1"),
        (TRADITIONAL, "utf-8", "latin-1"),
        (JAPANESE, "shift_jis", "latin-1"),
        (JAPANESE, "euc_jp", "latin-1"),
        (JAPANESE, "utf-8", "latin-1"),
        (KOREAN, "euc_kr", "latin-1"),
        (KOREAN, "utf-8", "latin-1"),
    ],
)
def test_wrong_decodings_without_loss_are_undone(text, written, read):
    wrong = text.encode(written).decode(read)
    assert wrong != text
    assert repair(wrong) == text
    assert repair(text) == text


def test_double_and_partial_damage():
    twice = FRENCH.encode().decode("latin-1").encode().decode("latin-1")
    assert repair(twice) == FRENCH
    lines = [FRENCH, GREEK.encode().decode("latin-1"), CHINESE]
    assert repair("".join(lines)) == FRENCH + GREEK + CHINESE


def test_lost_bytes_are_told_where_little_else_is_possible():
    # 0x98 is the only byte that Windows-1251 has no character for; И is D0 98.
    wrong = "История и История".encode().decode("cp1251", "replace")
    assert "\ufffd" in wrong
    assert repair(wrong) == "История и История"


def test_a_text_that_is_lost_is_dropped():
    wrong = CHINESE.encode("gb18030").decode("utf-8", "replace")
    result = Mojibake().apply(Document("0", wrong, "s", "zh", "web", "MIT", "in", 1))
    assert isinstance(result, Drop)
    assert result.reason == "lost"


@pytest.mark.parametrize(
    "text",
    [
        "ÀÉÈÙÇ «été» ½ £5 ± 3 °C, §12 ¶",
        "ЧаВо по Linux, КіБ і ГіБ",
        "┌──────┬─────┐\n│ одно │ два │\n└──────┴─────┘",
        "香袅袅，佩锵锵。\n夙興 陸游",
        "「POJ 1737」Connected Graph【XXII Opencup】",
        "result is ±∞+NaNi, (r,θ) equals ln r + i(θ+2nπ)",
        'L"猫" and L"αβγδ"',
        "M·O·T·S·S, /K´rad´/",
        "naïve café, Zoë’s “résumé” – 5 €…",
    ],
)
def test_rare_but_right_texts_stay(text):
    assert repair(text) == text


def test_repaired_rows(dirty, similarity):
    """Of the rows from which no byte was lost nearly all come back; of the others all that is left."""
    for kind, share in (("mojibake", 0.98), ("mojibake_partial", 0.98)):
        whole = [
            row
            for row in dirty[kind]
            if row["clean"] and "\ufffd" not in row["text"] and "�" not in row["clean"] and "¿" not in row["clean"]
        ]
        good = [similarity(repair(row["text"]), row["clean"]) > 0.98 for row in whole]
        assert np.mean(good) >= share, kind
    every = [row for kind in ("mojibake", "mojibake_partial") for row in dirty[kind] if row["clean"]]
    after = [similarity(repair(row["text"]), row["clean"]) for row in every]
    before = [similarity(row["text"], row["clean"]) for row in every]
    assert np.mean(after) > 0.92
    # Repaired, most of it back, or told to be lost and left out.
    handled = [
        value > 0.9 or (1 - value) < 0.5 * (1 - first) or isinstance(Mojibake().apply(_document(row)), Drop)
        for value, first, row in zip(after, before, every, strict=True)
    ]
    assert np.mean(handled) >= 0.95


def _document(row):
    return Document(row["id"], row["text"], row["source"], row["lang"], row["category"], row["licence"], "in", 1)


def test_clean_text_stays(dirty, rows, run):
    rule = [Mojibake()]
    samples = list(dirty["none"])
    for name in ("book_en", "book_zh", "web_en", "web_zh", "math", "code", "multilingual"):
        samples += rows(name, 12)
    changed = [
        row["id"]
        for row in samples
        if run(rule, row["text"], row["lang"], row["category"]) != row["text"]
        # Pages of an old Korean manual that were mojibake before.
        and "¾" not in row["text"]
    ]
    assert len(changed) < 0.002 * len(samples), changed


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_and_idempotence(text):
    once = repair(text)
    assert repair(once) == once


@settings(deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["latin-1", "cp1251", "gb18030", "cp932", "big5", "euc_kr"]))
def test_any_bytes(data, charset):
    repair(data.decode(charset, "replace"))


def test_reread_keeps_what_has_no_bytes():
    codes = np.frombuffer("Ã©😀日".encode("utf-32-le"), np.uint32)
    told = reread(codes, "cp1252", "utf-8")
    assert told.tobytes().decode("utf-32-le") == "é😀日"
