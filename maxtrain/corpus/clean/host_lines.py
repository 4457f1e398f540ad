"""Lines that repeat across the pages of a host: what its template says, not the page.

A shard's documents give arrays of (host, line, documents); shards' arrays merge into one in any order; with it every
page loses the lines that most of its host's pages share. All hashes are of the text alone, so that counts from
different machines agree.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from maxtrain.corpus.text import analyse
from maxtrain.corpus.text.classes import fold_table
from maxtrain.corpus.text.kernels import compiled, mix

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_DOCUMENTS = np.uint64(0)
"""Line hash under which a host's documents are counted."""


class HostLines(NamedTuple):
    """In how many documents of a host a line stands, sorted by (host, line).

    Attributes:
        hosts: hash of the host, [n] uint64.
        lines: hash of the line, [n] uint64; 0 counts the host's documents.
        documents: how many, [n] int64.
    """

    hosts: np.ndarray
    lines: np.ndarray
    documents: np.ndarray


def host_of(url: str | None) -> str:
    """The host of an address without www, in lower case; empty where there is none."""
    if not url:
        return ""
    try:
        host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.")


def hash_host(host: str) -> np.uint64:
    """A host's hash."""
    return np.uint64(int.from_bytes(hashlib.sha256(host.encode("utf-8", "surrogatepass")).digest()[:8], "little"))


@compiled
def _hash_lines(codes: np.ndarray, bounds: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Hash of each line, [lines] uint64: in lower case, a run of digits as one 0, a run of spaces as one."""
    hashes = np.empty(len(bounds), np.uint64)
    for line in range(len(bounds)):
        value = _FNV_OFFSET
        last = np.uint32(0)
        for place in range(bounds[line, 0], bounds[line, 1]):
            code = fold[codes[place]]
            if 48 <= code <= 57:
                code = np.uint32(48)
            elif code == 9 or code == 0xA0 or code == 0x3000:
                code = np.uint32(32)
            if code == last and (code == 48 or code == 32):
                continue
            value = (value ^ np.uint64(code)) * _FNV_PRIME
            last = code
        hashes[line] = max(mix(value), np.uint64(1))
    return hashes


def hash_lines(text: str) -> np.ndarray:
    """Hash of each line that is not blank, [lines] uint64; numbers and spaces do not tell lines apart."""
    analysis = analyse(text)
    return _hash_lines(analysis.codes, analysis.lines, fold_table())


def count_lines(documents: Iterable[tuple[str, str]]) -> HostLines:
    """Count the lines of documents by host.

    Args:
        documents: (host, text) of each; those without a host are left out.
    """
    hosts, lines = [], []
    for host, text in documents:
        if not host:
            continue
        found = np.append(np.unique(hash_lines(text)), _DOCUMENTS)
        lines.append(found)
        hosts.append(np.full(len(found), hash_host(host), np.uint64))
    if not hosts:
        return HostLines(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    flat_hosts, flat_lines = np.concatenate(hosts), np.concatenate(lines)
    return _sum_up(flat_hosts, flat_lines, np.ones(len(flat_hosts), np.int64))


def _sum_up(hosts: np.ndarray, lines: np.ndarray, documents: np.ndarray) -> HostLines:
    order = np.lexsort((lines, hosts))
    hosts, lines, documents = hosts[order], lines[order], documents[order]
    first = np.flatnonzero(np.append(True, (hosts[1:] != hosts[:-1]) | (lines[1:] != lines[:-1])))
    return HostLines(hosts[first], lines[first], np.add.reduceat(documents, first))


def merge_counts(counts: Sequence[HostLines]) -> HostLines:
    """The counts of several shards as one; the order of the shards does not matter."""
    full = [part for part in counts if len(part.hosts)]
    if not full:
        return HostLines(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    return _sum_up(*(np.concatenate([part[column] for part in full]) for column in range(3)))


def repeated_lines(counts: HostLines, min_documents: int, min_share: float) -> HostLines:
    """The lines that stand in at least so many documents and such a share of their host's documents.

    Args:
        counts: merged over all shards.
        min_documents: documents of a host that a line must stand in.
        min_share: share of the host's documents, in [0, 1].
    """
    if not len(counts.hosts):
        return counts
    totals = counts.lines == _DOCUMENTS
    known, sizes = counts.hosts[totals], counts.documents[totals]
    size = sizes[np.searchsorted(known, counts.hosts)]
    chosen = ~totals & (counts.documents >= min_documents) & (counts.documents >= min_share * size)
    return HostLines(counts.hosts[chosen], counts.lines[chosen], counts.documents[chosen])


def remove_lines(host: str, text: str, repeated: HostLines) -> tuple[str, int]:
    """The text without the lines that repeat over its host's pages, and how many they were.

    Args:
        host: of the document.
        text: of the document.
        repeated: of `repeated_lines`.
    """
    key = hash_host(host)
    first, last = np.searchsorted(repeated.hosts, key, "left"), np.searchsorted(repeated.hosts, key, "right")
    if not host or first == last:
        return text, 0
    known = repeated.lines[first:last]
    hashes = hash_lines(text)
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    gone = np.flatnonzero(known[places] == hashes)
    if not len(gone):
        return text, 0
    bounds = analyse(text).lines
    return drop_lines(text, [tuple(bounds[line]) for line in gone]), len(gone)


def drop_lines(text: str, bounds: Sequence[tuple[int, ...]]) -> str:
    """The text without lines, and without the blank lines that then stand in their place.

    Args:
        text: the text.
        bounds: a place inside each line, and more; in order.
    """
    parts = []
    done = 0
    for bound in bounds:
        start = text.rfind("\n", 0, bound[0]) + 1
        end = text.find("\n", bound[0])
        end = len(text) if end < 0 else end + 1
        # One of the two gaps around a dropped line goes with it.
        while end < len(text) and text[end] == "\n":
            end += 1
        parts.append(text[done:start])
        done = max(end, done)
    return "".join([*parts, text[done:]]).strip("\n")
