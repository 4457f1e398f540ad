"""E-mail, IP and MAC addresses, among the candidates of `candidates`."""

import ipaddress
import re
from collections.abc import Iterator

from maxtrain.corpus.safety.context import is_address_context, is_version_context

_ENDING = re.compile(r"[^\W\d_]{2,24}|xn--[a-z0-9-]+", re.IGNORECASE)
_FILES = frozenset(
    re.findall(
        r"\S+",
        "png jpg jpeg gif svg webp bmp ico css scss less js jsx ts tsx mjs json html htm xml xhtml yml yaml toml txt "
        "pdf tar gz bz2 xz whl exe dll service socket target timer mount slice scope device conf cfg ini log java cpp "
        "hpp rb class jar dylib patch diff tsv csv tex lua sql ipynb swift kt vue local localhost lan localdomain",
    )
)
_OBFUSCATED = re.compile(
    r"(?<![\w.+-])[a-z0-9][a-z0-9._+-]{0,40}"
    r"(?:\s?[\[({<]\s?(?:at|@|ät|arroba)\s?[\])}>]\s?|\s(?:at|AT)\s|\s?＠\s?|\s@\s)"
    r"[a-z0-9-]{1,40}"
    r"(?:(?:\s?[\[({<]\s?(?:dot|\.|punkt|point|punto)\s?[\])}>]\s?|\s(?:dot|DOT|punkt)\s|\.)[a-z0-9-]{2,30}){1,4}"
    r"(?![\w-])",
    re.IGNORECASE,
)
_SPELT = re.compile(r"(?<![\w])(?:[a-z0-9._+-] ){2,40}@(?: [a-z0-9-])+(?: \.(?: [a-z0-9-])+)+(?![\w])", re.IGNORECASE)
_COMMON = frozenset(
    re.findall(
        r"\S+",
        "com org net edu gov mil int info biz io dev app co uk de fr it es nl be ch at pl cz ru cn tw hk jp kr in br "
        "mx ar au ca nz se no dk fi ie pt gr tr il za eu us me tv cc ai example test",
    )
)
_PAIRS = re.compile(r"[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}", re.IGNORECASE)


def is_email(text: str, start: int, end: int) -> bool:
    """Whether the candidate is someone's address, not a file's name, a unit of systemd or part of a URL."""
    address = text[start:end]
    local, _, host = address.partition("@")
    ending = host.rpartition(".")[2]
    if not _ENDING.fullmatch(ending) or ending.lower() in _FILES or ".." in address or not local[-1:].strip("."):
        return False
    if any(not label or label[0] == "-" or label[-1] == "-" for label in host.split(".")):
        return False
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before.endswith(("@", "//")) or after[:1] == "@" or after[:1] == "(":
        return False
    if before[-1:] == ":" and "//" in text[max(0, start - 40) : start].rpartition(" ")[2]:
        return False
    return not (local == "git" and after[:1] in (":", "/"))


def find_obfuscated(text: str) -> Iterator[tuple[int, int]]:
    """Addresses written out, as in name (at) host (dot) com, or letter by letter."""
    for match in _OBFUSCATED.finditer(text):
        ending = re.split(r"[^a-z0-9]+", match[0].lower())[-1]
        if ending in _COMMON:
            yield match.span()
    for match in _SPELT.finditer(text):
        yield match.span()


def _is_wanted_4(numbers: list[int], private: bool, documentation: bool) -> bool:
    """Whether an address is in a range that is looked for (RFC 1918, 3927, 5737, 6598, 6890)."""
    first, second, third, _ = numbers
    if first in (0, 127) or first >= 224:
        return False
    if (first, second, third) in ((192, 0, 0), (192, 0, 2), (198, 51, 100), (203, 0, 113)):
        return documentation
    is_private = first == 10 or (first, second) in ((192, 168), (169, 254))
    if is_private or (first == 172 and 16 <= second < 32) or (first == 100 and 64 <= second < 128):
        return private
    return True


def _is_wanted_6(address: ipaddress.IPv6Address, private: bool, documentation: bool) -> bool:
    if address.is_unspecified or address.is_loopback or address.is_multicast:
        return False
    if any(address in network for network in _DOCUMENTATION_6):
        return documentation
    return private or not (address.is_private or address.is_link_local or address.is_reserved)


_DOCUMENTATION_6 = tuple(ipaddress.ip_network(name) for name in ("2001:db8::/32", "3fff::/20"))
"""RFC 3849, RFC 9637."""


def is_ipv4(text: str, start: int, end: int, *, private: bool = False, documentation: bool = True) -> bool:
    """Whether four dotted numbers are a host's address, not a version, a section or a network.

    Args:
        text: the text.
        start: where the first number begins.
        end: where the last ends.
        private: private and link-local ones count; loopback and masks never do.
        documentation: the ranges of RFC 5737 count.
    """
    groups = text[start:end].split(".")
    if any(len(group) > 1 and group[0] == "0" for group in groups):
        return False
    numbers = [int(group) for group in groups]
    if (
        max(numbers) > 255
        or numbers[0] == 0
        or numbers[1:] == [0, 0, 0]
        or (numbers[3] == 0 and text[end : end + 1] == "/")
    ):
        return False
    if text[max(0, start - 1) : start] == "-" or (text[end : end + 1] == "-" and text[end + 1 : end + 2].isalnum()):
        return False
    if not _is_wanted_4(numbers, private, documentation):
        return False
    if is_version_context(text, start):
        return False
    # Of addresses at random one in a hundred has three numbers under 32 and none over 99; versions nearly always do.
    if max(numbers) >= 100 or sum(number >= 32 for number in numbers) > 1:
        return True
    return is_address_context(text, start) and not text[end : end + 2].startswith(". ")


def find_in_colons(
    text: str, start: int, end: int, *, private: bool = False, documentation: bool = True
) -> tuple[str, int, int] | None:
    """The IPv6 or MAC address in a run of hexadecimal digits, colons and dashes.

    Returns:
        `ip_address` or `mac_address`, start and end; None where it is a time, a fingerprint or a scope of C++.
    """
    while end > start and text[end - 1] == "-":
        end -= 1
    if text[end - 1] == ":" and not text[start:end].endswith("::"):
        end -= 1
    run = text[start:end]
    after = text[end : end + 1]
    if after == "_" or (after.isascii() and after.isalpha()):
        return None
    if _PAIRS.fullmatch(run):
        plain = run.lower().replace("-", ":")
        is_one = len(set(plain.split(":"))) > 1
        return ("mac_address", start, end) if is_one else None
    if run.endswith("::") and after == "/":
        return None
    groups = run.split(":")
    filled = [group for group in groups if group]
    if "-" in run or len(run) > 39 or len(filled) < 3 or all(len(group) <= 2 for group in groups):
        return None
    try:
        address = ipaddress.IPv6Address(run)
    except ValueError:
        return None
    if not any(character.isdigit() for character in run):
        return None
    return ("ip_address", start, end) if _is_wanted_6(address, private, documentation) else None
