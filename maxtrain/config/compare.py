"""What two configs, or a config and the defaults, differ in; and what one key means."""

from typing import Any

from maxtrain.config.keys import Key, all_keys, find_key, nearest_key
from maxtrain.config.load import to_plain, validate
from maxtrain.config.merge import Source, flatten
from maxtrain.config.schema import Config
from maxtrain.core.errors import UserError

ABSENT = "(absent)"
"""Stands for the value of a key that one of the configs does not have."""
REQUIRED = "(required)"
"""Stands for the default of a key that has none."""

Differences = dict[str, tuple[Any, Any]]
"""Dotted path to the two values."""


def plain_default(key: Key) -> Any:
    """A key's default as plain data."""
    if key.required:
        return REQUIRED
    if isinstance(key.default, dict):
        return {name: domain.model_dump(mode="json") for name, domain in key.default.items()}
    if isinstance(key.default, tuple):
        return list(key.default)
    return key.default.model_dump(mode="json") if hasattr(key.default, "model_dump") else key.default


def diff_configs(before: Config, after: Config) -> Differences:
    """Leaves that differ between two configs."""
    old, new = dict(flatten(to_plain(before))), dict(flatten(to_plain(after)))
    pairs = {path: (old.get(path, ABSENT), new.get(path, ABSENT)) for path in dict.fromkeys([*old, *new])}
    return {path: (one, other) for path, (one, other) in pairs.items() if one != other}


def diff_defaults(source: Source) -> Differences:
    """Leaves that a config's files or overrides set to something else than the default."""
    changed: Differences = {}
    for path, value in flatten(to_plain(validate(source))):
        key = find_key(path)
        default = plain_default(key) if key else ABSENT
        if path in source.origins and value != default:
            changed[path] = (default, value)
    return changed


def _value_at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(tree, dict) and name in tree:
            tree = tree[name]
        elif isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
        else:
            return ABSENT
    return tree


def explain_key(path: str, source: Source | None = None) -> dict[str, Any]:
    """Text, type, limits and default of a key, or of every key of a section.

    Args:
        path: dotted key; a domain's name or an entry's index stands for any.
        source: a config whose value, and where it was written, are added.

    Returns:
        key, doc, type, default (`(required)` where there is none); for a section `keys` instead of a default; with a
        source also value and origin.

    Raises:
        UserError: the key is unknown, or the source is not valid.
    """
    key = find_key(path)
    if key is None:
        near = nearest_key(path)
        sections = ", ".join(known.path for known in all_keys().values() if "." not in known.path)
        raise UserError(
            f"{path}: unknown key; " + (f"did you mean {near}?" if near else f"the sections are {sections}")
        )
    found: dict[str, Any] = {"key": key.path, "doc": key.doc, "type": key.type_text}
    if key.section is None:
        found["default"] = plain_default(key)
    else:
        inner = [known for known in all_keys().values() if known.path.startswith(f"{key.path}.")]
        found["keys"] = [explain_key(known.path) for known in inner if known.section is None]
    if source is not None:
        value = _value_at(to_plain(validate(source)), path)
        found |= {"value": value, "origin": source.origins.get(path, "default" if value != ABSENT else ABSENT)}
    return found
