"""Samples for a person to judge, and how sure their verdict makes us: for the checklist of a release.

`audit_sample` draws the same rows on every machine, `write_audit` makes a form of them, a person fills in `verdict`,
and `audit_report` reads it back with intervals.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any, Literal

from maxtrain.core.errors import UserError

VERDICTS = ("right", "wrong", "unsure")
"""What a person may write: the rule was right about the row, or wrong, or it cannot be told."""
_COLUMNS = ("doc_id", "rule", "reason", "lang", "before", "after", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with the bounds between which it lies.

    Attributes:
        successes: how many.
        n: of how many.
        share: the observed share; nan where n is 0.
        low: lower bound.
        high: upper bound.
        confidence: how often such bounds hold the true share.
    """

    successes: int
    n: int
    share: float
    low: float
    high: float
    confidence: float


def _normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution, by bisection of its distribution function."""
    low, high = -40.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        if 0.5 * math.erfc(-middle / math.sqrt(2)) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _binomial_tail(successes: int, n: int, share: float) -> float:
    """Probability of `successes` and more of `n`."""
    if share <= 0 or share >= 1:
        return float(successes == 0 if share <= 0 else True)
    total = 0.0
    for count in range(successes, n + 1):
        choices = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
        total += math.exp(choices + count * math.log(share) + (n - count) * math.log1p(-share))
    return min(total, 1.0)


def _solve(successes: int, n: int, tail: float) -> float:
    """Share at which `successes` and more have the probability `tail`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial_tail(successes, n, middle) < tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def interval(
    successes: int, n: int, *, confidence: float = 0.95, method: Literal["wilson", "exact"] = "wilson"
) -> Interval:
    """Bounds of a share.

    Args:
        successes: how many.
        n: of how many.
        confidence: how often the bounds are to hold.
        method: `wilson` (Wilson 1927), or `exact` (Clopper and Pearson 1934), which never promises too much.

    Raises:
        ValueError: not 0 <= successes <= n, or the confidence is not between 0 and 1.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to n; got {successes} of {n}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies between 0 and 1; got {confidence}")
    if n == 0:
        return Interval(0, 0, math.nan, 0.0, 1.0, confidence)
    share = successes / n
    half = (1 - confidence) / 2
    if method == "exact":
        low = 0.0 if successes == 0 else _solve(successes, n, half)
        high = 1.0 if successes == n else _solve(successes + 1, n, 1 - half)
        return Interval(successes, n, share, low, high, confidence)
    z = _normal_quantile(1 - half)
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, center - reach)
    high = 1.0 if successes == n else min(1.0, center + reach)
    return Interval(successes, n, share, low, high, confidence)


def audit_sample(rows: Iterable[Mapping[str, Any]], rule: str | None, n: int, seed: int) -> list[Mapping[str, Any]]:
    """Draw rows to judge, without replacement, each with the same chance; the order of the rows does not matter.

    Args:
        rows: with at least `doc_id`; those of other rules are passed over.
        rule: value of a row's `rule`; None draws from all.
        n: how many; all where there are fewer.
        seed: another seed draws others.
    """
    wanted = (row for row in rows if rule is None or row.get("rule") == rule)
    return nsmallest(n, wanted, key=lambda row: _place(row, seed))


def _place(row: Mapping[str, Any], seed: int) -> tuple[bytes, str]:
    name = f"{row['doc_id']}\0{row.get('rule', '')}\0{row.get('reason', '')}\0{row.get('start', '')}"
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest(), json.dumps(row, sort_keys=True, default=str)


def write_audit(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Write the form that a person fills in: CSV, or JSON where the path ends in .json; `verdict` is left empty."""
    entries = [{column: _shown(row.get(column)) for column in _COLUMNS} for row in rows]
    path = Path(path)
    if path.suffix == ".json":
        path.write_text(json.dumps(entries, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    # A spreadsheet would run a cell that begins like a formula.
    writer.writerows(
        {key: f"'{value}" if value[:1] in ("=", "+", "-", "@") else value for key, value in entry.items()}
        for entry in entries
    )
    path.write_text(out.getvalue(), encoding="utf-8")


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def audit_report(
    path: str | Path, *, confidence: float = 0.95, method: Literal["wilson", "exact"] = "wilson"
) -> dict[str, Any]:
    """Read a form back: the share of right decisions with its interval, in all and by rule, reason and language.

    Args:
        path: the form, filled in.
        confidence: of the intervals.
        method: of `interval`.

    Returns:
        `rows`, `unsure`, `open` (without a verdict) and, under `all`, `rule`, `reason` and `lang`, intervals as plain
        values; unsure and open rows are in none.

    Raises:
        UserError: the file is missing, has not the form's columns, or holds a verdict that is none.
    """
    path = Path(path)
    entries = _read_form(path)
    verdicts = []
    for number, entry in enumerate(entries, 1):
        verdict = str(entry.get("verdict") or "").strip().lower()
        if verdict and verdict not in VERDICTS:
            raise UserError(f"{path}: row {number}: verdict is one of {', '.join(VERDICTS)}; got {verdict!r}")
        verdicts.append(verdict)
    report: dict[str, Any] = {
        "rows": len(entries),
        "unsure": verdicts.count("unsure"),
        "open": verdicts.count(""),
    }
    for column in ("all", "rule", "reason", "lang"):
        groups: dict[str, list[bool]] = {}
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict in ("right", "wrong"):
                group = "all" if column == "all" else str(entry.get(column) or "")
                groups.setdefault(group, []).append(verdict == "right")
        shares = {
            group: asdict(interval(sum(found), len(found), confidence=confidence, method=method))
            for group, found in sorted(groups.items())
        }
        report[column] = shares.get("all") if column == "all" else shares
    return report


def _read_form(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such form; write_audit makes one") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save the form as UTF-8") from None
    if path.suffix == ".json":
        try:
            entries = json.loads(text)
        except ValueError:
            raise UserError(f"{path}: not JSON") from None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise UserError(f"{path}: not a form; write_audit makes one")
        return entries
    # Spreadsheets of some countries save with semicolons.
    first = text.partition("\n")[0]
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=";" if first.count(";") > first.count(",") else ","
    )
    if "verdict" not in (reader.fieldnames or ()):
        raise UserError(f"{path}: no column `verdict`; write_audit makes the form")
    return list(reader)
