"""Numbers that check themselves: payment cards, bank accounts, Chinese resident ids.

Sources: ISO/IEC 7812-1 (Luhn, issuer ranges), ISO 13616-1 (IBAN; country lengths of the SWIFT registry, release 99),
GB 11643-1999 (resident id; check digit by ISO 7064 MOD 11-2).
"""

import datetime
import re

_IBAN_LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        r"([A-Z]{2})(\d\d)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18FK18FO18FR27"
        "GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22"
        "MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28"
        "TL23TN24TR26UA29VA22VG24XK20YE30",
    )
}
_PROVINCES = frozenset(
    int(code)
    for code in re.findall(
        r"\S+",
        "11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81 82 83",
    )
)
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def luhn(digits: str) -> bool:
    """Whether the last digit checks the others."""
    total = 0
    for place, character in enumerate(reversed(digits)):
        value = ord(character) - 48
        if place % 2:
            value = 2 * value - 9 * (value > 4)
        total += value
    return total % 10 == 0


def issuer(digits: str) -> str | None:
    """Network of a card by its first digits and its length; None where no network issues such."""
    length, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    if digits[0] == "4":
        return "visa" if length in (13, 16, 19) else None
    if two in (34, 37):
        return "amex" if length == 15 else None
    if 51 <= two <= 55 or 2221 <= four <= 2720:
        return "mastercard" if length == 16 else None
    if 300 <= three <= 305 or three == 309 or two in (36, 38, 39):
        return "diners" if 14 <= length <= 19 else None
    if 3528 <= four <= 3589:
        return "jcb" if 16 <= length <= 19 else None
    if 2200 <= four <= 2204:
        return "mir" if 16 <= length <= 19 else None
    if four == 6011 or 644 <= three <= 649 or two == 65:
        return "discover" if 16 <= length <= 19 else None
    if two in (62, 81):
        return "unionpay" if 16 <= length <= 19 else None
    if two == 50 or 56 <= two <= 69:
        return "maestro" if 12 <= length <= 19 else None
    return None


def is_card(digits: str) -> bool:
    """Whether the digits are those of a payment card."""
    return 12 <= len(digits) <= 19 and len(set(digits)) > 1 and issuer(digits) is not None and luhn(digits)


def iban_length(text: str) -> int:
    """How many letters and digits the account number takes that begins a text without gaps; 0 where none does."""
    length = _IBAN_LENGTHS.get(text[:2].upper(), 0)
    if not length or len(text) < length:
        return 0
    account = text[:length].upper()
    if not account.isascii() or not account.isalnum() or not account[2:4].isdigit():
        return 0
    number = "".join(str(int(character, 36)) for character in account[4:] + account[:4])
    return length if int(number) % 97 == 1 else 0


def _is_birthday(year: int, month: int, day: int) -> bool:
    try:
        datetime.date(year, month, day)
    except ValueError:
        return False
    return 1880 <= year <= 2099


def is_chinese_id(digits: str) -> bool:
    """Whether 18 characters are a resident id (province, birthday, check digit), or 15 the older form without check."""
    if int(digits[:2]) not in _PROVINCES:
        return False
    if len(digits) == 15:
        return _is_birthday(1900 + int(digits[6:8]), int(digits[8:10]), int(digits[10:12]))
    if not _is_birthday(int(digits[6:10]), int(digits[10:12]), int(digits[12:14])):
        return False
    total = sum(int(character) * weight for character, weight in zip(digits, _ID_WEIGHTS, strict=False))
    return "10X98765432"[total % 11] == digits[17].upper()


def is_isbn(digits: str) -> bool:
    """Whether thirteen digits are a book's number: prefix 978 or 979 and the check digit of EAN-13."""
    if len(digits) != 13 or digits[:3] not in ("978", "979"):
        return False
    return sum((3 if place % 2 else 1) * int(character) for place, character in enumerate(digits)) % 10 == 0
