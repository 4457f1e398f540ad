"""The input files that a recipe names."""

from pathlib import Path

from maxtrain.core.errors import UserError
from maxtrain.corpus.recipe import InputConfig, Recipe

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Kinds of input files."""


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
