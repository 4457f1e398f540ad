"""The schema seen as keys: their types, limits, defaults and texts, and the known key nearest to a wrong one."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from maxtrain.config.schema import Config, Section, parse_count
from maxtrain.config.schema.types import MAX_INT, MAX_REAL

ANY_NAME = "*"
"""Stands in a path for a domain's name or an entry's index."""

SYNONYMS = {
    "batch_size": "batch.global_batch_tokens",
    "global_batch_size": "batch.global_batch_tokens",
    "micro_batch_size": "batch.micro_batch",
    "per_device_batch_size": "batch.micro_batch",
    "grad_accumulation": "batch.accumulation",
    "gradient_accumulation_steps": "batch.accumulation",
    "seq_len": "data.sequence_length",
    "seq_length": "data.sequence_length",
    "max_seq_len": "data.sequence_length",
    "context_length": "data.sequence_length",
    "hidden_size": "model.d_model",
    "intermediate_size": "model.d_ff",
    "ffn_dim": "model.d_ff",
    "n_layers": "model.num_layers",
    "n_layer": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "n_heads": "model.num_heads",
    "n_head": "model.num_heads",
    "num_attention_heads": "model.num_heads",
    "num_key_value_heads": "model.num_kv_heads",
    "n_experts": "model.moe.num_experts",
    "num_local_experts": "model.moe.num_experts",
    "num_experts_per_tok": "model.moe.top_k",
    "moe_intermediate_size": "model.moe.d_expert",
    "learning_rate": "schedule.lr",
    "max_lr": "schedule.lr",
    "warmup_steps": "schedule.warmup_tokens",
    "warmup_ratio": "schedule.warmup_frac",
    "max_steps": "train.total_tokens",
    "num_steps": "train.total_tokens",
    "steps": "train.total_tokens",
    "grad_clip": "optimizer.clip_norm",
    "max_grad_norm": "optimizer.clip_norm",
    "save_steps": "checkpoint.every",
    "save_every": "checkpoint.every",
    "eval_steps": "evaluation.every",
    "eval_every": "evaluation.every",
    "gradient_checkpointing": "remat.policy",
    "dtype": "precision.compute",
    "output_dir": "run.directory",
}
"""Names that other trainers use, and ours."""


@dataclass(frozen=True)
class Key:
    """One key of the schema."""

    path: str
    """Dotted; `*` for a domain's name or an entry's index."""
    type_text: str
    """What may stand there, limits included."""
    doc: str
    required: bool
    default: Any
    section: type[Section] | None
    """The section that lies under it, if it is no leaf."""
    choices: tuple[str, ...]
    """The words it may be, where there is a fixed list; of an entry of a mapping, those that its name may be."""


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _bounds(metadata: tuple[Any, ...]) -> str:
    """The narrowest bound on each side; those of a number's format go without saying."""
    limits: dict[type, list[Any]] = {Gt: [], Ge: [], Le: []}
    for item in _flat(metadata):
        for kind, name in ((Gt, "gt"), (Ge, "ge"), (Le, "le")):
            if isinstance(item, kind):
                limits[kind].append(getattr(item, name))
    over, least = max(limits[Gt], default=None), max(limits[Ge], default=None)
    most = [limit for limit in limits[Le] if limit not in (MAX_INT, MAX_REAL)]
    texts = []
    if least is not None and (over is None or least > over):
        texts.append(f">= {_bound(least)}")
    elif over is not None:
        texts.append(f"> {_bound(over)}")
    if most:
        texts.append(f"<= {_bound(min(most))}")
    return " " + " and ".join(texts) if texts else ""


