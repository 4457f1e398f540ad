"""Self-contained HTML pages: they load nothing, and every text of the data in them is escaped."""

import difflib
import re
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError
from maxtrain.corpus.chain import Sample
from maxtrain.corpus.report.statistics import THRESHOLDS, statistics
from maxtrain.corpus.stages import read_samples
from maxtrain.dataset import SAMPLES, Dataset

_PIECES = re.compile(r"\w+|\s+|[^\w\s]")


def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _render(name: str, **values: Any) -> str:
    folder = resources("maxtrain.corpus.report").joinpath("templates")
    environment = _environment()
    environment.filters["share"] = lambda part, whole: 100 * part / whole if whole else 0.0
    style = Markup(folder.joinpath("style.css").read_text("utf-8"))  # noqa: S704  our own file
    return environment.from_string(folder.joinpath(name).read_text("utf-8")).render(style=style, **values)


def statistics_page(dataset: Dataset) -> str:
    """The page of `stats`."""
    return _render("statistics.html", told=statistics(dataset), thresholds=THRESHOLDS)


def samples_of(dataset: Dataset, rule: str, reason: str | None) -> list[Sample]:
    """Samples of a rule.

    Raises:
        UserError: the recipe had no such rule.
        DataError: the rule did nothing, or no samples were kept.
    """
    rules = dataset.manifest.rules
    if rule not in rules:
        near = difflib.get_close_matches(rule, rules, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else f"it had {', '.join(rules)}"
        raise UserError(f"--rule {rule}: the dataset's recipe had no such rule; {cure}")
    known = {attachment.file for attachment in dataset.manifest.attachments}
    path = Path(files.join(dataset.location, SAMPLES))
    found = [sample for sample in read_samples(path) if sample.rule == rule] if SAMPLES in known else []
    chosen = [sample for sample in found if reason is None or sample.reason == reason]
    if not chosen and found:
        reasons = ", ".join(sorted({sample.reason or "(changed)" for sample in found}))
        raise UserError(f"--reason {reason}: {rule} has samples of {reasons}")
    if not chosen:
        raise DataError(f"{rule}: changed and dropped nothing, or the recipe kept no samples; there is nothing to show")
    return chosen


def samples_page(dataset: Dataset, rule: str, reason: str | None = None) -> str:
    """The page of `sample`: before and after, differences marked."""
    rows = []
    for sample in samples_of(dataset, rule, reason):
        before, after = _marked(sample.before, sample.after) if sample.after else (escape(sample.before), None)
        rows.append({"sample": sample, "before": before, "after": after})
    return _render("samples.html", rule=rule, location=dataset.location, rows=rows)


def _marked(before: str, after: str) -> tuple[Markup, Markup]:
    """Both texts, escaped, with what differs in `<del>` and `<ins>`."""
    one, two = _PIECES.findall(before), _PIECES.findall(after)
    left, right = Markup(), Markup()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        gone, new = escape("".join(one[a:b])), escape("".join(two[c:d]))
        left += gone if kind == "equal" else Markup("<del>{}</del>").format(gone) if gone else Markup()
        right += new if kind == "equal" else Markup("<ins>{}</ins>").format(new) if new else Markup()
    return left, right
