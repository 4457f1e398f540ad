"""How much of HateCheck (Röttger et al. 2021) the rule `toxicity` finds, by functionality: hits, scores, drops.

    python tools/bench/toxicity.py PATH/hatecheck_en.jsonl.gz [--lists FILE ...] [--json OUT]

Rows are single sentences with `label` (hateful or non-hateful) and `functionality`. Nothing is trained or tuned on
them. Word lists find slurs and set phrases; they do not read, so most functionalities are beyond them, and the figures
say so.
"""

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from maxtrain.corpus.document import Document
from maxtrain.corpus.safety import Toxicity, interval

_HATE = ("toxicity.hate", "toxicity.violent")


def _document(row: dict[str, Any]) -> Document:
    return Document(row["id"], row["text"], "hatecheck", row.get("lang", "en"), "web", "CC-BY-4.0", "hatecheck", 1)


def measure(path: Path, lists: tuple[str, ...]) -> dict[str, Any]:
    """Shares of rows by functionality: with a term of hate or violence of severity 2 and more; dropped."""
    rule = Toxicity(lists=lists)
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            document = _document(row)
            verdict = rule.apply(document)
            # A sentence counts as 100 units, so that one term of severity 2 scores 10 and one of severity 1 scores 1.
            flagged = any(document.scores.get(name, 0) >= 10 for name in _HATE)
            for key in ((row["label"], row["functionality"]), (row["label"], "all")):
                counts[key][0] += 1
                counts[key][1] += flagged
                counts[key][2] += verdict is not None
    return {
        f"{label} {functionality}": {
            "rows": rows,
            "flagged": round(flagged / rows, 3),
            "flagged_interval": [round(interval(flagged, rows).low, 3), round(interval(flagged, rows).high, 3)],
            "dropped": round(dropped / rows, 3),
        }
        for (label, functionality), (rows, flagged, dropped) in sorted(counts.items())
    }


def main() -> None:
    """Print the table; `--json` writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="rows as gzipped JSON lines")
    parser.add_argument("--lists", nargs="*", default=[], help="word lists beside the built-in ones")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures, too")
    arguments = parser.parse_args()
    report = measure(arguments.path, tuple(arguments.lists))
    print("hateful: recall; non-hateful: false alarms")
    print(f"{'label, functionality':<36}{'rows':>6}{'flagged':>9}{'dropped':>9}")
    for name, figures in report.items():
        print(f"{name:<36}{figures['rows']:>6}{figures['flagged']:>9.3f}{figures['dropped']:>9.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
