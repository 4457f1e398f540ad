"""Word lists: how they are written, where they lie, and what a list becomes for the matcher."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from maxtrain.core.errors import UserError
from maxtrain.corpus.text.classes import fold_table

CATEGORIES = ("sexual", "violent", "hate", "profane")
"""What a term tells of; lists of a user may name others."""
LISTED = "listed"
"""Category of a user's terms that state none."""
_HEAD = re.compile(r"\[\s*([a-z_]+)(?:\s+([123]))?\s*\]")
_GAPS = re.compile(r"[\s\-_]+")
_ARABIC = {"أ": "ا", "إ": "ا", "آ": "ا", "ى": "ي", "ة": "ه", "ё": "е"}


class Term(NamedTuple):
    """A word or phrase of a list.

    Attributes:
        text: as written; `*` at the end stands for any ending.
        lang: language whose texts it is looked for in, empty for all.
        category: what it tells of; `innocent` keeps shorter terms inside it from counting.
        severity: 1 tells little alone, 2 vulgar, 3 explicit.
    """

    text: str
    lang: str
    category: str
    severity: int


def data_folder() -> Path:
    """Folder of the built-in lists: in the package where it was built in, else in the checkout.

    Raises:
        UserError: neither has it.
    """
    here = Path(__file__).parent
    for folder in (here / "data", here.parents[2] / "data" / "safety"):
        if (folder / "toxicity").is_dir():
            return folder
    raise UserError("the built-in word lists (data/safety) are not installed; give `lists` and set built_in: false")


@cache
def fold() -> np.ndarray:
    """Each code point as it is compared, [1,114,112] uint32: lower case, simplified, of normal width."""
    table = fold_table().copy()
    for code in range(0xFF01, 0xFF5F):
        table[code] = table[code - 0xFEE0]
    for pair in (data_folder() / "simplified.txt").read_text(encoding="utf-8").split():
        for place in range(0, len(pair), 2):
            table[ord(pair[place])] = ord(pair[place + 1])
    for letter, plain in _ARABIC.items():
        table[ord(letter)] = ord(plain)
    table[0x3000] = table[0xA0] = 32
    return table


@cache
def _folded(character: str) -> str:
    return chr(fold()[ord(character)])


def folded(text: str) -> str:
    """A text as it is compared."""
    return "".join(map(_folded, text))


def parse_terms(text: str, lang: str, where: str) -> list[Term]:
    """Read a list in the form of `data/safety/toxicity`.

    Raises:
        UserError: a part's head is not one.
    """
    found = []
    category, severity = LISTED, 2
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            head = _HEAD.fullmatch(line.strip())
            if head is None:
                raise UserError(
                    f"{where}:{number}: a part begins with [category severity], severity 1, 2 or 3; got {line!r}"
                )
            category, severity = head[1], int(head[2] or 2)
            continue
        found += [Term(term, lang, category, severity) for part in line.split(",") if (term := part.strip())]
    return found


@cache
def built_in_terms() -> tuple[Term, ...]:
    """The terms of all built-in lists."""
    found: list[Term] = []
    for path in sorted((data_folder() / "toxicity").glob("*.txt")):
        found += parse_terms(path.read_text(encoding="utf-8"), path.stem, str(path))
    return tuple(found)


@cache
def load_terms(path: str) -> tuple[Term, ...]:
    """Read a user's list: `LANG.txt` in our form (else: all languages), or JSON (terms by language, or a list).

    Raises:
        UserError: it is missing or not of these forms.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"toxicity.lists: no such file: {path}") from None
    except UnicodeDecodeError:
        raise UserError(f"toxicity.lists: {path} is not UTF-8") from None
    if file.suffix != ".json":
        return tuple(parse_terms(text, file.stem if re.fullmatch(r"[a-z]{2,3}", file.stem) else "", path))
    try:
        data = json.loads(text)
    except ValueError:
        raise UserError(f"toxicity.lists: {path} is not JSON") from None
    groups = data if isinstance(data, dict) else {"": data}
    found = []
    for lang, entries in groups.items():
        if not isinstance(entries, list):
            raise UserError(f"toxicity.lists: {path}: {lang!r} is not a list of terms")
        for entry in entries:
            fields = entry if isinstance(entry, dict) else {"term": entry}
            term = fields.get("term")
            if not isinstance(term, str) or not term.strip():
                raise UserError(f"toxicity.lists: {path}: not a term: {entry!r}")
            found.append(Term(term.strip(), lang, fields.get("category", LISTED), int(fields.get("severity", 2))))
    return tuple(found)


def terms_for(terms: Iterable[Term], lang: str) -> list[Term]:
    """Terms that are looked for in texts of a language.

    Those are the language's own and those of no language; in a text of unknown language, all. Long explicit English
    words are looked for everywhere; short ones are other words elsewhere (Swedish "slut", Dutch "hoe").
    """
    language = lang.partition("-")[0].lower()
    if language in ("", "und"):
        return list(terms)
    return [
        term
        for term in terms
        if term.lang in ("", language) or (term.lang == "en" and term.severity == 3 and len(term.text) >= 6)
    ]


def normal(term: str) -> tuple[str, bool]:
    """A term as it is compared, and whether any ending may follow."""
    wild = len(term) > 2 and term.endswith("*")
    return _GAPS.sub(" ", folded(term.removesuffix("*") if wild else term)).strip(), wild
