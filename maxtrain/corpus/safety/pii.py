"""The rule that replaces personal data and keys by the names of their kinds."""

import re
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import field_validator

from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Change, Rule
from maxtrain.corpus.safety import addresses, candidates, context, keys, numbers, phones
from maxtrain.corpus.text.analysis import analyse

KINDS = ("email", "phone", "id_number", "card", "iban", "ip_address", "mac_address", "plate", "key")
"""What is looked for, each of them a field of the rule."""

_OF_MACHINES = ("ip_address", "mac_address", "key")
_GROUPED = re.compile(r"\d(?:[ -]?\d){11,18}(?!\d)")
_CHINESE_ID = re.compile(r"(?<![0-9A-Za-z_])(?:\d{17}[\dXx]|\d{15})(?![0-9A-Za-z_])")
_SOCIAL = re.compile(r"(?<![\w-])(?!000|666)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w]|-\d)")
_PLATE = re.compile(
    r"(?<![A-Za-z0-9])[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-HJ-NP-Z][·•・ ]?"
    r"(?=[A-HJ-NP-Z]{0,5}\d)(?:[A-HJ-NP-Z0-9]{5,6})(?![A-Za-z0-9])"
)
_WIDE = {0xFF10 + digit: 0x30 + digit for digit in range(10)} | {0xFF20: 0x40, 0xFF0E: 0x2E, 0xFF0B: 0x2B, 0xFF0D: 0x2D}


class Span(NamedTuple):
    """Personal data in a text.

    Attributes:
        start: its first character.
        end: the first character after it.
        kind: one of `KINDS`.
    """

    start: int
    end: int
    kind: str


class Pii(Rule):
    """Personal data and keys give way to placeholders such as [EMAIL]."""

    name: ClassVar[str] = "pii"

    placeholder: str = "[{kind}]"
    """What replaces a piece; `{kind}` stands for EMAIL, PHONE, ID_NUMBER, CARD, IBAN, IP_ADDRESS, MAC_ADDRESS, PLATE or
    KEY."""
    email: bool = True
    """E-mail addresses."""
    phone: bool = True
    """Telephone numbers: international, Chinese, American, British, German, French; others with a word before them."""
    id_number: bool = True
    """Chinese resident ids (checked) and US social security numbers."""
    card: bool = True
    """Payment cards: issuer ranges and Luhn's check."""
    iban: bool = True
    """Bank accounts: countries' lengths and the check modulo 97."""
    ip_address: bool = True
    """IPv4 and IPv6 addresses of hosts; never loopback, masks or versions."""
    mac_address: bool = True
    """Hardware addresses of six pairs."""
    plate: bool = True
    """Chinese number plates."""
    key: bool = True
    """Keys and tokens: vendors' marks, JWT, PEM, random words behind names such as api_key."""
    obfuscated_email: bool = False
    """E-mail addresses written as `name at host dot com`."""
    private_ip: bool = False
    """Private and link-local addresses too."""
    documentation_ip: bool = True
    """The ranges reserved for examples too (RFC 5737, RFC 3849); in code they stay."""

    @field_validator("placeholder")
    @classmethod
    def _formats(cls, value: str) -> str:
        try:
            shown = value.format(kind="EMAIL")
        except (KeyError, IndexError, ValueError):
            raise ValueError(f"only {{kind}} may stand in braces, not {value!r}") from None
        if "@" in shown or any(character.isdigit() for character in shown):
            raise ValueError(f"no @ and no digits, which would be found as personal data again; got {value!r}")
        return value

    @cached_property
    def _placeholders(self) -> dict[str, str]:
        return {kind: self.placeholder.format(kind=kind.upper()) for kind in KINDS}

    def apply(self, document: Document) -> Change | None:
        """Replace what is found."""
        spans = self.find(document.text, lang=document.lang, is_code=document.is_code)
        if not spans:
            return None
        parts = []
        last = 0
        for start, end, kind in spans:
            parts += [document.text[last:start], self._placeholders[kind]]
            last = end
        return Change("".join(parts) + document.text[last:], len(spans))

    def find(self, text: str, *, lang: str = "und", is_code: bool = False) -> list[Span]:
        """Personal data in a text, in order, none over another.

        Args:
            text: the text.
            lang: its language; national formats of telephone numbers follow it.
            is_code: whether it is source code, where numbers need a word before them that says what they are.
        """
        found, wide = candidates.find_candidates(analyse(text).codes)
        if wide:
            text = text.translate(_WIDE)
            found, _ = candidates.find_candidates(analyse(text).codes)
        if not len(found) and not self.obfuscated_email and "PRIVATE KEY" not in text:
            return []
        return _Search(self, text, lang, is_code).run(found)


