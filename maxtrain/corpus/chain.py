"""The rules of a recipe applied to one document after the other, every effect counted, told and sampled."""

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from maxtrain.corpus.document import Document
from maxtrain.corpus.ledger import CHANGED, DROPPED, Entry
from maxtrain.corpus.rules import Change, Drop, Rule
from maxtrain.dataset import RuleCounts

_EXCERPT = 600
"""Characters of a sample on each side of the first difference."""


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """What a rule did to one document, for people to look at.

    Attributes:
        rule, action, reason: of the effect.
        rank: hash of (rule, reason, doc_id): the least ones are kept.
        doc_id: the document.
        lang, source: its tags.
        before, after: the text around the first difference, or its beginning; `after` is empty where it was dropped.
    """

    rule: str
    action: str
    reason: str
    rank: int
    doc_id: str
    lang: str
    source: str
    before: str
    after: str


class Samples:
    """The few samples of each (rule, action, reason) that have the least hashes.

    Neither the order of documents nor the number of workers changes which they are.

    Args:
        most: samples of each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[tuple[str, str, str], list[tuple[int, Sample]]] = defaultdict(list)

    def offer(self, rule: str, action: str, reason: str, document: Document, before: str, after: str) -> None:
        """Take a sample where its hash is among the least."""
        digest = hashlib.sha256(f"{rule}\0{reason}\0{document.doc_id}".encode()).digest()
        rank = int.from_bytes(digest[:7], "big")
        heap = self._kept[rule, action, reason]
        if self._most == 0 or (len(heap) == self._most and -heap[0][0] <= rank):
            return
        start = max(_first_difference(before, after) - _EXCERPT, 0) if action == CHANGED else 0
        cut_before, cut_after = (text[start : start + 2 * _EXCERPT] for text in (before, after))
        sample = Sample(
            rule, action, reason, rank, document.doc_id, document.lang, document.source, cut_before, cut_after
        )
        self.take(sample)

    def take(self, sample: Sample) -> None:
        """Take a sample that was made before."""
        heap = self._kept[sample.rule, sample.action, sample.reason]
        item = (-sample.rank, sample)
        if len(heap) < self._most:
            heapq.heappush(heap, item)
        else:
            heapq.heappushpop(heap, item)

    def all(self) -> list[Sample]:
        """Samples by rule, action, reason and hash."""
        samples = [item[1] for heap in self._kept.values() for item in heap]
        return sorted(samples, key=lambda sample: (sample.rule, sample.action, sample.reason, sample.rank))


def _first_difference(before: str, after: str) -> int:
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[:middle] == after[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Tally:
    """What each rule did, in numbers."""

    def __init__(self) -> None:
        self.seen = Counter[str]()
        self.changed = Counter[str]()
        self.dropped: dict[str, Counter[str]] = defaultdict(Counter)

    def to_json(self) -> dict[str, dict[str, object]]:
        """Counts by rule, as plain values."""
        return {name: counts.model_dump() for name, counts in self.counts().items()}

    def counts(self) -> dict[str, RuleCounts]:
        """Counts by rule, in the order of the rules' first documents."""
        return {
            name: RuleCounts(
                kept=seen - self.dropped[name].total(),
                changed=self.changed[name],
                dropped=dict(sorted(self.dropped[name].items())),
            )
            for name, seen in self.seen.items()
        }


def add_counts(first: RuleCounts, second: RuleCounts) -> RuleCounts:
    """The sum of two."""
    dropped = Counter(first.dropped) + Counter(second.dropped)
    return RuleCounts(
        kept=first.kept + second.kept,
        changed=first.changed + second.changed,
        dropped=dict(sorted(dropped.items())),
    )


class Chain:
    """Applies rules in order and keeps account.

    Attributes:
        tally: counts by rule.
        samples: of what they did.
        entries: rows of the ledger, in the order of documents.

    Args:
        rules: in running order.
        most_samples: of each rule and reason.
    """

    def __init__(self, rules: Sequence[Rule], most_samples: int) -> None:
        self._rules = rules
        self.tally = Tally()
        self.samples = Samples(most_samples)
        self.entries: list[Entry] = []

    def run(self, document: Document, without: frozenset[str] = frozenset()) -> bool:
        """Apply the rules to a document, which they may change; whether it stays.

        Args:
            document: as it was read.
            without: names of rules that its source is spared.
        """
        for rule in self._rules:
            if rule.name in without:
                continue
            self.tally.seen[rule.name] += 1
            result = rule.apply(document)
            if result is None:
                continue
            before = document.text
            entry = Entry(document.doc_id, rule.name, CHANGED)
            if isinstance(result, Drop):
                start, end = result.span or (None, None)
                fate = replace(entry, action=DROPPED, reason=result.reason, score=result.score, start=start, end=end)
                self._note(fate, document)
                self.tally.dropped[rule.name][result.reason] += 1
                self.samples.offer(rule.name, DROPPED, result.reason, document, before, "")
                return False
            assert isinstance(result, Change), "a rule returns None, a Change or a Drop"
            if result.text == before:
                continue
            document.text = result.text
            self._note(replace(entry, count=result.count), document)
            self.tally.changed[rule.name] += 1
            self.samples.offer(rule.name, CHANGED, "", document, before, result.text)
        return True

    def _note(self, entry: Entry, document: Document) -> None:
        self.entries.append(with_tags(entry, document))


def with_tags(entry: Entry, document: Document) -> Entry:
    """The entry with the document's tags as they now are."""
    return replace(
        entry,
        source=document.source,
        lang=document.lang,
        category=document.category,
        num_bytes=len(document.text.encode()),
        quality_score=document.quality_score,
        url=document.url,
        input=document.input,
        line=document.line,
    )
