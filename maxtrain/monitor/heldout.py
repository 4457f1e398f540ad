"""eval/heldout.jsonl: held-out loss and bits per byte by domain, one line an evaluation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maxtrain.monitor.jsonl import JsonLines, read_json_lines, utc_now
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


def _score(value: Mapping[str, Any]) -> Score:
    return Score(_real(value["loss"]), _real(value["bits_per_byte"]), value["tokens"], value["bytes"])


def read_heldout(path: Path) -> list[HeldOutResult]:
    """The results that count, in the order of steps: of each step the last one; an absent file has none."""
    if not path.is_file():
        return []
    by_step = {}
    for line in read_json_lines(path):
        by_domain = {name: _score(value) for name, value in line["by_domain"].items()}
        by_step[line["step"]] = HeldOutResult(
            line["step"], line["tokens_seen"], by_domain, _score(line["total"]), line["attempt"], line["time"]
        )
    return [by_step[step] for step in sorted(by_step)]
