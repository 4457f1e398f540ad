"""Whether a term in a text without spaces is a word there, or only lies across or inside others.

The text around is cut into the words that are most probable together under their frequencies, each alone (the unigram
segmentation of jieba); a term counts where some best cut has borders at both its ends.
"""

import math
from functools import cache, lru_cache

import zstandard

from maxtrain.corpus.safety.terms import data_folder, folded

_REACH = 6
_LONGEST = 6
_UNKNOWN = 17.75
"""Cost of a character that the dictionary lacks: that of a word seen once."""
_TERM = 11.25
"""A term costs no more than this, the cost of a common word: dictionaries know vulgar words too little."""
_PRODUCTIVE = 60
_TIES = frozenset("的了是在和与或不也就都而被把对对让给从向这那有很太跟谈说着过吗呢吧啊") | {""}


@cache
def _costs() -> dict[str, float]:
    """Cost of each word in nats."""
    data = zstandard.ZstdDecompressor().decompress((data_folder() / "words_zh.txt.zst").read_bytes()).decode()
    costs: dict[str, float] = {}
    for line in data.splitlines():
        cost, _, words = line.partition(" ")
        costs.update(dict.fromkeys(words.split(" "), float(cost)))
    return costs


@cache
def _is_productive(character: str) -> bool:
    """Whether many words begin or end with a character, so that texts make new ones with it."""
    words = _costs()
    first = last = 0
    for word in words:
        if len(word) > 1:
            first += word[0] == character
            last += word[-1] == character
    return max(first, last) >= _PRODUCTIVE


def _best(text: str, term: str, fixed: tuple[int, int] | None) -> float:
    """Cost of the cheapest cut; with `fixed`, of those that have these borders."""
    words = _costs()
    costs = [0.0] + [math.inf] * len(text)
    for end in range(1, len(text) + 1):
        for start in range(max(0, end - max(_LONGEST, len(term))), end):
            if fixed and any(start < border < end for border in fixed):
                continue
            word = text[start:end]
            cost = words.get(word, _UNKNOWN if end - start == 1 else math.inf)
            if word == term:
                cost = min(cost, _TERM)
            costs[end] = min(costs[end], costs[start] + cost)
    return costs[-1]


@lru_cache(maxsize=4096)
def _is_word(before: str, term: str, after: str) -> bool:
    text = before + term + after
    borders = len(before), len(before) + len(term)
    if _best(text, term, borders) > _best(text, term, None) + 1e-9:
        return False
    if len(term) > 1 or not _is_productive(term):
        return True
    # A single character that makes words, such as 性, is one itself only between words that tie others together.
    return before[-1:] in _TIES and after[:1] in _TIES


def is_word_among_han(text: str, start: int, end: int) -> bool:
    """Whether the Chinese characters [start, end) of a text are words there; true where no such touch them."""
    before = text[max(0, start - _REACH) : start]
    after = text[end : end + _REACH]
    first = len(before)
    while first and _is_han(before[first - 1]):
        first -= 1
    last = 0
    while last < len(after) and _is_han(after[last]):
        last += 1
    if first == len(before) and last == 0:
        return True
    if any("぀" <= character <= "ヿ" for character in text[max(0, start - 12) : end + 12]):
        # Japanese: a lone character beside another is part of a compound, longer words are not.
        return end - start > 1
    return _is_word(folded(before[first:]), folded(text[start:end]), folded(after[:last]))


def _is_han(character: str) -> bool:
    return "㐀" <= character <= "鿿"
