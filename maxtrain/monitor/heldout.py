"""eval/heldout.jsonl: held-out loss and bits per byte by domain, one line an evaluation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from maxtrain.monitor.jsonl import JsonLines, need, read_json_lines, utc_now
from maxtrain.monitor.schema import NON_FINITE, encode


@dataclass(frozen=True)
class Score:
    """Held-out result of one domain or of all.

    Attributes:
        loss: Mean negative log-likelihood in nats a target token.
        bits_per_byte: The same in bits a UTF-8 byte of the text; None where there is no text.
        tokens: Target tokens.
        bytes: UTF-8 bytes that they cover.
    """

    loss: float
    bits_per_byte: float | None
    tokens: int
    bytes: int


@dataclass(frozen=True)
class HeldOutResult:
    """One evaluation during training, of the parameters after `step`."""

    step: int
    tokens_seen: int
    by_domain: Mapping[str, Score]
    total: Score
    attempt: int = 0
    time: str = ""


class HeldOutWriter:
    """Appends results durably.

    Attributes:
        removed_bytes: Length of the torn line that opening cut away; 0 for none.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self._lines = JsonLines(path)
        self._attempt = attempt
        self.removed_bytes = self._lines.removed_bytes

    def write(self, result: HeldOutResult) -> None:
        """Append one result; its attempt and time are the writer's."""
        by_domain = {name: asdict(score) for name, score in result.by_domain.items()}
        line: dict[str, Any] = {
            "attempt": self._attempt,
            "time": utc_now(),
            "step": result.step,
            "tokens_seen": result.tokens_seen,
            "by_domain": by_domain,
            "total": asdict(result.total),
        }
        self._lines.append(encode(line))
        self._lines.sync()

    def close(self) -> None:
        """Sync and close."""
        self._lines.close()


def _real(value: Any) -> Any:
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def _score(line: Mapping[str, Any], name: str) -> Score:
    value = {key: _real(number) for key, number in need(line, name, dict).items()}
    bits = need(value, "bits_per_byte", float, int, NoneType)
    return Score(need(value, "loss", float, int), bits, need(value, "tokens", int), need(value, "bytes", int))


def _result(line: dict[str, Any]) -> HeldOutResult:
    domains = need(line, "by_domain", dict)
    return HeldOutResult(
        need(line, "step", int),
        need(line, "tokens_seen", int),
        {name: _score(domains, name) for name in domains},
        _score(line, "total"),
        need(line, "attempt", int),
        need(line, "time", str),
    )


def read_heldout(path: Path) -> list[HeldOutResult]:
    """The results that count, in the order of steps: of each step the last one; an absent file has none.

    Raises:
        DataError: a line is no result.
    """
    if not path.is_file():
        return []
    by_step = {result.step: result for result in read_json_lines(path, _result)}
    return [by_step[step] for step in sorted(by_step)]
