"""Keys without effect: what is set to another value than its default, and could not act."""

from collections.abc import Iterable, Iterator
from typing import Any

from maxtrain.config.schema import Section
from maxtrain.config.violations import Violation


def _say(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def check_unused(
    section: Section, path: str, keys: Iterable[str], why: str, otherwise: str = ""
) -> Iterator[Violation]:
    """Refuse the keys that say something.

    Args:
        section: the section.
        path: its dotted path.
        keys: those that have no effect.
        why: as it follows `has no effect`.
        otherwise: what to do instead of taking the key's default.
    """
    for key in keys:
        value, default = getattr(section, key), type(section).model_fields[key].default
        if value == default:
            continue
        cure = "remove it" if default == () else f"set {_say(default)}"
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        yield Violation(f"{path}.{key}", shown, f"has no effect{why}", f"{cure}, or {otherwise}" if otherwise else cure)
