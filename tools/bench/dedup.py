"""Speed of the near-duplicate stage and of decontamination on one core, beside rensa's MinHash where it is installed.

    python -m tools.bench.dedup FILE.jsonl.zst … [--eval FOLDER] [--json FILE]

Ours: sketch, candidates, verification by true Jaccard similarity, components. rensa: signature and LSH of 5-grams of
words between spaces, candidates unverified (it has neither characters of scripts without spaces nor a verification).
Figures are MB of UTF-8 text a CPU-second, the best of three after a warm-up.
"""

import argparse
import itertools
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.decontaminate import ScanConfig, Scanner, load_eval_index
from maxtrain.corpus.dedup.near import candidate_pairs, components, flat_keys, similarities, unpack_pairs
from maxtrain.corpus.dedup.sketch import SketchConfig, sketch
from tools.bench.common import add_common_arguments, describe_machine, pin

try:
    import rensa
except ImportError:
    rensa = None


def near_duplicates(texts: list[str]) -> dict[str, float]:
    """CPU-seconds of each step."""
    marks = [time.process_time()]
    found = sketch(texts, SketchConfig())
    marks.append(time.process_time())
    pairs = unpack_pairs(candidate_pairs(*flat_keys(found.keys, found.usable, 0)))
    marks.append(time.process_time())
    alike = similarities(pairs, found.sets, found.sets, 0.8)
    components(pairs[alike >= 0.8])
    marks.append(time.process_time())
    steps = zip(("sketch", "candidates", "verify"), itertools.pairwise(marks), strict=True)
    return {name: stop - start for name, (start, stop) in steps} | {"pairs": float(len(pairs))}


def rensa_candidates(texts: list[str]) -> None:
    """Signatures and LSH of rensa."""
    table = rensa.RMinHashLSH(threshold=0.8, num_perm=112, num_bands=14)
    for number, text in enumerate(texts):
        signature = rensa.RMinHash(num_perm=112, seed=42)
        words = text.split()
        signature.update([" ".join(words[at : at + 5]) for at in range(max(1, len(words) - 4))])
        table.query(signature)
        table.insert(number, signature)


def cpu_seconds(run: Callable[[], Any]) -> float:
    """The least of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--eval", type=Path, default=Path("data/eval/grams"), help="index of the evaluation list")
    add_common_arguments(parser)
    arguments = parser.parse_args()
    pin(arguments.core)
    texts = [json.loads(line)["text"] for path in arguments.files for line in iterate_lines(path)]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    near_duplicates(texts[:: max(1, len(texts) // 200)])
    steps = min((near_duplicates(texts) for _ in range(3)), key=lambda told: sum(told.values()))
    pairs = steps.pop("pairs")
    result: dict[str, Any] = {"documents": len(texts), "megabytes": round(megabytes, 1), "pairs": int(pairs)}
    result |= {f"{name}_s": round(seconds, 3) for name, seconds in steps.items()}
    result["near_mb_s"] = round(megabytes / sum(steps.values()), 1)
    scanner = Scanner(load_eval_index(arguments.eval), ScanConfig())
    scanner.scan(texts[0])
    result["grams"] = int(np.size(scanner.index.grams))
    result["decontaminate_mb_s"] = round(megabytes / cpu_seconds(lambda: [scanner.scan(text) for text in texts]), 1)
    if rensa is not None:
        result["rensa_mb_s"] = round(megabytes / cpu_seconds(lambda: rensa_candidates(texts)), 1)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(result, indent=1))
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"machine": describe_machine(arguments.core), **result}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