def _bound(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _names(annotation: Any) -> tuple[str, ...]:
    """The names that a mapping's entries may have, where there is a fixed list."""
    named = get_origin(annotation) is dict and get_origin(get_args(annotation)[0]) is Literal
    return tuple(map(str, get_args(get_args(annotation)[0]))) if named else ()


def describe(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Say in words what a field of this type may hold."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    some = any(isinstance(item, MinLen) for item in _flat(metadata))
    if origin is Annotated:
        return describe(arguments[0], (*metadata, *arguments[1:]))
    if origin in (Union, UnionType):
        return " or ".join(describe(argument, metadata) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return f"a list [{', '.join(map(describe, arguments))}]"
        least = " with at least one entry" if some else ""
        if get_origin(arguments[0]) is Literal:
            return f"a list of {', '.join(map(str, get_args(arguments[0])))}{least}"
        return f"a list of {'texts' if arguments[0] is str else 'sections'}{least}"
    if origin is dict:
        least = " with at least one name" if some else ""
        value = describe(arguments[1])
        names = ", ".join(_names(annotation)) or "names"
        return f"a mapping of {names} to {'sections' if value == 'a section' else 'numbers'}{least}"
    if annotation is NoneType:
        return "null"
    if annotation is int:
        counts = any(isinstance(item, BeforeValidator) and item.func is parse_count for item in metadata)
        noun = "a count (as 65536, 64Ki, 1.5M or 10T)" if counts else "a whole number"
        return noun + _bounds(metadata)
    plain = {float: "a number", bool: "true or false", str: "a text"}
    return plain[annotation] + _bounds(metadata) if annotation in plain else "a section"


def _inner(annotation: Any) -> tuple[type[Section] | None, str, tuple[str, ...]]:
    """Section under a field and its part of the path (`.*` under a mapping or a list), and a literal's words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(arguments[0])
    if origin is Literal:
        return None, "", tuple(map(str, arguments))
    if origin in (Union, UnionType):
        found = [_inner(argument) for argument in arguments]
        return next((entry for entry in found if entry[0] or entry[2]), (None, "", ()))
    if origin in (tuple, dict):
        section = _inner(arguments[0 if origin is tuple else 1])[0]
        return section, f".{ANY_NAME}" if section else "", ()
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return (annotation if is_section else None), "", ()


def _walk(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        inner, below, choices = _inner(field.annotation)
        path = prefix + name
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        text = describe(field.annotation, tuple(field.metadata))
        doc = " ".join((field.description or "").split())
        yield Key(path, text, doc, field.is_required(), default, inner, choices)
        if inner is not None:
            if below:
                entry_doc = cleandoc(inner.__doc__ or "").splitlines()[0]
                yield Key(path + below, "a section", entry_doc, False, None, inner, _names(field.annotation))
            yield from _walk(inner, f"{path}{below}.")
        elif get_origin(field.annotation) is dict:
            value = describe(get_args(field.annotation)[1])
            yield Key(f"{path}.{ANY_NAME}", value, doc, False, None, None, ())


@cache
def all_keys(schema: type[Section] = Config) -> dict[str, Key]:
    """Every key of a schema by path, in the schema's order."""
    return {key.path: key for key in _walk(schema, "")}


def find_key(path: str, schema: type[Section] = Config) -> Key | None:
    """The key that a concrete path names, such as data.mixture.code.weight for data.mixture.*.weight."""
    parts = path.split(".")
    for key in all_keys(schema).values():
        names = key.path.split(".")
        if len(names) == len(parts) and all(name in (ANY_NAME, part) for name, part in zip(names, parts, strict=True)):
            return key
    return None


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def nearest_key(path: str, schema: type[Section] = Config) -> str | None:
    """Full path of the known key that a wrong path most likely means, or None."""
    parts = path.split(".")
    last = parts[-1].lower()
    if schema is Config and last in SYNONYMS and find_key(path) is None:
        return SYNONYMS[last]
    best, best_score = None, 0.0
    for key in all_keys(schema).values():
        names = key.path.split(".")
        if names[-1] == ANY_NAME:
            if key.section is not None or len(names) != len(parts):
                continue
            names[-1] = parts[-1]
        for place, part in enumerate(parts[: len(names)]):
            if names[place] == ANY_NAME and names[:place] == parts[:place]:
                names[place] = part
        candidate = ".".join(names)
        score = (_likeness(last, names[-1]) + _likeness(path, candidate)) / 2
        if score > best_score:
            best, best_score = candidate, score
    return best if best_score >= 0.6 else None
