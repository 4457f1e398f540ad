"""Listed terms in running text, innocent words around them, and what becomes of documents."""

import random
import time
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.core.errors import DataError, UserError
from maxtrain.corpus.safety import Toxicity, train_toxicity
from maxtrain.corpus.safety.matcher import Matcher
from maxtrain.corpus.safety.terms import built_in_terms, load_terms, parse_terms, terms_for
from maxtrain.corpus.safety.toxicity import find_terms
from maxtrain.corpus.text.analysis import Analysis
from tests.unit.corpus.safety.conftest import document, reason

UNSPACED = ("zh", "ja")
FILLER = {
    "en": "The committee met on Tuesday to discuss the new timetable and the cost of repairs to the bridge. ",
    "de": "Der Ausschuss beriet am Dienstag über den neuen Fahrplan und die Kosten der Brücke. ",
}


def user_list(shared):
    return load_terms(str(shared / "toxicity" / "badwords_multilingual.json"))


def share_found(terms, running_text):
    """Share of terms found, by language, each planted in a real text of its language; and the ones that were not."""
    matchers: dict[str, Matcher] = {}
    found: Counter[str] = Counter()
    missed: dict[str, list[str]] = defaultdict(list)
    choose = random.Random(7)
    for term in terms:
        if term.category == "innocent":
            continue
        if term.lang not in matchers:
            matchers[term.lang] = Matcher(terms_for(terms, term.lang))
        text = choose.choice(running_text[term.lang])[:2000]
        place = choose.randrange(20, len(text) - 20)
        while place < len(text) and text[place - 1].isalnum() and term.lang not in UNSPACED:
            place += 1
        word = term.text.rstrip("*") if len(term.text) > 2 else term.text
        before, after = (text[:place] + "，", "。") if term.lang in UNSPACED else (text[:place] + " ", " ")
        planted = before + word + after + text[place:]
        hits = find_terms(planted, matchers[term.lang])
        is_found = any(hit.start <= len(before) and hit.end >= len(before) + len(word) for hit in hits)
        found[term.lang] += is_found
        if not is_found:
            missed[term.lang].append(word)
    return {lang: found[lang] / (found[lang] + len(missed[lang])) for lang in found}, dict(missed)


def test_our_terms_are_found_in_running_text(running_text):
    shares, missed = share_found(built_in_terms(), running_text)
    assert set(shares) == {"en", "zh", "ja", "de", "fr", "es", "ru", "ko", "ar", "hi"}
    assert min(shares.values()) >= 0.99, missed


def test_a_users_terms_are_found_in_running_text(shared, running_text):
    shares, missed = share_found(user_list(shared), running_text)
    assert len(shares) == 10
    assert min(shares.values()) >= 0.99, missed


def test_chinese_terms_are_found_between_characters(shared, running_text):
    """No space and no sign around: a term still stands out, unless chance made an innocent word of its ends."""
    terms = [term for term in user_list(shared) if term.lang == "zh" and len(term.text) > 1]
    matcher = Matcher(terms)
    choose = random.Random(5)
    found = 0
    for term in terms:
        text = choose.choice(running_text["zh"])[:1000]
        place = choose.randrange(20, len(text) - 20)
        hits = find_terms(text[:place] + term.text + text[place:], matcher)
        found += any(hit.start <= place and hit.end >= place + len(term.text) for hit in hits)
    assert found / len(terms) >= 0.98


@pytest.mark.parametrize(
    "text",
    [
        "Scunthorpe, Penistone, Essex, Sussex and assassins; a classic cocktail, shiitake, therapists, Dickens, grapes",
        "analysis of the document; circumstances, buttons, peacocks, Matsushita, basement, cumulative, arsenal",
        "性能很好，男性和女性的可能性，可靠性，幂等性的保证，线性代数，性质",
        "日本的乳制品和酸奶，干部的骨干，产卵的鱼，强大的奶牛",
        "其他妈妈在室内射击，路口交通很忙，男性交友，做爱心早餐",
        "グローバルなアナログのコントロール、スマート、カントリー",
        "Analyse der Essenz, Fickle, Dickicht, Assistent",
        "contre, bitume, conclure, cocon; disputa, computadora, reputación",
        "스위스 시장 발전소 출발",
        "الاسكندر كسر التكنيك",
    ],
)
def test_terms_inside_other_words_never_count(shared, text):
    assert [hit.term.text for hit in find_terms(text, Matcher(user_list(shared)))] == []


