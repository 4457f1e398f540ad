"""From files and overrides to one plain mapping that remembers where each value was written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from maxtrain.config.keys import find_key
from maxtrain.config.yaml_files import Replaced, parse_text, read_mapping
from maxtrain.core.errors import UserError

EXTENDS = "extends"
COMMAND_LINE = "command line"


@dataclass
class Source:
    """A config before validation."""

    name: str
    """What errors call it."""
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """`file:line`, or the command line, of every dotted key."""


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted paths and values of the leaves; an empty mapping or list is a leaf."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    if not items:
        yield prefix, tree
    for key, value in items:
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def merge(base: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """Lay a child over its base: mappings merge by key, unless tagged `!replace`; everything else is replaced."""
    merged = dict(base)
    for key, value in child.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = merge(base[key], value) if both and not isinstance(value, Replaced) else _plain(value)
    return merged


def _replaced_paths(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths whose whole value a child replaces."""
    for key, value in tree.items():
        if isinstance(value, dict) and not isinstance(value, Replaced):
            yield from _replaced_paths(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _drop_origins(origins: dict[str, str], path: str) -> None:
    for known in [known for known in origins if known == path or known.startswith(f"{path}.")]:
        del origins[known]


def _missing_file(path: Path, asked_by: str) -> UserError:
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    root = folder if folder.name else Path.cwd()
    presets = sorted(str(found) for found in [*root.glob("*.yaml"), *root.glob("*/*.yaml"), *root.glob("*/*/*.yaml")])
    by_name = {Path(preset).stem: preset for preset in presets}
    near = get_close_matches(path.stem, by_name, n=3, cutoff=0.5)
    if near:
        cure = "did you mean " + " or ".join(by_name[name] for name in near) + "?"
    elif presets:
        cure = f"{root} has " + ", ".join(presets[:8])
    else:
        cure = "name an existing YAML file"
    return UserError(f"{path}: no such config{asked_by}; {cure}")


def _read_chain(path: Path, chain: tuple[Path, ...]) -> Source:
    """One file laid over the file that it extends."""
    asked_by = f" (extended by {chain[-1]})" if chain else ""
    if path.resolve() in [known.resolve() for known in chain]:
        names = " -> ".join(str(known) for known in (*chain, path))
        raise UserError(f"{path}: `extends` runs in a circle: {names}; remove one of them")
    if not path.exists():
        raise _missing_file(path, asked_by)
    tree, lines = read_mapping(path)
    source = Source(str(path))
    parent = tree.pop(EXTENDS, None)
    if parent is not None:
        if not isinstance(parent, str):
            raise UserError(f"{path}:{lines[EXTENDS]}: extends = {parent!r}: should be one file's name")
        source = _read_chain(path.parent / parent, (*chain, path))
        source.name = str(path)
    for known in _replaced_paths(tree):
        _drop_origins(source.origins, known)
    source.tree = merge(source.tree, tree)
    source.origins |= {known: f"{path}:{line}" for known, line in lines.items() if known != EXTENDS}
    return source


def _set(tree: Any, path: str, value: Any) -> None:
    """Set a dotted path; sections on the way are made, a list takes an index up to its length (which appends)."""
    names = path.split(".")
    for depth, name in enumerate(names):
        last = depth == len(names) - 1
        here = ".".join(names[:depth])
        if isinstance(tree, list):
            if not name.isdecimal() or int(name) > len(tree):
                raise UserError(
                    f"override {path}: {here} is a list of {len(tree)}; give an index from 0 to {len(tree)} after it"
                )
            key: Any = int(name)
            if key == len(tree):
                tree.append(None)
        elif isinstance(tree, dict):
            key = name
        else:
            raise UserError(f"override {path}: {here} = {tree!r} is a value, not a section; set {here} itself")
        if last:
            tree[key] = value
            return
        inner = tree[key] if isinstance(tree, list) else tree.get(key)
        if inner is None:
            schema_key = find_key(".".join(names[: depth + 1]))
            inner = tree[key] = [] if schema_key and isinstance(schema_key.default, tuple) else {}
        tree = inner


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Set `a.b.c=value` in turn; the value is YAML, a list's entry is named by its index.

    Raises:
        UserError: an override is no key=value, its value is no YAML, or its path runs through a plain value.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip().lstrip("-")
        if not equals or not path or not all(path.split(".")):
            raise UserError(f"override {override!r}: should be key=value, such as train.total_tokens=1M")
        value = parse_text(text, f"override {path}")
        _set(source.tree, path, _plain(value))
        _drop_origins(source.origins, path)
        source.origins |= {path: COMMAND_LINE}
        if isinstance(value, (dict, list)):
            source.origins |= {known: COMMAND_LINE for known, _ in flatten(value, path)}


def _drop_null_domains(tree: dict[str, Any]) -> None:
    data = tree.get("data")
    if not isinstance(data, dict):
        return
    stages = data.get("stages")
    for section in [data, *(stages if isinstance(stages, list) else [])]:
        mixture = section.get("mixture") if isinstance(section, dict) else None
        if isinstance(mixture, dict):
            section["mixture"] = {name: domain for name, domain in mixture.items() if domain is not None}


def load_source(path: str | Path, overrides: Sequence[str] = ()) -> Source:
    """Read a config file, what it extends, and the overrides, without validating keys or values.

    Mappings merge by key, so a child that gives `mixture` changes or adds domains; a domain set to null is removed,
    and a mapping tagged `!replace` takes the place of the whole. Lists are replaced.

    Raises:
        UserError: a file is missing, is not YAML, or extends itself; an override cannot be applied.
    """
    source = _read_chain(Path(path), ())
    apply_overrides(source, overrides)
    _drop_null_domains(source.tree)
    return source
