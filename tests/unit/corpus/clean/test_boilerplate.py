from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.corpus.clean import Boilerplate, EllipsisLines
from maxtrain.corpus.clean.boilerplate import remove_boilerplate
from maxtrain.corpus.clean.host_lines import (
    count_lines,
    host_of,
    merge_counts,
    remove_lines,
    repeated_lines,
)
from maxtrain.corpus.clean.phrases import KINDS, may_hold, pattern, phrases

BODY = (
    "The bridge was built in three summers by masons from the valley.\n\n"
    "Its arches still carry the road to the mill, and boys fish from them.\n\n"
    "In winter the river freezes, and nobody crosses after dark."
)


@pytest.mark.parametrize(
    ("menu", "footer"),
    [
        (
            "Home | News | Contact | Log in",
            "Copyright 2026 Example. All rights reserved. Privacy policy | Terms of use",
        ),
        ("首页 | 新闻 | 登录 | 注册", "版权所有 © 2026 示例网 京ICP备00000000号 网站地图 | 联系我们"),
        ("首頁 | 新聞 | 登入", "版權所有 © 2026 範例 保留所有權利"),
        ("ホーム | ニュース | ログイン", "© 2026 例. All rights reserved. 利用規約 | お問い合わせ"),
        ("홈 | 뉴스 | 로그인 | 회원가입", "© 2026 예시. 모든 권리 보유 | 이용약관"),
        ("Startseite | Kontakt | Impressum", "© 2026 Beispiel. Alle Rechte vorbehalten. Datenschutz | Impressum"),
        ("Accueil | Contact | Connexion", "© 2026 Exemple. Tous droits réservés."),
        ("Inicio | Noticias | Contacto", "© 2026 Ejemplo. Todos los derechos reservados."),
        ("Início | Notícias | Contato", "© 2026 Exemplo. Todos os direitos reservados."),
        ("Notizie | Chi siamo | Contatti", "© 2026 Esempio. Tutti i diritti riservati."),
        ("Главная | Новости | Контакты", "© 2026 Пример. Все права защищены."),
        ("Nieuws | Over ons | Contact", "© 2026 Voorbeeld. Alle rechten voorbehouden."),
        ("Strona główna | O nas | Kontakt", "© 2026 Przykład. Wszelkie prawa zastrzeżone."),
        ("Ana Sayfa | Hakkımızda | İletişim", "© 2026 Örnek. Tüm hakları saklıdır."),
        ("Trang chủ | Tin tức | Liên hệ", "© 2026 Ví dụ. Giữ toàn quyền."),
        ("الرئيسية | الأخبار | اتصل بنا", "© 2026 مثال. جميع الحقوق محفوظة."),
        ("Hem | Nyheter | Om oss", "© 2026 Exempel. Alla rättigheter förbehållna."),
        ("Forside | Nyheder | Om os", "© 2026 Eksempel. Alle rettigheder forbeholdes."),
        ("Domů | Zprávy | Kontakty", "© 2026 Příklad. Všechna práva vyhrazena."),
    ],
)
def test_menus_and_copyrights(run, menu, footer):
    text = f"{menu}\n\n{BODY}\n\n{footer}"
    told = run([Boilerplate()], text)
    assert told == BODY


@pytest.mark.parametrize(
    "line",
    [
        "We use cookies to improve this site. Accept all cookies",
        "Subscribe to our newsletter!",
        "本网站使用Cookie，继续浏览即表示同意。",
        "扫码关注公众号",
        "クッキーを使用しています。",
        "뉴스레터를 구독하세요!",
        "Wir verwenden Cookies.",
        "Nous utilisons des cookies.",
        "Utilizamos cookies propias.",
        "Мы используем файлы cookie.",
        "Używamy plików cookie.",
        "Bizi takip edin!",
    ],
)
def test_notices(run, line):
    middle = BODY.replace("\n\n", f"\n\n{line}\n\n", 1)
    assert run([Boilerplate()], middle) == BODY


