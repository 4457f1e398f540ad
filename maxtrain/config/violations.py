"""What is wrong with a config, told with its cure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maxtrain.core.errors import UserError

MISSING = object()
"""The value of a violation whose key is absent."""


def _reads_as_text(text: str) -> bool:
    """Whether a text can stand without quotes and still be seen to be one."""
    return bool(text.strip()) and text.isprintable() and not text.replace(".", "", 1).lstrip("+-").isdecimal()


def show_value(value: Any) -> str:
    """Write a config value on one short line, counts with thousands separators."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    text = value if isinstance(value, str) and _reads_as_text(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Violation:
    """One rule that a config breaks."""

    path: str
    """Full dotted key."""
    value: Any
    """What the config says; MISSING where it says nothing."""
    limit: str
    """What the rule asks."""
    cure: str
    """What to do."""
    origin: str = ""
    """`file:line`, or the command line, where it is known."""

    def __str__(self) -> str:
        said = "" if self.value is MISSING else f" = {show_value(self.value)}"
        where = f" [{self.origin}]" if self.origin else ""
        return f"{self.path}{said}: {self.limit}; {self.cure}{where}"


class ConfigError(UserError):
    """A config with violations: one line where there is one, else one line each under a heading."""

    def __init__(self, name: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        if len(self.violations) == 1:
            text = f"{name}: {self.violations[0]}"
        else:
            text = "\n  ".join([f"{name}: {len(self.violations)} violations", *map(str, self.violations)])
        super().__init__(text)


def with_origins(violations: Sequence[Violation], origins: Mapping[str, str]) -> list[Violation]:
    """Add to each violation where its key, or the nearest section around it, was written."""
    located = []
    for violation in violations:
        path = violation.path
        while path and path not in origins:
            path = path.rpartition(".")[0]
        located.append(replace(violation, origin=origins.get(path, violation.origin)))
    return located
