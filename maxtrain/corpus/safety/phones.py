"""Telephone numbers: Chinese, American, British, German and French formats by shape, others by `phonenumbers`.

A number that is plainly written as one (+, brackets, the groups of its country) needs nothing more; bare digits and
groups that other numbers have too need a word such as "call" before them, or an address beside them.
"""

import itertools
import re

import phonenumbers

from maxtrain.corpus.safety.context import is_phone_context

_CHINA = re.compile(
    r"(?P<prefix>(?:[(（](?:\+|00)?86[)）]|(?:\+|00)86|86(?=[- ]))[-  ]?)?"
    r"1[3-9]\d(?P<gap>[- ]?)\d{4}(?P=gap)\d{4}(?!\d)"
)
_CHINA_FIXED = re.compile(
    r"(?:(?:\+|00)86[- ]?)?(?:[(（]0(?:10|2\d|[3-9]\d\d)[)）][- ]?|0(?:10|2\d|[3-9]\d\d)[- ])"
    r"[2-9]\d{2,3}[- ]?\d{4}(?!\d)"
    r"(?:-\d{1,5}(?!\d))?|[48]00-\d{3}-?\d{4}(?!\d)|[48]00-\d{4}-\d{3}(?!\d)"
)
_AMERICA = re.compile(
    r"(?P<prefix>(?:\+|00)?1[-. ]?)?(?:(?P<bracket>\()[2-9]\d\d\)[-. ]?|[2-9]\d\d(?P<gap>[-. ]))[2-9]\d\d"
    r"(?(gap)(?P=gap)|[-. ])\d{4}(?!\d)"
)
_AMERICA_BARE = re.compile(r"1?[2-9]\d\d[2-9]\d{6}")
_FRANCE = re.compile(r"0[1-9](?P<gap>[ .\- ])\d\d(?:(?P=gap)\d\d){3}(?!\d)")
_BRITAIN = re.compile(
    r"0(?:\d\d \d{4} \d{4}|\d{3} \d{3} \d{4}|\d{4} \d{6}|7\d{3} \d{3} \d{3})(?!\d)|"
    r"\(0\d{2,4}\) ?\d{3,4}[ -]?\d{3,4}(?!\d)"
)
_NATIONAL = re.compile(r"\(?0\d{1,4}(?:\)[ /-]?| ?[/-] ?| )\d{2,9}(?:[ .-]\d{2,8}){0,4}(?!\d)")
_PLUS = re.compile(r"\+[(]?\d(?:[-. ()/ \u2011]{0,2}\d){6,14}(?!\d)")
_GROUPS = re.compile(r"[ .\-()/ ]")
_OTHER = re.compile(
    r"(?:1[5-9]|20)\d\d([-./ ])\d{1,2}\1\d{1,2}(?!\d)|\d{1,2}([-./])\d{1,2}\2(?:1[5-9]|20)\d\d(?!\d)"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?![.\d])(?:/\d{1,2})?|\d+\.\d+(?![.\d])|\d{5}-\d{4}(?!\d)"
)
"""A date, four dotted numbers, a decimal number, an American postal code."""
_UNIT = re.compile(
    r"[  ]?(?:字节|位元組|bytes?\b|[KMGT]?i?B\b|元|个|個|行|次|美元|人|年|円|ms\b|ns\b|us\b|bits?\b|Hz\b|%|％)"
)
_LARGEST = ("2147483647", "2147483648", "4294967295", "4294967296")
_LOCAL = re.compile(r"\d{3}[- ]\d{4}(?!\d)")
_REGIONS = {
    "zh": ("CN", "TW", "HK"),
    "en": ("US", "GB", "AU", "IN"),
    "de": ("DE", "AT", "CH"),
    "fr": ("FR", "BE", "CH"),
    "es": ("ES", "MX", "AR", "CO"),
    "it": ("IT",),
    "pt": ("BR", "PT"),
    "ja": ("JP",),
    "ko": ("KR",),
    "ru": ("RU",),
    "uk": ("UA",),
    "pl": ("PL",),
    "nl": ("NL", "BE"),
    "tr": ("TR",),
    "ar": ("EG", "SA"),
    "hi": ("IN",),
    "vi": ("VN",),
    "th": ("TH",),
    "id": ("ID",),
    "sv": ("SE",),
    "da": ("DK",),
    "cs": ("CZ",),
}
_SPACED = ("en", "fr", "und")
"""Languages in whose texts groups with spaces alone make a number."""
_ANY = ("US", "GB", "DE", "FR", "ES", "IT", "JP", "IN", "BR")


def is_formula(text: str, start: int, end: int) -> bool:
    """Whether the signs of TeX stand around."""
    before, after = text[start - 1 : start], text[end : end + 1]
    return before in ("$", "^", "\\") or after in ("$", "^", "\\") or (before == "{" and after == "}")


def _is_free(text: str, start: int, end: int) -> bool:
    """Whether no further digits or letters belong to the number."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if is_formula(text, start, end):
        return False
    if before:
        last = before[-1]
        if (last.isascii() and last.isalnum()) or last == "_":
            return False
        if last in ".-/+*^=," and before[:1].isdigit() and len(before) == 2 and last != ",":
            return False
    if after:
        first = after[0]
        if (first.isascii() and first.isalnum()) or first == "_":
            return False
        if first in ".-/" and after[1:].isdigit():
            return False
    return True


def _is_alone(text: str, start: int, end: int, run: tuple[int, int]) -> bool:
    """Whether the run of digits holds nothing else."""
    return not any(character.isdigit() for character in text[run[0] : start] + text[end : run[1]])


def _check(number: str, regions: tuple[str | None, ...]) -> int:
    """2 where a number is one of a region's, 1 where it could be by its length, 0 where it is none."""
    best = 0
    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(parsed):
            return 2
        best = max(best, int(phonenumbers.is_possible_number(parsed)))
    return best


