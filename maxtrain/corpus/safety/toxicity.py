"""The rule about sexual, violent and hateful content: the density of listed terms, and a trained classifier if given.

One word decides nothing: a text is left out when severe terms of one category stand dense in it and are of several
kinds. Texts that speak about such content (medicine, law, news, counter-speech) hold words of these fields, which
raise the limit.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from maxtrain.core.errors import DataError
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.safety.matcher import Hit, Matcher
from maxtrain.corpus.safety.segment import is_word_among_han
from maxtrain.corpus.safety.terms import LISTED, Term, built_in_terms, load_terms, terms_for
from maxtrain.corpus.text.analysis import Analysis, analyse
from maxtrain.corpus.text.classes import HAN
from maxtrain.corpus.text.linear import LinearModel, train_linear

_WEIGHTS = {1: 0.1, 2: 1.0, 3: 3.0}
"""What a term of each severity counts."""
_SHORT = 100
"""Units that a shorter text counts as."""
_SPARED = 3.0
"""How far the limit rises in a text with three words of the fields below; as many as severe terms spare it."""
_FIELDS = re.compile(
    r"\b(?:patients?|clinical|diagnos\w+|symptoms?|therap\w+|treatment|medical|disease|syndrome|cancer|surgery|"
    r"contracepti\w+|gyn[ae]?ecolog\w+|urolog\w+|anatom\w+|species|court|defendants?|plaintiffs?|prosecut\w+|convicted|"
    r"sentenced|statute|legislation|penal code|police said|according to|researchers|study|studies|etymolog\w+|slang|"
    r"linguist\w+|pejorative|derogatory|offensive term|slurs?|hate speech|discriminat\w+|racis[mt]\w*|"
    r"victims?|survivors?|holocaust|human rights|"
    r"patienten?|diagnose\w*|medizin\w*|gericht\w*|angeklagte\w*|strafrecht\w*|abwertend\w*|opfer|"
    r"rassis\w+|"
    r"médical\w*|tribunal|accusé|péjorati\w+|racis\w+|victimes?|médic[oa]s?|paciente\w*|despectiv\w+|víctimas?)\b|"
    r"患者|临床|诊断|治疗|症状|医学|手术|法院|被告|判决|刑法|警方|记者|研究|贬义|歧视|受害|臨床|診断|医療|裁判|被告人|差別|蔑称|警察|"
    r"пациент|диагноз|лечени|медицин|суд[аеу]?\b|обвиняем|уголовн|жертв|дискриминац|환자|진단|치료|의학|법원|피고|경찰|차별|비하|"
    r"المريض|تشخيص|علاج|طبي|محكمة|المتهم|الشرطة|ضحايا|मरीज|चिकित्सा|निदान|उपचार|अदालत|आरोपी|पुलिस|पीड़ित",
    re.IGNORECASE,
)


@cache
def _matcher(lists: tuple[str, ...], built_in: bool, lang: str) -> Matcher:
    terms: list[Term] = []
    for path in lists:
        terms += load_terms(path)
    if built_in:
        terms += built_in_terms()
    return Matcher(terms_for(terms, lang))


def find_terms(text: str, matcher: Matcher) -> list[Hit]:
    """Terms of a text that are words of their own there.

    Args:
        text: the text.
        matcher: the terms.
    """
    return _words(analyse(text), matcher)[0]


def _words(analysis: Analysis, matcher: Matcher) -> tuple[list[Hit], int]:
    text, classes = analysis.text, analysis.classes
    found = []
    hits, units = matcher.find(analysis)
    for hit in hits:
        if hit.term.category == "innocent":
            continue
        if (classes[hit.start] & HAN or classes[hit.end - 1] & HAN) and not is_word_among_han(text, hit.start, hit.end):
            continue
        found.append(hit)
    return found, units


def train_toxicity(
    texts: Mapping[str, Sequence[str]], clean: Sequence[str], folder: str | Path
) -> dict[str, LinearModel]:
    """Train one classifier for each category and write it to `CATEGORY.model`; the same texts give the same bytes.

    Args:
        texts: harmful texts by category; the other categories' texts are not shown as clean ones.
        clean: texts that are to be kept, of the same languages and of fields such as medicine and law too.
        folder: where the models go.

    Raises:
        DataError: a category or `clean` has fewer than 20 texts.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    models = {}
    for category in sorted(texts):
        models[category] = train_linear(list(texts[category]), list(clean))
        (folder / f"{category}.model").write_bytes(models[category].to_bytes())
    return models