def test_no_term_is_found_inside_a_longer_word(shared):
    """Every term of a script with spaces, letters put before and after."""
    matcher = Matcher(user_list(shared))
    for term in user_list(shared):
        if term.lang in ("en", "de", "fr", "es", "ru", "hi") and term.text.isalpha():
            for word in (f"xq{term.text}", f"{term.text}qx", f"xq{term.text}qx"):
                assert find_terms(f"a {word} b", matcher) == [], word


def test_disguises_are_seen_through_and_plain_words_are_not():
    matcher = Matcher(parse_terms("[profane 2]\nshit, fuck, bitch, ass\n", "en", "test"))

    def found(text):
        return [hit.term.text for hit in find_terms(text, matcher)]

    assert found("sh1t, fuuuuck, b!tch, f*ck, f u c k off, fu\u200bck, ＦＵＣＫ") == [
        "shit", "fuck", "bitch", "fuck", "fuck", "fuck", "fuck",
    ]  # fmt: skip
    assert found("T175 5417 $hash a s s e s s, a-s-s-e-t, as\u00adsassin, 0x5b17c4") == []
    assert found("他说fuck了") == ["fuck"]


def test_korean_particles_may_follow_other_syllables_may_not():
    matcher = Matcher(parse_terms("[profane 2]\n개새끼\n", "ko", "test"))
    assert len(find_terms("개새끼는 개새끼들아 개새끼!", matcher)) == 3
    assert find_terms("개새끼손가락", matcher) == []


def test_clean_text_is_not_dropped(clean_rows):
    """At most one in a thousand rows of any language; old literature and Chinese technical text included."""
    rule = Toxicity()
    rows: Counter[str] = Counter()
    dropped: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in clean_rows:
        verdict = rule.apply(document(row["text"], row["lang"], row["category"]))
        rows[row["lang"]] += 1
        if verdict:
            dropped[row["lang"]].append((verdict.reason, row["text"][:80]))
    for lang, found in dropped.items():
        assert len(found) <= 0.001 * rows[lang], found


def test_a_public_list_does_not_drop_clean_text(shared, clean_rows):
    """The list holds 性, 干 and more such; Chinese technical text stays all the same."""
    rule = Toxicity(lists=(str(shared / "toxicity" / "badwords_multilingual.json"),), built_in=False)
    chinese = [row for row in clean_rows if row["lang"].startswith("zh")]
    dropped = sum(rule.apply(document(row["text"], row["lang"], row["category"])) is not None for row in chinese)
    assert dropped <= 0.001 * len(chinese)


def dense(terms, text, lang, every=20):
    """A real text of 400 units with one of the terms every so many units."""
    gap, units = ("", list(text)) if lang in UNSPACED else (" ", text.split())
    parts = []
    for number, start in enumerate(range(0, min(len(units), 400), every)):
        parts += [gap.join(units[start : start + every]), "，" if lang in UNSPACED else "", terms[number % len(terms)]]
    return (gap or "，").join(parts)


@pytest.mark.parametrize("category", ["sexual", "violent", "hate"])
@pytest.mark.parametrize("lang", ["en", "zh", "ja", "de", "fr", "es", "ru", "ko", "ar", "hi"])
def test_density_decides_and_not_one_word(lang, category, running_text):
    severe = [
        term.text.rstrip("*")
        for term in built_in_terms()
        if (term.lang, term.category, term.severity) == (lang, category, 3)
    ][:8]
    text = max(running_text[lang][:40], key=len)[:6000]
    rule = Toxicity()
    assert reason(rule, dense(severe, text, lang), lang) == f"toxic_{category}"
    assert reason(rule, f"{text} {severe[0]} {text}", lang) is None
    assert reason(rule, dense(severe[:1], text, lang), lang) is None
    tagged = document(dense(severe, text, lang), lang)
    assert Toxicity(action="tag").apply(tagged) is None
    assert tagged.scores[f"toxicity.{category}"] > 20


