"""The inputs that a recipe names: files, folders, URLs."""

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.corpus.read import FOLDER_KINDS, TOKEN_KINDS, Source, fingerprint, input_bytes, kind_of
from maxtrain.corpus.recipe import InputConfig, Recipe


def source_of(name: str, location: str, entry: InputConfig) -> Source:
    """An input for a reader."""
    tags = entry.tags
    return Source(name, location, entry.licence, entry.read, tags.source, tags.lang, tags.category)


@dataclass(frozen=True)
class InputFile:
    """An input that a recipe names."""

    name: str
    """The path or URL as the recipe writes it, patterns filled in."""
    location: str
    """Absolute path, or URL."""
    entry: InputConfig
    sha256: str
    """Hash of the input when it was found."""
    num_bytes: int
    """Stored bytes."""


def find_inputs(recipe: Recipe, folder: Path) -> list[InputFile]:
    """Find and hash the inputs, in order of their names.

    Args:
        recipe: names them.
        folder: directory of the recipe, which its paths are relative to.

    Raises:
        UserError: a pattern matches nothing, an input is of an unknown kind, or one is named twice.
        OSError: an input cannot be read.
    """
    found: dict[str, tuple[str, str, InputConfig]] = {}
    for number, entry in enumerate(recipe.inputs):
        where = f"inputs.{number}.files"
        for pattern in entry.patterns():
            for name, told in _expand(folder, pattern, where, folders=entry.read.kind in FOLDER_KINDS):
                if kind_of(name, entry.read) in TOKEN_KINDS:
                    raise UserError(f"{where}: {name} holds token ids, which no recipe takes in; give it the texts")
                location = told if files.is_remote(told) else str(Path(told).resolve())
                if location in found:
                    also = found[location][1]
                    same = "" if also == told else f", also as {also}"
                    raise UserError(f"{where}: {told} is named twice{same}; let one pattern match it, once")
                found[location] = (name, told, entry)
    ordered = sorted(((name, location, entry) for location, (name, _, entry) in found.items()), key=lambda one: one[0])
    inputs = []
    for name, location, entry in tqdm(ordered, desc="hash inputs", unit="input", delay=1, leave=False):
        source = source_of(name, location, entry)
        inputs.append(InputFile(name, location, entry, fingerprint(source), input_bytes(source)))
    return inputs


def _expand(folder: Path, pattern: str, where: str, *, folders: bool) -> list[tuple[str, str]]:
    """What a pattern matches, each with its name: the path as the pattern writes it, without `./`; a URL is no pattern.

    Args:
        folder: of the recipe.
        pattern: path, pattern or URL.
        where: the recipe's key.
        folders: whether a folder is an input.
    """
    if files.is_remote(pattern):
        return [(pattern, pattern)]
    if Path(pattern).is_absolute():
        base, prefix, rest = Path("/"), "/", pattern.lstrip("/")
    else:
        base, prefix, rest = folder, "", pattern
    while rest.startswith(("../", "./")):
        part, rest = rest.split("/", 1)
        base, prefix = base / part, prefix + ("" if part == "." else f"{part}/")
    try:
        matches = sorted(base.glob(rest))
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{where} = {pattern!r}: is no pattern of files ({error}); correct it") from None
    found = [(prefix + path.relative_to(base).as_posix(), str(path)) for path in matches if path.is_file() or folders]
    if not found and matches:
        raise UserError(f"{where} = {pattern}: {matches[0]} is a directory; name the files in it, such as {pattern}/*")
    if not found:
        raise UserError(f"{where} = {pattern}: no such file under {folder}; paths are relative to the recipe")
    return found
