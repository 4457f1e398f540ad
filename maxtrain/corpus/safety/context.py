"""What stands before a number and says what it is."""

import re

_REACH = 40

_PHONE = re.compile(
    r"\b(?:tel(?:e(?:phone|fon[oe]?|foon|fax))?|t[ée]l(?:[ée](?:phone|fono))?|phones?|mobile?|mobil(?:telefon)?|cell(?:phone)?|fax|"
    r"call(?:back|ing|s)?(?: us| me)?(?: at| on)?|ring|dial|sms|whats ?app|hotline|helpline|contact|portable|handy|"
    r"m[óo]vil|celular|celulare|fono|tlf|gsm|rufnummer|telefonnummer|appelez|llam[ea]|puhelin|telefax|number is|"
    r"reach (?:me|us|him|her|them)(?: at| on)?)\b|"
    r"тел(?:ефон)?|моб|звон|τηλ|電話|电话|手機|手机|携帯|座机|傳真|传真|热线|熱線|致电|致電|微信|联系|聯絡|전화|연락처|휴대폰|फ़?ोन|"
    r"هاتف|تلفون|جوال|טלפון|โทร",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"\b(?:isbn|issn|ismn|doi|ean|upc|asin|order|tracking|invoice|version|ver|serial|part|rfc|pmid|pmc|arxiv|oclc|"
    r"lccn|patent|commit|revision|timestamp|build|id|sku|model|bug|issue|ticket|case|ref(?:erence)?)\b|"
    r"订单号|訂單號|单号|單號|编号|編號|流水号|版本|型号|注文番号|注文",
    re.IGNORECASE,
)
_CARD = re.compile(
    r"\b(?:cards?|credit|debit|visa|master ?card|amex|maestro|kreditkarte|kartennummer|karte|carte|tarjeta|carta|"
    r"cart[ãa]o|pan|kaart)\b|карт|信用卡|银行卡|銀行卡|卡号|卡號|カード|카드",
    re.IGNORECASE,
)
_ID = re.compile(
    r"\b(?:ssn|social security|itin|tax id|national id|id (?:card|no|number))\b|"
    r"身份证|身分證|身份證|证件|證件|证号|公民",
    re.IGNORECASE,
)
_VERSION = re.compile(
    r"\b(?:versions?|ver|v|rev(?:ision)?|releases?|build|section|sect|sec|chapter|clause|paragraph|article|rfc|oid|"
    r"table|figure|fig|upgraded?|firmware|kernel|assembly|abschnitt|kapitel|chapitre|secci[óo]n|versi[óo]n|версия)\b|"
    r"版本|版|第|章|节|節|バージョン|버전|§",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"\b(?:ip(?:v[46])?|hosts?|servers?|address(?:es)?|client|gateway|dns|ping|ssh|login|inet|peer|proxy|route|"
    r"listen|connect(?:ed|ing|ion)?|remote|adresse|netmask|subnet)\b|地址|服务器|伺服器|登录|主机|主機",
    re.IGNORECASE,
)


def _before(text: str, start: int, reach: int = _REACH) -> str:
    part = text[max(0, start - reach) : start]
    return part[part.rfind("\n") + 1 :]


def _last(pattern: re.Pattern[str], part: str) -> int:
    end = -1
    for match in pattern.finditer(part):
        end = match.end()
    return end


def is_phone_context(text: str, start: int) -> bool | None:
    """True after a word for telephones, False after one for other numbers, None after neither; the nearer counts."""
    part = _before(text, start)
    phone, other = _last(_PHONE, part), _last(_OTHER, part)
    if phone >= 0 and "=" in part[phone:-1]:
        phone = -1
    return None if phone == other == -1 else phone >= other


def is_card_context(text: str, start: int) -> bool:
    """Whether a word for payment cards stands before."""
    return _CARD.search(_before(text, start)) is not None


def is_id_context(text: str, start: int) -> bool:
    """Whether a word for personal ids stands before."""
    return _ID.search(_before(text, start)) is not None


def is_book_context(text: str, start: int) -> bool:
    """Whether a word for a number that is no one's stands before."""
    return _last(_OTHER, _before(text, start, 24)) >= 0


def is_version_context(text: str, start: int) -> bool:
    """Whether the dotted number is told to be a version or a section, or is part of a product's name."""
    part = _before(text, start)
    if part[-1:] in ("-", "/", "_") and part[-2:-1].isalpha():
        return True
    return _last(_VERSION, part) > _last(_ADDRESS, part)


def is_address_context(text: str, start: int) -> bool:
    """Whether a word for hosts stands before."""
    part = _before(text, start)
    return _last(_ADDRESS, part) > _last(_VERSION, part)