def test_advertisements_comments_and_related(run):
    text = BODY.replace("\n\n", "\n\nADVERTISEMENT\n\nBuy one, get one free! Click here\n\n", 1)
    text += "\n\nRelated articles\n\n- The old mill\n\n- A winter by the river\n\nComments\n\nAnna 2026-01-02\n\nNice!"
    text += "\n\nBert 2026-01-03\n\nFirst!"
    assert run([Boilerplate()], text) == BODY


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        BODY + "\n\nCOPYRIGHT\nCopyright © 2020 Free Software Foundation, Inc. License GPLv3+.",
        "| Name | Age |\n| ---- | --- |\n| Anna | 12 |",
        "SYNOPSIS\n\ngit tag [-a | -s | -u <key-id>] [-f]\n\nDESCRIPTION\n\nAdd a tag.",
        "Comments\n\nA comment starts with a hash sign and ends with the line.",
        "The law says that a site which uses cookies must ask its readers for consent before it stores anything on "
        "their computers, unless the cookies are needed to deliver what the readers asked for.",
        "Home\n\nI came home late, and the shop was closed.",
        "登鹳雀楼 王之涣\n白日依山尽，黄河入海流。\n欲穷千里目，更上一层楼。",
        "",
    ],
)
def test_prose_stays(run, text):
    assert run([Boilerplate(), EllipsisLines()], text) == text


def test_teasers(run):
    teasers = "\n".join(f"The story number {number} begins in a small..." for number in range(8))
    assert run([EllipsisLines()], teasers) is None
    assert run([EllipsisLines()], f"{BODY}\n\nRead more »") == BODY
    assert run([EllipsisLines()], f"{BODY}\n\nSee more\n\nmake(1)") == f"{BODY}\n\nSee more\n\nmake(1)"


def test_scan_finds_what_the_pattern_finds():
    for kind in KINDS:
        for phrase in phrases()[kind]:
            assert may_hold(f"x {phrase.upper() if phrase.isascii() else phrase} y", kind), phrase
            assert pattern(kind).search(f"x {phrase} y"), phrase
    assert not may_hold(BODY, *KINDS)


@pytest.mark.parametrize(("kind", "gain"), [("boilerplate_ads", 0.9), ("boilerplate_real", 0.1)])
def test_rows_come_closer_to_what_is_clean(dirty, similarity, kind, gain):
    found = defaultdict(list)
    for row in dirty[kind]:
        told, _ = remove_boilerplate(row["text"])
        found[row["lang"]].append((similarity(row["text"], row["clean"]), similarity(told, row["clean"])))
    first, last = np.mean([pair for pairs in found.values() for pair in pairs], 0)
    assert last - first >= gain * (1 - first)
    for lang, pairs in found.items():
        before, after = np.mean(pairs, 0)
        assert after >= before, lang
        assert kind == "boilerplate_real" or after > 0.98, lang


def test_controls_stay(dirty, rows, run):
    controls = dirty["none"]
    rules = [Boilerplate(), EllipsisLines()]
    changed = [row["id"] for row in controls if run(rules, row["text"], row["lang"], row["category"]) != row["text"]]
    assert len(changed) <= 0.005 * len(controls), changed


def test_host_lines():
    pages = [
        f"Old Town News\n\nWeather: {number} °C\n\nStory {number} tells of bridge {chr(97 + number)}."
        for number in range(6)
    ]
    shards = [count_lines(("town.example", page) for page in pages[part::2]) for part in range(2)]
    one = merge_counts(shards)
    two = merge_counts([count_lines([("town.example", page) for page in pages]), count_lines([])])
    for left, right in zip(one, two, strict=True):
        assert left.tolist() == right.tolist()
    repeated = repeated_lines(one, 4, 0.6)
    told, count = remove_lines("town.example", pages[2], repeated)
    assert (told, count) == ("Story 2 tells of bridge c.", 2)
    assert remove_lines("other.example", pages[2], repeated) == (pages[2], 0)
    assert remove_lines("town.example", told, repeated) == (told, 0)
    assert len(repeated_lines(one, 7, 0.6).hosts) == 0
    assert host_of("https://www.Town.example:80/a") == "town.example"
    assert host_of(None) == host_of("http://[") == ""


def test_host_lines_help_real_pages(dirty, similarity):
    rows = dirty["boilerplate_real"]
    repeated = repeated_lines(count_lines((row["source"], row["text"]) for row in rows), 4, 0.6)
    before, after = [], []
    for row in rows:
        alone, _ = remove_boilerplate(row["text"])
        both, _ = remove_boilerplate(remove_lines(row["source"], row["text"], repeated)[0])
        before.append(similarity(alone, row["clean"]))
        after.append(similarity(both, row["clean"]))
    assert np.mean(after) > np.mean(before)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["Home", "- News", "Log in | Shop", "Text of a page that goes on.", "", "Comments",
                                 "Anna 2026-01-02", "© 2026 A | B", "Read more", "A > B > C", "we use cookies!"]),
                max_size=14))  # fmt: skip
def test_idempotence(lines):
    once, _ = remove_boilerplate("\n".join(lines))
    assert remove_boilerplate(once)[0] == once
