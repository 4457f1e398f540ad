"""Loading a config: files and overrides, validated, every violation told at once; and writing it out again."""

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from maxtrain.config.keys import all_keys, find_key, nearest_key
from maxtrain.config.merge import Source, flatten, load_source
from maxtrain.config.schema import Config, Section
from maxtrain.config.schema.types import MAX_INT, MAX_REAL
from maxtrain.config.violations import MISSING, ConfigError, Violation, with_origins
from maxtrain.config.yaml_files import dump

AnySection = TypeVar("AnySection", bound=Section)


def _concrete_path(error: ErrorDetails, tree: Any) -> tuple[str, Any]:
    """The key that an error is about and its value, without pydantic's marks of union members."""
    places: tuple[Any, ...] = error["loc"]
    names: list[str] = []
    for place in places:
        if (isinstance(tree, dict) and place in tree) or (
            isinstance(tree, list) and isinstance(place, int) and place < len(tree)
        ):
            tree = tree[place]
        elif error["type"] == "missing" and place == places[-1] and not isinstance(tree, list):
            tree = MISSING
        else:
            break
        names.append(str(place))
    return ".".join(names), tree


def _unknown(path: str, value: Any, schema: type[Section]) -> Iterator[Violation]:
    for leaf, inner in flatten(value, path):
        known = find_key(leaf, schema)
        near = known.path if known else nearest_key(leaf, schema)
        section = path.rpartition(".")[0]
        depth = section.count(".") + 2 if section else 1
        siblings = [
            key.path.rpartition(".")[2]
            for key in all_keys(schema).values()
            if key.path.count(".") + 1 == depth
            and (not section or find_key(section + key.path[key.path.rfind(".") :], schema))
        ]
        cure = f"did you mean {near}?" if near else f"known here: {', '.join(dict.fromkeys(siblings))}"
        yield Violation(leaf, inner, "unknown key", cure)


def _missing(path: str, schema: type[Section]) -> Iterator[Violation]:
    """The required keys that are absent: of a section that is absent, each of its own."""
    key = find_key(path, schema)
    inner = [known for known in all_keys(schema).values() if known.required and known.path.rpartition(".")[0] == path]
    if key is not None and key.section is not None and inner:
        for known in inner:
            yield from _missing(known.path, schema)
        return
    text = key.type_text if key else "a value"
    doc = f" ({key.doc.rstrip('.')})" if key and key.doc else ""
    yield Violation(path, MISSING, "is required and missing", f"give {text}{doc}")


def _wrong(path: str, value: Any, error: ErrorDetails, schema: type[Section]) -> Violation:
    key = find_key(path, schema)
    if error["type"] == "value_error":
        return Violation(path, value, str(error["ctx"]["error"]), "correct the value")
    if error["type"] == "string_pattern_mismatch":
        return Violation(path, value, "a domain's name has letters, digits, `_` and `-` only", "rename it")
    if key is not None and error["loc"][-1] == "[key]":
        near = get_close_matches(path.rpartition(".")[2], key.choices, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else "rename it"
        return Violation(path, value, f"its name should be one of {', '.join(key.choices)}", cure)
    if key is None:
        whole = find_key(path.rpartition(".")[0], schema)
        limit = f"is no entry of {whole.type_text}" if whole and whole.section is None else error["msg"].lower()
        return Violation(path, value, limit, "correct the value")
    if key.section is not None and error["type"] != "too_short":
        cure = "give its keys" if key.required else "give its keys, or delete the line to take the defaults"
        return Violation(path, value, f"should be {key.type_text}", cure)
    if error.get("ctx", {}).get("le") == MAX_INT:
        return Violation(path, value, f"should be at most {MAX_INT:,}", "lower the value")
    if error.get("ctx", {}).get("le") == MAX_REAL and value != math.inf:
        return Violation(path, value, f"should be at most {MAX_REAL:.6g}, what a float32 holds", "lower the value")
    near = get_close_matches(str(value), key.choices, n=1, cutoff=0.5)
    cure = f"did you mean {near[0]}?" if near else "correct the value, or delete the line to take the default"
    if key.required and not near:
        cure = "correct the value"
    if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off") and "true or false" in key.type_text:
        cure = "YAML 1.2 reads it as a text: write true or false"
    return Violation(path, value, f"should be {key.type_text}", cure)


def _violations(error: ValidationError, tree: dict[str, Any], schema: type[Section]) -> list[Violation]:
    found: dict[str, Violation] = {}
    for detail in error.errors(include_url=False):
        path, value = _concrete_path(detail, tree)
        if detail["type"] == "extra_forbidden":
            new = list(_unknown(path, value, schema))
        elif detail["type"] == "missing" and value is MISSING:
            new = list(_missing(path, schema))
        else:
            new = [_wrong(path, value, detail, schema)]
        for violation in new:
            found.setdefault(violation.path, violation)
    return list(found.values())


def validate_tree(schema: type[AnySection], source: Source) -> AnySection:
    """Turn a source into a section of a schema: a config, a recipe, or another file that a user writes.

    Raises:
        ConfigError: keys are unknown or missing, or values are not of their key's type; all of them at once.
    """
    try:
        return schema.model_validate(source.tree)
    except ValidationError as error:
        violations = _violations(error, source.tree, schema)
    raise ConfigError(source.name, with_origins(violations, source.origins))


def validate(source: Source) -> Config:
    """Turn a source into a config; see `validate_tree`."""
    return validate_tree(Config, source)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and validate a config; what holds across sections is `check_or_raise`'s to check.

    Args:
        path: a YAML file; its `extends` names another, relative to it.
        overrides: `a.b.c=value` texts, later ones over earlier ones.

    Raises:
        UserError: a file or an override cannot be read, or (ConfigError) the config breaks the schema.
    """
    return validate(load_source(path, overrides))


def to_plain(config: Config) -> dict[str, Any]:
    """Every key of a config with its value, as plain mappings, lists and scalars."""
    return config.model_dump(mode="json")


def to_yaml(config: Config) -> str:
    """Write every key of a config; loading the text gives an equal config."""
    return dump(to_plain(config))