def test_medicine_law_and_counter_speech_are_spared():
    rule = Toxicity()
    for text in (
        "Patients with vaginal pain should see a clinician; a diagnosis of cancer of the penis, vulva or anus needs "
        "treatment. Symptoms after sexual intercourse or anal sex, erection and ejaculation are discussed in therapy.",
        "The court heard that the defendant, convicted of rape, had raped and murdered two victims; prosecutors said "
        "the rapist tortured them. He was sentenced under the statute.",
        "Calling people kikes or niggers is hate speech; researchers studied how such slurs hurt their victims and how "
        "racism and discrimination persist.",
    ):
        assert rule.apply(document(text)) is None


def test_words_of_one_language_do_not_count_in_another():
    assert Toxicity().apply(document("Jeg har fag og slut, hoe gaat het, con bite cum " * 20, "da")) is None


def test_code_is_left_alone_unless_asked():
    text = "kill fuck shit nigger faggot kike " * 20
    assert Toxicity().apply(document(text, "python", "code")) is None
    assert Toxicity(code=True).apply(document(text, "en", "code")) is not None


def test_lists_of_a_user_replace_ours(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text("[spoilers 3]\nfrobnicate, xyzzy*\n[innocent]\nfrobnicate gently\n", encoding="utf-8")
    rule = Toxicity(lists=(str(path),), built_in=False, limits={"spoilers": 10})
    assert reason(rule, "frobnicate the xyzzying " * 10) == "toxic_spoilers"
    assert rule.apply(document("frobnicate gently, fuck " * 10)) is None


def test_bad_lists_are_told(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_terms(str(tmp_path / "absent.txt"))
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        load_terms(str(tmp_path / "x.json"))
    with pytest.raises(UserError, match=r"here:1: a part begins with \[category severity\]"):
        parse_terms("[hate 9]\nx\n", "en", "here")


def test_the_classifier_trains_to_the_same_bytes_and_decides(tmp_path):
    bad = [f"{FILLER['en']} you filthy pornstar number {i} with hot gangbang action" for i in range(40)]
    good = [f"{FILLER['en']} the clinic for patients number {i} opens with new action" for i in range(40)]
    first = train_toxicity({"sexual": bad}, good, tmp_path / "a")
    train_toxicity({"sexual": bad[::-1]}, good[::-1], tmp_path / "b")
    assert (tmp_path / "a/sexual.model").read_bytes() == (tmp_path / "b/sexual.model").read_bytes()
    assert first["sexual"].probability(bad[0]) > 0.9 > 0.2 > first["sexual"].probability(good[0])
    rule = Toxicity(models=str(tmp_path / "a"))
    text = FILLER["en"] + "the filthy pornstar with hot gangbang"
    assert reason(rule, text) == "toxic_sexual"
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"holds no CATEGORY.model"):
        Toxicity(models=str(tmp_path / "none")).apply(document(text))


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("fuckshit性交他妈 *1!씨발ال"))))
def test_any_text_is_taken(text):
    hits = find_terms(text, Matcher(built_in_terms()[::7]))
    assert all(0 <= hit.start < hit.end <= len(text) for hit in hits)


def test_many_terms_cost_little(running_text):
    """Speed does not hang on the number of terms; the limit is wide because the machine may be busy."""
    choose = random.Random(2)
    letters = "etaoinshrdlucmfw"
    many = "[x 2]\n" + "\n".join("".join(choose.choices(letters, k=8)) for _ in range(50_000))
    analyses = [Analysis(text) for text in running_text["en"]]
    for analysis in analyses:
        _ = analysis.classes
    times = []
    for matcher in (Matcher(terms_for(built_in_terms(), "en")), Matcher(parse_terms(many, "en", "test"))):
        matcher.find(analyses[0])
        begin = time.process_time()
        for analysis in analyses:
            matcher.find(analysis)
        times.append(time.process_time() - begin)
    megabytes = sum(len(analysis.text) for analysis in analyses) / 1e6
    assert megabytes / times[0] > 15
    assert times[1] < 4 * times[0]


def test_long_runs_take_linear_time(shared):
    matcher = Matcher((*built_in_terms(), *user_list(shared)))
    find_terms("fuck 性", matcher)
    begin = time.process_time()
    for line in (
        "f " * 200_000,
        "fu\u200b" * 100_000,
        "f" * 400_000,
        "性" * 200_000,
        "他妈的" * 50_000,
        "f*" * 100_000,
    ):
        find_terms(line, matcher)
    assert time.process_time() - begin < 20
