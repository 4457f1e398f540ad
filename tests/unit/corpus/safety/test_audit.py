"""Samples to judge and the intervals of the verdicts."""

import csv
import json
import random

import pytest

from maxtrain.core.errors import UserError
from maxtrain.corpus.safety import audit_report, audit_sample, interval, write_audit


def rows(n=500):
    return [
        {
            "doc_id": f"{i:032x}",
            "rule": "pii" if i % 2 else "toxicity",
            "reason": "r",
            "lang": "en",
            "before": f"=text {i}",
        }
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("successes", "n", "method", "low", "high"),
    [
        (81, 263, "wilson", 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, "wilson", 0.0624, 0.1605),
        (0, 20, "wilson", 0.0, 0.1611),
        (81, 263, "exact", 0.2527, 0.3676),
        (15, 148, "exact", 0.0578, 0.1617),
        (0, 20, "exact", 0.0, 0.1684),
        (29, 29, "exact", 0.8806, 1.0),
    ],
)
def test_intervals_are_those_of_the_literature(successes, n, method, low, high):
    found = interval(successes, n, method=method)
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_exact_intervals_hold_what_they_promise():
    """The share of samples whose interval holds the truth, summed over the binomial distribution."""
    from math import comb

    n, truth = 40, 0.07
    held = sum(
        comb(n, k) * truth**k * (1 - truth) ** (n - k)
        for k in range(n + 1)
        if interval(k, n, method="exact").low <= truth <= interval(k, n, method="exact").high
    )
    assert held >= 0.95


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="0 to n"):
        interval(5, 4)
    assert (interval(0, 0).low, interval(0, 0).high) == (0.0, 1.0)


def test_a_sample_does_not_depend_on_the_order():
    one = audit_sample(rows(), "pii", 40, seed=3)
    shuffled = rows()
    random.Random(1).shuffle(shuffled)
    assert one == audit_sample(shuffled, "pii", 40, seed=3)
    assert len(one) == 40
    assert {row["rule"] for row in one} == {"pii"}
    assert one != audit_sample(rows(), "pii", 40, seed=4)
    assert one[:10] == audit_sample(rows(), "pii", 10, seed=3)


def test_every_row_has_the_same_chance():
    drawn = [0] * 100
    for seed in range(400):
        for row in audit_sample(rows(100), None, 10, seed):
            drawn[int(row["doc_id"], 16)] += 1
    assert min(drawn) > 15
    assert max(drawn) < 75


@pytest.mark.parametrize("name", ["form.csv", "form.json"])
def test_a_filled_form_comes_back_with_intervals(tmp_path, name):
    path = tmp_path / name
    write_audit(audit_sample(rows(), None, 20, seed=1), path)
    verdicts = ["right"] * 15 + ["Wrong "] * 3 + ["unsure", ""]
    if name.endswith("json"):
        entries = json.loads(path.read_text())
        for entry, verdict in zip(entries, verdicts, strict=True):
            entry["verdict"] = verdict
        path.write_text(json.dumps(entries))
    else:
        entries = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        assert entries[0]["before"].startswith("'=text")
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, entries[0].keys(), delimiter=";")
            writer.writeheader()
            for entry, verdict in zip(entries, verdicts, strict=True):
                writer.writerow(entry | {"verdict": verdict})
    report = audit_report(path, method="exact")
    assert (report["rows"], report["unsure"], report["open"]) == (20, 1, 1)
    assert (report["all"]["successes"], report["all"]["n"]) == (15, 18)
    assert report["all"]["low"] < 15 / 18 < report["all"]["high"]
    assert sum(found["n"] for found in report["rule"].values()) == 18


def test_a_wrong_form_is_told(tmp_path):
    with pytest.raises(UserError, match="no such form"):
        audit_report(tmp_path / "absent.csv")
    path = tmp_path / "form.csv"
    path.write_text("doc_id,verdict\n1,maybe\n")
    with pytest.raises(UserError, match="row 1: verdict is one of right, wrong, unsure; got 'maybe'"):
        audit_report(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no column `verdict`"):
        audit_report(path)
