"""The input files that a recipe names."""

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.corpus.recipe import InputConfig, Recipe

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Kinds of input files."""


@dataclass(frozen=True)
class InputFile:
    """A file that a recipe names."""

    name: str
    """The path as the recipe writes it, patterns filled in."""
    path: Path
    entry: InputConfig
    sha256: str
    """Hash of the file when it was found."""


def find_inputs(recipe: Recipe, folder: Path) -> list[InputFile]:
    """Find and hash the input files, in order of their names.

    Args:
        recipe: names them.
        folder: directory of the recipe, which its paths are relative to.

    Raises:
        UserError: a pattern matches no file, a file is of an unknown kind, or one file is named twice.
        OSError: a file cannot be read.
    """
    found: dict[Path, tuple[str, Path, InputConfig]] = {}
    for number, entry in enumerate(recipe.inputs):
        where = f"inputs.{number}.files"
        for pattern in entry.patterns():
            for name, path in _expand(folder, pattern, where):
                if not name.endswith(SUFFIXES):
                    raise UserError(f"{where}: {path} is none of {', '.join(SUFFIXES)}")
                file = path.resolve()
                if file in found:
                    also = found[file][1]
                    same = "" if also == path else f", also as {also}"
                    raise UserError(f"{where}: {path} is named twice{same}; let one pattern match it, once")
                found[file] = (name, path, entry)
    ordered = sorted(found.values(), key=lambda file: file[0])
    return [
        InputFile(name, path, entry, files.sha256_file(path))
        for name, path, entry in tqdm(ordered, desc="hash inputs", unit="file", delay=1, leave=False)
    ]


def _expand(folder: Path, pattern: str, where: str) -> list[tuple[str, Path]]:
    """Files that a pattern matches, each with its name: the path as the pattern writes it, without `./`."""
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
    found = [(prefix + path.relative_to(base).as_posix(), path) for path in matches if path.is_file()]
    if not found and matches:
        raise UserError(f"{where} = {pattern}: {matches[0]} is a directory; name the files in it, such as {pattern}/*")
    if not found:
        raise UserError(f"{where} = {pattern}: no such file under {folder}; paths are relative to the recipe")
    return found
