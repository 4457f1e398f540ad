"""Forum dumps: Stack Exchange's Posts.xml, a document for every question with its answers.

Answers stand anywhere after their question, so posts are first gathered in a database in a temporary file and joined
when the dump is read: memory stays small, the disk needs room for the text once more.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from maxtrain.core.records import RecordError
from maxtrain.corpus.html.pages import all_text
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import LeftOutError, Reading
from maxtrain.corpus.read.xml import Elements, Handlers, parse_element

_QUESTION, _ANSWER = "1", "2"
_SCHEMA = """
create table questions (id integer primary key, number integer, title text, body text, tags text, score integer,
                        accepted integer, licence text);
create table answers (id integer primary key, number integer, parent integer, body text, score integer);
"""
_CACHE_KIB = 16 * 1024


def read_forum(reading: Reading) -> Iterator[Item]:
    """A record for every question, its answers below it: the accepted one first, then by score."""
    with tempfile.TemporaryDirectory(prefix="maxtrain-") as folder:
        store = sqlite3.connect(Path(folder) / "posts.sqlite", isolation_level=None)
        try:
            store.executescript(f"pragma journal_mode=off; pragma synchronous=off; pragma cache_size=-{_CACHE_KIB};")
            store.executescript(_SCHEMA)
            store.execute("begin")
            end: RecordError | None = None
            try:
                yield from _gather(reading, store)
            except RecordError as error:
                end = error  # told after the documents, whose numbers come before it
            last = reading.number
            store.execute("create index of_question on answers (parent)")
            yield from _join(reading, store)
            reading.number = last
            if end is not None:
                raise end
        finally:
            store.close()


@dataclass
class _Row(Handlers):
    attributes: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.attributes = attributes


def _gather(reading: Reading, store: sqlite3.Connection) -> Iterator[Item]:
    elements = Elements(reading.pieces(), "row", reading.options.max_record_bytes, alone=True)
    for element in elements:
        reading.next()
        if element is None:
            yield reading.too_long()
            continue
        try:
            row = _Row()
            parse_element(element, row)
            _store(reading.number, row.attributes, store)
        except LeftOutError as error:
            yield reading.bad(error.reason, error.detail, left_out=True)
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)
    if b"</posts>" not in elements.tail:
        raise RecordError("truncated_xml", "the file ends before </posts>")


def _store(number: int, row: dict[str, str], store: sqlite3.Connection) -> None:
    kind = row.get("PostTypeId")
    if kind is None or "Id" not in row:
        raise RecordError("missing_field", "a post without Id or PostTypeId")
    post = _number(row, "Id")
    body = row.get("Body", "")
    try:
        if kind == _QUESTION:
            values = (post, number, row.get("Title", ""), body, row.get("Tags", ""), _number(row, "Score"),
                      _number(row, "AcceptedAnswerId"), row.get("ContentLicense", ""))  # fmt: skip
            store.execute("insert into questions values (?, ?, ?, ?, ?, ?, ?, ?)", values)
        elif kind == _ANSWER:
            answer = (post, number, _number(row, "ParentId"), body, _number(row, "Score"))
            store.execute("insert into answers values (?, ?, ?, ?, ?)", answer)
        else:
            raise LeftOutError("post_type", f"post {post} is of type {kind[:20]}, neither question nor answer")
    except sqlite3.IntegrityError:
        raise RecordError("doubled_id", f"a second post {post}") from None


def _number(row: dict[str, str], key: str) -> int:
    value = row.get(key, "0")
    if not value.lstrip("-").isdecimal() or len(value) > 18:
        raise RecordError("bad_field", f"{key} is no number: {value[:40]!r}")
    return int(value)


def _join(reading: Reading, store: sqlite3.Connection) -> Iterator[Item]:
    questions = store.execute("select * from questions order by number")
    for post, number, title, body, tags, score, accepted, licence in questions:
        reading.number = number
        answers = store.execute(
            "select body, score from answers where parent = ? order by id = ? desc, score desc, id", (post, accepted)
        )
        parts = [title.strip(), _text(body)]
        found = 0
        size = len(body)
        for answer, _ in answers:
            size += len(answer)
            if size > reading.options.max_record_bytes:
                break  # the best answers are in
            parts.append(_text(answer))
            found += 1
        names = [tag for tag in tags.replace("><", "|").strip("<>|").split("|") if tag]
        try:
            yield reading.record(
                "\n\n".join(part for part in parts if part),
                original_id=str(post),
                title=title.strip() or None,
                licence=licence.replace(" ", "-") or None,
                notes={"score": str(score), "answers": str(found), "tags": " ".join(names)},
            )
        except RecordError as error:
            yield reading.bad(error.reason, error.detail)
    lost = "select number, id, parent from answers where parent not in (select id from questions) order by number"
    for number, post, parent in store.execute(lost):
        reading.number = number
        yield reading.bad("no_question", f"answer {post} to question {parent}, which is not here", left_out=True)


def _text(body: str) -> str:
    return all_text(body).text if "<" in body else body.strip()
