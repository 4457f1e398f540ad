"""The recipe: which files become which dataset, and how."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from maxtrain.config.keys import describe
from maxtrain.config.schema import Section
from maxtrain.config.schema.types import AsTuple, Fraction, PositiveCount, PositiveInt, as_float
from maxtrain.config.violations import MISSING, ConfigError, Violation, with_origins
from maxtrain.config.yaml_files import read_mapping
from maxtrain.core.errors import UserError
from maxtrain.dataset import TRAIN_SPLIT
from maxtrain.tokenizer.train import MOST_IDS

_Files = Annotated[tuple[str, ...], AsTuple, Field(min_length=1)]
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Kinds of input files."""


class DefaultTags(Section):
    """Tags of records that have none of their own."""

    source: str | None = None
    """Null: the file's name without its endings."""
    lang: str = "und"
    """Language."""
    category: str = "unknown"
    """Category."""


class InputConfig(Section):
    """Some input files."""

    files: str | _Files
    """Paths or patterns, relative to the recipe; ** reaches into folders."""
    licence: str
    """Licence of records that state none in a field `licence`."""
    tags: DefaultTags = DefaultTags()
    """Tags of records that have none of their own."""

    def patterns(self) -> tuple[str, ...]:
        """Paths or patterns."""
        return (self.files,) if isinstance(self.files, str) else self.files


class TokenizerTraining(Section):
    """Train a tokenizer on the documents of the train split."""

    vocab_size: Annotated[PositiveCount, Field(le=MOST_IDS)]
    """Number of ids, special tokens included."""
    sample_bytes: PositiveCount = 100_000_000
    """Bytes of text to train on at most, sampled by hash."""
    character_coverage: Annotated[float, BeforeValidator(as_float), Field(ge=0.98, le=1)] = 0.9995
    """Share of characters, 0.98 to 1, that get a piece of their own; the rest fall back to bytes."""
    reserved: PositiveInt = 60
    """Reserved special tokens."""


class TokenizerConfig(Section):
    """The tokenizer: an existing one, or one trained on the inputs."""

    path: str | None = None
    """Model file, relative to the recipe."""
    train: TokenizerTraining | None = None
    """Train one."""

    @model_validator(mode="after")
    def _one(self) -> "TokenizerConfig":
        if (self.path is None) == (self.train is None):
            raise ValueError("needs exactly one of path and train")
        return self


class FilterConfig(Section):
    """Documents to leave out; null for no limit."""

    min_bytes: PositiveCount | None = None
    """Least UTF-8 bytes of text."""
    max_bytes: PositiveCount | None = None
    """Most UTF-8 bytes of text."""


class Recipe(Section):
    """How a dataset is built."""

    output: str
    """Directory of the dataset, relative to where the command runs."""
    inputs: Annotated[tuple[InputConfig, ...], AsTuple, Field(min_length=1)]
    """Input files with their licences."""
    tokenizer: TokenizerConfig
    """The tokenizer."""
    splits: dict[str, Fraction] = Field(default={})
    """Held-out shares by name, chosen by a hash of the document's id; the rest is `train`."""
    add_bos: bool = False
    """Write bos before each document."""
    shard_tokens: PositiveCount = 2**27
    """Most tokens in a shard."""
    filters: FilterConfig = FilterConfig()
    """Documents to leave out."""

    @model_validator(mode="after")
    def _splits_fit(self) -> "Recipe":
        if TRAIN_SPLIT in self.splits:
            raise ValueError(f"splits.{TRAIN_SPLIT} is what the other splits leave; delete it")
        if sum(self.splits.values()) >= 1:
            raise ValueError("the splits leave nothing to train on; their shares must add up to less than 1")
        return self


