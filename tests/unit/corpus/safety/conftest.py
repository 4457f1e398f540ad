import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maxtrain.core.lines import iterate_lines
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule

CLEAN = ("book_en", "book_zh", "web_en", "web_zh", "math", "multilingual")


def document(text: str, lang: str = "en", category: str = "web", **fields: Any) -> Document:
    values: dict[str, Any] = {
        "doc_id": "0",
        "source": "test",
        "licence": "MIT",
        "input": "test.jsonl",
        "line": 1,
    } | fields
    return Document(text=text, lang=lang, category=category, **values)


def read_rows(path: Path) -> Iterator[dict]:
    for line in iterate_lines(path):
        yield json.loads(line)


def reason(rule: Rule, text: str = "text", lang: str = "en", category: str = "web", **fields: Any) -> str | None:
    """Why a rule drops a document, None where it stays."""
    verdict = rule.apply(document(text, lang, category, **fields))
    return verdict.reason if isinstance(verdict, Drop) else None


@pytest.fixture(scope="session")
def clean_rows(shared) -> list[dict]:
    """Every third row of the clean corpora, prose and mathematics."""
    return [
        row
        for name in CLEAN
        for number, row in enumerate(read_rows(shared / "corpora" / f"{name}.jsonl.zst"))
        if number % 3 == 0
    ]


@pytest.fixture(scope="session")
def running_text(clean_rows) -> dict[str, list[str]]:
    """Real texts by language, without a region."""
    texts: dict[str, list[str]] = {}
    for row in clean_rows:
        if len(row["text"]) > 300:
            texts.setdefault(row["lang"].partition("-")[0], []).append(row["text"])
    return texts
