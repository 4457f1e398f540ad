"""Rules about where a document comes from: its licence, its host, and who asked not to be used."""

import contextlib
import hashlib
import re
from functools import cache, cached_property
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import field_validator

from maxtrain.core.errors import UserError
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule

_UNKNOWN = frozenset(("", "unknown", "none", "null", "n/a", "noassertion", "other", "see license", "proprietary?"))
_JOINERS = re.compile(r"\s*(?:/|,|;)\s*|\s+(?:and|AND|with|WITH)\s+")
_CHOICES = re.compile(r"\s+(?:or|OR)\s+|\|")


def _pattern(glob: str) -> str:
    return "".join(".*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", glob.strip()))


@cache
def _any_of(globs: tuple[str, ...]) -> re.Pattern[str] | None:
    if not globs:
        return None
    return re.compile("|".join(f"(?:{_pattern(glob)})" for glob in globs), re.IGNORECASE)


def _fits(licence: str, patterns: re.Pattern[str] | None) -> bool:
    return patterns is not None and patterns.fullmatch(licence.strip("() ")) is not None


class Licence(Rule):
    """Documents under licences that are not wanted are dropped, by patterns of SPDX names such as CC-BY-* or GPL-*."""

    name: ClassVar[str] = "licence"

    allow: tuple[str, ...] = ()
    """Patterns of which one must fit; none allows all. Of `MIT or GPL-2.0` one choice suffices, of `MIT and X` all
    parts must fit."""
    deny: tuple[str, ...] = ()
    """Patterns that no part may fit; of choices one that is free of them suffices."""
    unknown: Literal["keep", "drop"] = "keep"
    """What becomes of documents whose licence is empty or called unknown."""

    def apply(self, document: Document) -> Drop | None:
        """Drop a document by its licence."""
        licence = document.licence.strip()
        if licence.lower() in _UNKNOWN:
            return Drop("licence_unknown") if self.unknown == "drop" else None
        if not self.allow and not self.deny:
            return None
        choices = [[part for part in _JOINERS.split(choice) if part] for choice in _CHOICES.split(licence)]
        free = [parts for parts in choices if not any(_fits(part, _any_of(self.deny)) for part in parts)]
        if not free:
            return Drop("licence_denied")
        if not self.allow or _fits(licence, _any_of(self.allow)):
            return None
        if any(all(_fits(part, _any_of(self.allow)) for part in parts) for parts in free):
            return None
        return Drop("licence_not_allowed")


def split_url(url: str) -> tuple[str, str]:
    """Host in lower case, and the URL without scheme, port, `www.` and fragment: what is compared."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = (parts.hostname or "").rstrip(".").lower()
    except ValueError:
        return "", url
    if host and not host.isascii():
        with contextlib.suppress(UnicodeError):
            host = host.encode("idna").decode()
    rest = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    return host, host.removeprefix("www.") + rest


@cache
def _entries(path: str, field: str) -> tuple[str, ...]:
    """Lines of a list; empty ones and comments left out; a hosts file's `0.0.0.0 name` is read as the name.

    Raises:
        UserError: the file is missing or not text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{field}: no such file: {path}") from None
    except UnicodeDecodeError:
        raise UserError(f"{field}: {path} is not UTF-8") from None
    lines = (re.split(r"\s+#|^#", line)[0].strip() for line in text.splitlines())
    return tuple(re.sub(r"^(?:0\.0\.0\.0|127\.0\.0\.1)\s+", "", line) for line in lines if line)


def _is_below(host: str, hosts: frozenset[str]) -> bool:
    """Whether a host or a domain above it is listed."""
    while host:
        if host in hosts:
            return True
        host = host.partition(".")[2]
    return False