class _Search:
    """The search through one text: kinds that check themselves come first and keep their place."""

    def __init__(self, rule: Pii, text: str, lang: str, is_code: bool) -> None:
        self.rule = rule
        self.text = text
        self.lang = lang
        self.is_code = is_code
        self.spans: list[Span] = []
        self.taken = bytearray(len(text))

    def run(self, found: np.ndarray) -> list[Span]:
        rule, text = self.rule, self.text
        by_kind: list[list[tuple[int, int, int]]] = [[] for _ in range(candidates.NUM_KINDS)]
        for kind, start, end, digits in found.tolist():
            by_kind[kind].append((start, end, digits))
        if rule.key and "PRIVATE KEY" in text:
            for first, last in keys.find_pem(text):
                self._take(first, last, "key")
        steps: tuple[tuple[bool, int, Callable[[int, int], None], int], ...] = (
            (rule.key, candidates.TOKEN, self._key, 0),
            (rule.email, candidates.EMAIL, self._email, 0),
            (rule.iban, candidates.ACCOUNT, self._iban, 0),
            (rule.ip_address or rule.mac_address, candidates.COLONS, self._colons, 0),
            (rule.ip_address, candidates.DOTTED, self._dotted, 0),
            (rule.id_number, candidates.NUMBER, self._id_number, 9),
            (rule.card, candidates.NUMBER, self._card, 12),
            (rule.phone, candidates.NUMBER, self._phone, 7),
            (rule.plate and not self.is_code, candidates.PLATE, self._plate, 0),
        )
        for wanted, kind, step, least in steps:
            if wanted:
                for start, end, digits in by_kind[kind]:
                    if digits >= least:
                        step(start, end)
        if rule.obfuscated_email:
            for first, last in addresses.find_obfuscated(text):
                self._take(first, last, "email")
        return sorted(self.spans)

    def _take(self, start: int, end: int, kind: str) -> None:
        if not any(self.taken[start:end]):
            mark = b"\x02" if kind in _OF_MACHINES else b"\x01"
            self.taken[start:end] = mark * (end - start)
            self.spans.append(Span(start, end, kind))

    def _is_near(self, start: int, end: int) -> bool:
        """Whether data of a person stands near."""
        return self.taken.find(1, max(0, start - 80), min(len(self.text), end + 80)) >= 0

    def _key(self, start: int, end: int) -> None:
        for first, last in keys.find_keys(self.text, start, end):
            self._take(first, last, "key")

    def _email(self, start: int, end: int) -> None:
        if addresses.is_email(self.text, start, end):
            self._take(start, end, "email")

    def _iban(self, start: int, end: int) -> None:
        text = self.text
        places = [place for place in range(start, end) if text[place] not in " -"]
        length = numbers.iban_length("".join(text[place] for place in places))
        if not length:
            return
        last = places[length - 1] + 1
        after = text[last : last + 1]
        if not (after.isascii() and after.isalnum()) and after != "_":
            self._take(start, last, "iban")

    def _colons(self, start: int, end: int) -> None:
        documentation = self.rule.documentation_ip and not self.is_code
        found = addresses.find_in_colons(
            self.text, start, end, private=self.rule.private_ip, documentation=documentation
        )
        if found and getattr(self.rule, found[0]):
            self._take(found[1], found[2], found[0])

    def _dotted(self, start: int, end: int) -> None:
        documentation = self.rule.documentation_ip and not self.is_code
        if addresses.is_ipv4(self.text, start, end, private=self.rule.private_ip, documentation=documentation):
            self._take(start, end, "ip_address")

    def _id_number(self, start: int, end: int) -> None:
        text = self.text
        for match in _CHINESE_ID.finditer(text, start, min(len(text), end + 2)):
            first, last = match.span()
            if last > end + 1 or self._is_decimal(first, last):
                continue
            known = context.is_id_context(text, first)
            if numbers.is_chinese_id(match[0]) and (known or len(match[0]) == 18):
                self._take(first, last, "id_number")
        if "-" not in text[start:end]:
            return
        for match in _SOCIAL.finditer(text, start, min(len(text), end + 2)):
            if match.end() <= end and (not self.is_code or context.is_id_context(text, match.start())):
                self._take(*match.span(), "id_number")

    def _plate(self, start: int, _: int) -> None:
        match = _PLATE.match(self.text, start)
        if match:
            self._take(*match.span(), "plate")

    def _is_decimal(self, first: int, last: int) -> bool:
        text = self.text
        before, after = text[max(0, first - 2) : first], text[last : last + 2]
        if len(before) == 2 and before[1] in ".," and before[0].isdigit() and before[1] == ".":
            return True
        if before and (before[-1] == "_" or (before[-1].isascii() and before[-1].isalnum())):
            return True
        if after and (after[0] == "_" or (after[0].isascii() and after[0].isalnum())):
            return True
        return len(after) == 2 and after[0] == "." and after[1].isdigit()

    def _card(self, start: int, end: int) -> None:
        text = self.text
        for match in _GROUPED.finditer(text, start, end):
            first, last = match.span()
            digits = match[0].replace(" ", "").replace("-", "")
            if (
                phones.is_formula(text, first, last)
                or self._is_decimal(first, last)
                or not numbers.is_card(digits)
                or numbers.is_isbn(digits)
            ):
                continue
            known = context.is_card_context(text, first)
            plain = digits == match[0]
            if not known and (len(digits) < 14 or self.is_code or (not plain and not _is_grouped(match[0]))):
                continue
            if not known and context.is_book_context(text, first):
                continue
            self._take(first, last, "card")

    def _phone(self, start: int, end: int) -> None:
        if self.taken.find(0, start, end) < 0:
            return
        near = not self.is_code and self._is_near(start, end)
        for first, last in phones.find_phones(self.text, start, end, self.lang, near=near, cautious=self.is_code):
            self._take(first, last, "phone")


def _is_grouped(number: str) -> bool:
    """Whether the digits are grouped as on a card: by fours, or 4-6-4 and 4-6-5."""
    gap = " " if " " in number else "-"
    lengths = [len(group) for group in number.split(gap)]
    return lengths in ([4, 6, 4], [4, 6, 5]) or (
        all(length == 4 for length in lengths[:-1]) and 1 <= lengths[-1] <= 4 and gap * 2 not in number
    )