def _section_of(place: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model that a path leads to."""
    section: type[BaseModel] | None = Recipe
    for name in place:
        if isinstance(name, int) or section is None:
            continue
        field = section.model_fields.get(name)
        section = next((kind for kind in _models(field.annotation)), None) if field else None
    return section


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _concrete_place(error: ErrorDetails, tree: Any) -> tuple[tuple[Any, ...], Any]:
    """The key that an error is about and its value, without pydantic's marks of union members."""
    loc: tuple[Any, ...] = error["loc"]
    if error["type"] == "missing":
        return loc, MISSING
    for depth, name in enumerate(loc):
        if not ((isinstance(tree, dict) and name in tree) or (isinstance(tree, list) and isinstance(name, int))):
            return loc[:depth], tree
        tree = tree[name]
    return loc, tree


def _type_text(place: tuple[Any, ...]) -> str | None:
    """What the field at a place may hold, in words; None where no field is there."""
    if place and isinstance(place[-1], int):
        return "a section"
    section = _section_of(place[:-1])
    field = section.model_fields.get(str(place[-1])) if section and place else None
    if field is None:
        return None
    if get_origin(field.annotation) is dict:
        return "a mapping of names to shares"
    return describe(field.annotation, tuple(field.metadata))


def _violation(error: ErrorDetails, tree: dict[str, Any]) -> Violation:
    place, value = _concrete_place(error, tree)
    path = ".".join(map(str, place)) or "recipe"
    shown = MISSING if isinstance(value, dict | list) else value
    if error["type"] == "extra_forbidden":
        section = _section_of(place[:-1])
        known = list(section.model_fields) if section else []
        near = get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return Violation(path, shown, "unknown key", cure)
    if error["type"] == "missing":
        section = _section_of(place[:-1])
        doc = section.model_fields[str(place[-1])].description if section else ""
        return Violation(path, MISSING, "is required and missing", f"give it ({str(doc).rstrip('.')})")
    if error["type"] == "value_error":
        return Violation(path, shown, str(error["ctx"]["error"]), "correct the recipe")
    if error["type"] == "less_than_equal":
        return Violation(path, shown, f"should be at most {error['ctx']['le']:,}", "lower the value")
    if value == []:
        return Violation(path, MISSING, "is an empty list", "give at least one")
    text = _type_text(place)
    return Violation(path, shown, f"should be {text}" if text else error["msg"].lower(), "correct the value")


def _violations(error: ValidationError, tree: dict[str, Any]) -> list[Violation]:
    found: dict[str, Violation] = {}
    for detail in error.errors(include_url=False):
        violation = _violation(detail, tree)
        found.setdefault(violation.path, violation)
    return list(found.values())


def load_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Raises:
        UserError: the file cannot be read, or (ConfigError) breaks the schema, with every violation at once.
    """
    path = Path(path)
    tree, lines = read_mapping(path)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        violations = _violations(error, tree)
    origins = {key: f"{path}:{line}" for key, line in lines.items()}
    raise ConfigError(str(path), with_origins(violations, origins))


def find_inputs(recipe: Recipe, folder: Path) -> list[tuple[str, Path, InputConfig]]:
    """The input files in order of their names: (name relative to the recipe, path, its entry).

    Raises:
        UserError: a pattern matches nothing, a file is of an unknown kind, or two entries name one file.
    """
    found: dict[str, tuple[Path, InputConfig]] = {}
    for number, entry in enumerate(recipe.inputs):
        for pattern in entry.patterns():
            paths = _expand(folder, pattern, f"inputs.{number}.files")
            if not paths:
                raise UserError(
                    f"inputs.{number}.files = {pattern}: no such file under {folder}; paths are relative to the recipe"
                )
            for name, path in paths:
                if not name.endswith(SUFFIXES):
                    raise UserError(f"inputs.{number}.files: {path} is none of {', '.join(SUFFIXES)}")
                if name in found:
                    raise UserError(f"inputs.{number}.files: {path} is named twice; let one pattern match it")
                found[name] = (path, entry)
    return [(name, *found[name]) for name in sorted(found)]


def _expand(folder: Path, pattern: str, where: str) -> list[tuple[str, Path]]:
    """Files that a pattern matches, each with its name relative to the folder that the pattern starts from."""
    if Path(pattern).is_absolute():
        base, rest = Path("/"), pattern.lstrip("/")
    else:
        base, rest = folder, pattern
    prefix = ""
    while rest.startswith(("../", "./")):
        part, rest = rest.split("/", 1)
        base, prefix = base / part, prefix + ("" if part == "." else f"{part}/")
    try:
        matches = [path for path in base.glob(rest) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{where} = {pattern!r}: is no pattern of files ({error}); correct it") from None
    return sorted((prefix + path.relative_to(base).as_posix(), path) for path in matches)