@cache
def _models(folder: str) -> dict[str, LinearModel]:
    paths = sorted(Path(folder).glob("*.model"))
    if not paths:
        raise DataError(f"toxicity.models: {folder} holds no CATEGORY.model; train_toxicity makes them")
    return {path.stem: LinearModel.load(path) for path in paths}


class Toxicity(Rule):
    """Sexual, violent and hateful texts are dropped or tagged, by the density of listed terms in their language."""

    name: ClassVar[str] = "toxicity"

    action: Literal["drop", "tag"] = "drop"
    """`tag` only sets the scores `toxicity.CATEGORY`."""
    lists: tuple[str, ...] = ()
    """Word lists of your own: files in the form of data/safety/toxicity, or JSON (terms by language)."""
    built_in: bool = True
    """Use the built-in lists too."""
    limits: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={"sexual": 20.0, "violent": 20.0, "hate": 15.0, LISTED: 30.0}
    )
    """Weight of a category's terms (severity 2: 1, severity 3: 3) a thousand units from which a text is dropped; a
    category that is not named only gives a score."""
    min_terms: Annotated[int, Field(ge=1)] = 2
    """Different terms of severity 2 and 3 that a category needs."""
    models: str | None = None
    """Folder of trained classifiers, from `train_toxicity`."""
    min_probability: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Probability from which a classifier's verdict drops a text that holds a listed term of its category as well."""
    code: bool = False
    """Look at source code too."""

    def apply(self, document: Document) -> Drop | None:
        """Score a document by category; drop it where a limit is passed."""
        if document.is_code and not self.code:
            return None
        analysis = analyse(document.text)
        hits, units = _words(analysis, _matcher(self.lists, self.built_in, document.lang.partition("-")[0]))
        if not hits:
            return None
        by_category: dict[str, list[Hit]] = defaultdict(list)
        for hit in hits:
            by_category[hit.term.category].append(hit)
        thousands = max(units, _SHORT) / 1000
        scores = {
            category: round(sum(_WEIGHTS[hit.term.severity] for hit in found) / thousands, 2)
            for category, found in sorted(by_category.items())
        }
        document.scores |= {f"toxicity.{category}": score for category, score in scores.items()}
        return self._verdict(document, by_category, scores)

    @cached_property
    def _trained(self) -> dict[str, LinearModel]:
        return _models(self.models) if self.models else {}

    def _verdict(self, document: Document, hits: dict[str, list[Hit]], scores: dict[str, float]) -> Drop | None:
        for category, score in scores.items():
            severe = [hit for hit in hits[category] if hit.term.severity > 1]
            if not severe:
                continue
            reason = f"toxic_{category}"
            span = severe[0].start, severe[0].end
            if category in self._trained:
                probability = self._trained[category].probability(document.text)
                document.scores[f"toxicity.{category}.probability"] = round(probability, 4)
                if probability >= self.min_probability and self.action == "drop":
                    return Drop(reason, probability, span)
            limit = self.limits.get(category)
            if limit is None or score < limit or len({hit.term.text for hit in severe}) < self.min_terms:
                continue
            if self.action == "drop" and score >= limit * _tolerance(document.text, len(severe)):
                return Drop(reason, score, span)
        return None


def _tolerance(text: str, severe: int) -> float:
    """How far the limit rises by the words of medicine, law, news and counter-speech beside `severe` terms."""
    found = [match[0].lower() for match in _FIELDS.finditer(text)]
    different = len(set(found))
    if different >= 2 and len(found) >= severe:
        return math.inf
    return _SPARED if different >= 3 else 1.0