def _international(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The number behind a plus: as many groups as make one, unissued ones too where they are written in groups."""
    match = _PLUS.match(text, start, end)
    if match is None:
        return None
    stop = match.end()
    possible = None
    while stop - start >= 8:
        number = text[start:stop]
        status = _check(number, (None,))
        if status == 2:
            return start, stop
        if status == 1 and possible is None and _GROUPS.search(number):
            possible = start, stop
        cut = max(number.rfind(gap) for gap in "-. ()/ ")
        if cut < 0:
            break
        stop = start + cut
        while stop > start and not text[stop - 1].isdigit():
            stop -= 1
    return possible


def _with_bracket(text: str, start: int, end: int) -> int:
    """Start with the bracket that the number closes."""
    if start and text[start - 1] in "(（" and re.search(r"[)）]", text[start:end]):
        return start - 1
    return start


def find_phones(
    text: str, start: int, end: int, lang: str, *, near: bool = False, cautious: bool = False
) -> list[tuple[int, int]]:
    """Telephone numbers within a run of digits, as bounds in the text.

    Args:
        text: the text.
        start: where the run begins: a digit, a plus or a bracket.
        end: where it ends.
        lang: tag of the text's language; national formats are told by it.
        near: whether other personal data stands near.
        cautious: demand a word for telephones, as in source code.
    """
    while (other := _OTHER.match(text, start + (text[start] == "("), end)) is not None:
        start = other.end()
        while start < end and not (text[start].isdigit() or text[start] in "+("):
            start += 1
        if end - start < 7:
            return []
    run = text[start:end]
    context = is_phone_context(text, start)
    if cautious and not context:
        return []
    language = lang.partition("-")[0]
    told = bool(context) or (near and context is None) or text.strip() == run.strip()
    found = []
    if "+" in run[:2]:
        opening = start + run.index("+")
        span = _international(text, opening, end)
        if span and (_is_free(text, opening, span[1]) or text[opening - 1 : opening] in "(（"):
            found.append((_with_bracket(text, *span), span[1]))
    place = found[-1][1] if found else start
    return found + _national(text, place, (start, end), language, context, told)


def _national(
    text: str, place: int, run: tuple[int, int], language: str, context: bool | None, told: bool
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    opening = place - 1 if text[place - 1 : place] in ("(", "（") else place
    for match in _CHINA.finditer(text, opening, run[1]):
        first, last = match.span()
        plain = not match["prefix"] and not match["gap"]
        if not _is_free(text, first, last) or context is False:
            continue
        if plain and (not (told or language == "zh" or _is_among_han(text, first, last)) or _UNIT.match(text, last)):
            continue
        if match["gap"] == " " and not (told or _is_alone(text, first, last, run)):
            continue
        found.append((first, last))
    if found or context is False:
        return found
    patterns = [_AMERICA]
    if language in ("zh", "und") or context:
        patterns.append(_CHINA_FIXED)
    if language == "fr" or context:
        patterns.append(_FRANCE)
    if language == "en" or context:
        patterns.append(_BRITAIN)
    for pattern in patterns:
        for match in pattern.finditer(text, place, run[1]):
            first, last = match.span()
            spaced = " " in match[0] and "(" not in match[0]
            if not _is_free(text, first, last):
                continue
            if not told and spaced and not (language in _SPACED and _is_alone(text, first, last, run)):
                continue
            found.append((first, last))
        if found:
            return _drop_series(text, found)
    return _by_region(text, place, run, language, context, told)


def _drop_series(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out numbers that only count, such as 01 02 03 04 05."""
    kept = []
    for first, last in spans:
        groups = [int(group) for group in re.findall(r"\d+", text[first:last])]
        steps = {after - before for before, after in itertools.pairwise(groups)}
        if len(groups) < 4 or len(steps) > 1:
            kept.append((first, last))
    return kept


def _is_among_han(text: str, start: int, end: int) -> bool:
    around = text[max(0, start - 24) : start] + text[end : end + 12]
    return any("一" <= character <= "鿿" for character in around)


def _by_region(
    text: str, place: int, run: tuple[int, int], language: str, context: bool | None, told: bool
) -> list[tuple[int, int]]:
    regions = _REGIONS.get(language, ())
    found = []
    for match in _NATIONAL.finditer(text, place, run[1]):
        first, last = match.span()
        digits = sum(character.isdigit() for character in match[0])
        if not _is_free(text, first, last) or digits < (7 if told else 9) or digits > 15:
            continue
        if not told and not _is_alone(text, first, last, run):
            continue
        status = _check(match[0], regions if regions and not context else (*regions, *_ANY))
        if status == 2 or (status and context):
            found.append((first, last))
    if found or not (told or (language == "fr" and text[place : place + 2] in ("06", "07"))):
        return found
    number = text[place : run[1]].strip(" .-/")
    first = text.index(number, place) if number else place
    last = first + len(number)
    if not number or not _is_free(text, first, last):
        return []
    if number in _LARGEST:
        return []
    if _AMERICA_BARE.fullmatch(number) and _check(number, ("US",)) == 2:
        return [(first, last)]
    if context and _LOCAL.fullmatch(number):
        return [(first, last)]
    if (
        (context or number[0] == "0")
        and number.count("(") == number.count(")")
        and 8 <= sum(character.isdigit() for character in number) <= 15
        and _check(number, (*regions, *_ANY) if context else regions) == 2
    ):
        return [(first, last)]
    return []
