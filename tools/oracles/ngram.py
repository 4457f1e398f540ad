"""An interpolated 3-gram as a floor for a model: counted on exactly the tokens that a run consumes.

python tools/oracles/ngram.py RUN [--steps N] [--json]

The run's batches are reproduced from RUN/config.yaml. A count is one target inside its document with the up to two
tokens before it that the model saw in the same row. The 3-gram is interpolated with the 2-gram, that with the 1-gram,
that with the uniform distribution over the vocabulary, each by absolute discounting of 0.75 (Ney, Essen and Kneser
1994). It is scored on the run's held-out targets, in nats a token: overall, where every target weighs the same, and
by domain.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import load_config
from maxtrain.core.errors import UserError, run_command
from maxtrain.loader import Batch, HeldOut, Loader

DISCOUNT = 0.75
_MAX_VOCAB = 2**21
_BATCH_ROWS = 64


@dataclass(frozen=True)
class Events:
    """Targets and what stands before them: int64 [N] each; `second` is -1 where a row's document has only one before.

    second, first: the tokens two and one before the target; domain: the domain's index.
    """

    second: np.ndarray
    first: np.ndarray
    target: np.ndarray
    domain: np.ndarray


def events_of(batches: Iterable[Batch]) -> Events:
    """All targets of weight over 0."""
    parts: list[tuple[np.ndarray, ...]] = []
    for batch in batches:
        tokens, segments, counted = batch["tokens"].astype(np.int64), batch["segment_ids"], batch["weights"] > 0
        second = np.full_like(tokens, -1)
        same = segments[:, 1:] == segments[:, :-1]
        second[:, 1:] = np.where(same, tokens[:, :-1], -1)
        domain = np.broadcast_to(batch["domain"][:, None], tokens.shape)
        parts.append(tuple(field[counted].astype(np.int64) for field in (second, tokens, batch["targets"], domain)))
    return Events(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


class _Level:
    """Counts of (context, word) pairs packed as context * vocab_size + word."""

    def __init__(self, context: np.ndarray, word: np.ndarray, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._pairs, self._counts = np.unique(context * vocab_size + word, return_counts=True)
        pair_context = self._pairs // vocab_size
        self._contexts, first, self._types = np.unique(pair_context, return_index=True, return_counts=True)
        self._totals = np.add.reduceat(self._counts, first) if len(first) else self._counts

    def probability(self, context: np.ndarray, word: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Discounted probability interpolated with that of the lower order, which stands for unseen contexts."""
        if not len(self._pairs):
            return lower
        count = _look_up(self._pairs, self._counts, context * self._vocab_size + word)
        total = _look_up(self._contexts, self._totals, context)
        types = _look_up(self._contexts, self._types, context)
        divisor = np.maximum(total, 1)
        mixed = np.maximum(count - DISCOUNT, 0) / divisor + DISCOUNT * types / divisor * lower
        return np.where(total > 0, mixed, lower)


class Trigram:
    """The model, counted on events."""

    def __init__(self, events: Events, vocab_size: int) -> None:
        if vocab_size > _MAX_VOCAB:
            raise UserError(f"the vocabulary of {vocab_size} is over {_MAX_VOCAB}, which a packed 3-gram can hold")
        self._vocab_size = vocab_size
        zeros = np.zeros_like(events.target)
        has_two = events.second >= 0
        self._unigram = _Level(zeros, events.target, vocab_size)
        self._bigram = _Level(events.first, events.target, vocab_size)
        pair = events.second[has_two] * vocab_size + events.first[has_two]
        self._trigram = _Level(pair, events.target[has_two], vocab_size)

    def nats(self, events: Events) -> np.ndarray:
        """Negative log-likelihood of each target: float64 [N]."""
        uniform = np.full(len(events.target), 1 / self._vocab_size)
        one = self._unigram.probability(np.zeros_like(events.target), events.target, uniform)
        two = self._bigram.probability(events.first, events.target, one)
        three = self._trigram.probability(events.second * self._vocab_size + events.first, events.target, two)
        return -np.log(np.where(events.second >= 0, three, two))


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Values of sorted keys, 0 where a key is absent."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def main(arguments: list[str] | None = None) -> int:
    """Count, score, print.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="run directory with config.yaml")
    parser.add_argument("--steps", type=int, metavar="N", help="count the first N steps only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(arguments)
    config = load_config(str(Path(args.run) / "config.yaml"))
    plan = plan_batches(config)
    steps = plan.num_steps if args.steps is None else args.steps
    if not 0 < steps <= plan.num_steps:
        raise UserError(f"--steps {steps}: the run has {plan.num_steps} steps, so give 1 to {plan.num_steps}")

    start = time.process_time()
    loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    heldout = HeldOut.from_config(config, loader)
    vocab_size = loader.stages[0].dataset.vocab_size
    consumed = events_of(loader.batch(step) for step in tqdm(range(steps), "counting", unit="step", leave=False))
    scored = events_of(heldout.batches(_BATCH_ROWS))
    nats = Trigram(consumed, vocab_size).nats(scored)
    sums = np.bincount(scored.domain, nats, len(heldout.domains))
    tokens = np.bincount(scored.domain, minlength=len(heldout.domains))
    answer = {
        "steps": steps,
        "counted_tokens": len(consumed.target),
        "heldout_tokens": len(nats),
        "loss": float(nats.mean()),
        "domains": {
            name: {"loss": float(total / count), "tokens": int(count)}
            for name, total, count in zip(heldout.domains, sums, tokens, strict=True)
        },
        "cpu_seconds": round(time.process_time() - start, 2),
    }
    if args.json:
        print(json.dumps(answer, ensure_ascii=False))
        return 0
    print(f"3-gram counted on {answer['counted_tokens']} targets of {steps} steps ({answer['cpu_seconds']} CPU-s)")
    print(f"held-out loss {answer['loss']:.4f} nats/token over {answer['heldout_tokens']} tokens")
    for name, total, count in zip(heldout.domains, sums, tokens, strict=True):
        print(f"  {name:<16} {total / count:.4f} over {count} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