class Domains(Rule):
    """Documents from blocked hosts and URLs are dropped; a blocked domain blocks all below it."""

    name: ClassVar[str] = "domains"

    block: tuple[str, ...] = ()
    """Hosts (`example.com`), or patterns of URLs without scheme (`example.com/ads/*`, `*/wp-login*`)."""
    block_files: tuple[str, ...] = ()
    """Files with one such entry a line; hosts files are read too."""
    allow: tuple[str, ...] = ()
    """Hosts that are kept whatever blocks a domain above them."""
    missing: Literal["keep", "drop"] = "keep"
    """What becomes of documents without a URL."""

    @field_validator("block", "allow")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not entry.strip() or entry.strip() in ("*", ".") for entry in value):
            raise ValueError("an entry is empty or fits everything")
        return value

    @cached_property
    def _blocked(self) -> tuple[frozenset[str], re.Pattern[str] | None]:
        entries = list(self.block)
        for path in self.block_files:
            entries += _entries(path, "domains.block_files")
        hosts, patterns = set(), []
        for entry in entries:
            plain = re.sub(r"^[a-z]+://", "", entry.strip().lower()).rstrip("/")
            if "/" in plain or "*" in plain.removeprefix("*."):
                patterns.append(plain.removeprefix("www."))
            elif plain:
                hosts.add(split_url(plain.removeprefix("*.").removeprefix("."))[0].removeprefix("www."))
        return frozenset(hosts), _any_of(tuple(sorted(patterns)))

    @cached_property
    def _allowed(self) -> frozenset[str]:
        return frozenset(split_url(entry)[0].removeprefix("www.") for entry in self.allow)

    def apply(self, document: Document) -> Drop | None:
        """Drop a document by its URL."""
        if not document.url:
            return Drop("no_url") if self.missing == "drop" else None
        hosts, patterns = self._blocked
        if not hosts and patterns is None:
            return None
        host, address = split_url(document.url)
        if _is_below(host, self._allowed):
            return None
        if _is_below(host, hosts):
            return Drop("host_blocked")
        if patterns is not None and patterns.fullmatch(address):
            return Drop("url_blocked")
        return None


class OptOut(Rule):
    """Documents whose owners asked not to be used are dropped: by id, URL, host, or hash of id, URL or text."""

    name: ClassVar[str] = "opt_out"

    files: tuple[str, ...] = ()
    """Lists with one entry a line: an id, a URL, a host, or `sha256:` and the hash of an id, a URL or a whole text."""
    entries: tuple[str, ...] = ()
    """Such entries in the recipe itself."""
    keep_noai: bool = True
    """False drops documents that the reader has marked `noai` (by page or by header) in `scores["noai"]`."""

    @cached_property
    def _listed(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """Plain entries, hosts, hashes."""
        entries = [entry.strip() for entry in self.entries]
        for path in self.files:
            entries += _entries(path, "opt_out.files")
        plain, hosts, hashes = set(), set(), set()
        for entry in entries:
            lower = entry.lower()
            if lower.startswith("sha256:"):
                if not re.fullmatch(r"sha256:[0-9a-f]{64}", lower):
                    raise UserError(f"opt_out: sha256: takes 64 hexadecimal digits; got {entry!r}")
                hashes.add(lower.removeprefix("sha256:"))
                continue
            plain.add(entry)
            if "://" in entry or "/" in entry:
                plain.add(split_url(entry)[1])
            elif "." in entry and " " not in entry:
                hosts.add(split_url(entry)[0].removeprefix("www."))
        return frozenset(plain), frozenset(hosts), frozenset(hashes)

    def apply(self, document: Document) -> Drop | None:
        """Drop a document that is listed."""
        if not self.keep_noai and document.scores.get("noai"):
            return Drop("noai")
        plain, hosts, hashes = self._listed
        if not (plain or hosts or hashes):
            return None
        names = {name for name in (document.doc_id, document.original_id, document.url) if name}
        host = ""
        if document.url:
            host, address = split_url(document.url)
            names.add(address)
        if not plain.isdisjoint(names):
            return Drop("opted_out")
        if host and _is_below(host, hosts):
            return Drop("host_opted_out")
        if hashes and any(_sha256(value) in hashes for value in (*sorted(names), document.text)):
            return Drop("opted_out")
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
