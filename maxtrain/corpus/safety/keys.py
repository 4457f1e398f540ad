"""Keys and tokens: those with a vendor's mark, PEM blocks, and random words behind a name such as `api_key`.

The marks are those that the vendors document and that scanners such as gitleaks and GitHub's look for.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator

import re2

_MARKED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]{10,})?"
    r"|(?:AKIA|ASIA|AIDA|AROA|AGPA|ANPA|ANVA|AIPA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|gl(?:pat|ptt|dt|rt|cbt|oas)-[A-Za-z0-9_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,}"
    r"|(?:[srp]k|rk)_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}"
    r"|AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"
    r"|sk-(?:proj-|ant-(?:api|admin)\d\d-|svcacct-|or-v1-|None-)?[A-Za-z0-9_-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{37,}|xai-[A-Za-z0-9]{40,}|pplx-[A-Za-z0-9]{40,}"
    r"|npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|dop_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|lin_api_[A-Za-z0-9]{40}|sq0[a-z]{3}-[A-Za-z0-9_-]{22,}"
    r"|LTAI[A-Za-z0-9]{12,20}(?![A-Za-z0-9])|AKID[A-Za-z0-9]{32}(?![A-Za-z0-9])"
    r"|key-[a-f0-9]{32}(?![A-Za-z0-9])|EAACEdEose0cBA[A-Za-z0-9]+|dapi[a-f0-9]{32}(?![A-Za-z0-9])"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{58}"
    r")"
)
_MARKS = re2.compile(
    r"eyJ|A(?:K|S|I|R|G|N|B|C)[A-Z]A|gh[pousr]_|github_pat_|gl[a-z]+-|xox|xapp-|[srp]k_|whsec_|AIza|ya29|GOCSPX|sk-|hf_|gsk_|"
    r"r8_|xai-|pplx-|npm_|pypi-|SG\.|dop_v1|shp|lin_api_|sq0|LTAI|AKID|key-|EAACE|dapi|AGE-SECRET"
)
"""Beginnings of the marked keys: most words have none, and RE2 tells so ten times faster."""
_HOOK = re.compile(r"services/(T[A-Z0-9]{8,}/B[A-Z0-9]{8,}/[A-Za-z0-9]{20,})")
_BOT = re.compile(r"(?<!\d)\d{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])")
_NAMED = re.compile(
    r"(?:secret|token|passw(?:or)?d|passphrase|pwd|credential|api[_. -]?key|apikey|access[_. -]?key|auth[_. -]?key|"
    r"private[_. -]?key|client[_. -]?key|account[_. -]?key|signing[_. -]?key|encryption[_. -]?key|"
    r"bearer|auth|密钥|口令)"
    r"(?:[_. -]?(?:id|key|access|value|string|base64|hash))*[\"'`\]]?[ \t]*(?:=>|:=|[:=：]|is\b|[ \t])[ \t]*[\"'`]?$",
    re.IGNORECASE,
)
_PUBLIC = re.compile(r"public|csrf|xsrf|next|page|continuation|sync|cancel", re.IGNORECASE)
_VALUE = re.compile(r"[A-Za-z0-9+/_.~-]{16,512}={0,2}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-fA-F]+")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]{16,20000}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
)


def entropy(text: str) -> float:
    """Bits a character under the text's own frequencies (Shannon 1948)."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()) if text else 0.0


def is_random(value: str) -> bool:
    """Whether a word looks drawn at random: hexadecimal, or letters of both kinds and digits in no order."""
    if _UUID.fullmatch(value):
        return False
    if _HEX.fullmatch(value):
        return len(value) >= 32 and entropy(value) > 3.0 and not value.isdigit()
    digits = sum(character.isdigit() for character in value)
    if not 0 < digits < 0.7 * len(value) or entropy(value) < 3.5:
        return False
    # A path or a dotted name is words; random words change between kinds of characters all the time.
    kinds = [0 if c.isdigit() else 1 if c.isupper() else 2 if c.islower() else 3 for c in value]
    changes = sum(before != after for before, after in itertools.pairwise(kinds))
    groups = len(re.findall(r"\d+", value))
    if 1 in kinds and 2 in kinds and changes >= 0.4 * len(value):
        return True
    return changes >= 0.2 * len(value) and groups > 1 and digits >= 0.2 * len(value)


def find_keys(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Keys in a word of sixteen and more characters, as bounds in the text."""
    found = False
    for match in _MARKED.finditer(text, start, end) if _MARKS.search(text[start:end]) else ():
        if len(set(match[0][4:])) > 4 and any(c.isdigit() or c.isupper() for c in match[0][3:]):
            found = True
            yield match.span()
    hook = _HOOK.search(text, start, end) if "services/T" in text[start:end] else None
    if hook:
        found = True
        yield hook.span(1)
    if not found and start >= 9 and text[start - 1] == ":" and text[start : start + 2] == "AA":
        bot = _BOT.search(text, start - 12 if start > 12 else 0, end)
        if bot:
            found = True
            yield bot.span()
    if found:
        return
    part = text[max(0, start - 48) : start]
    named = _NAMED.search(part)
    if named is None or _PUBLIC.search(part[max(0, named.start() - 16) : named.end()]):
        return
    value = _VALUE.match(text, start)
    if value and text[value.end() : value.end() + 1] != "(" and is_random(value[0].rstrip("=.")):
        yield start, start + len(value[0].rstrip("."))


def find_pem(text: str) -> Iterator[tuple[int, int]]:
    """Blocks of private keys."""
    if "PRIVATE KEY" not in text:
        return
    for match in _PEM.finditer(text):
        yield match.span()
