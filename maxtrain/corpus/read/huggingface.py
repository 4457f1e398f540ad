"""Local folders of Hugging Face `datasets`: what save_to_disk writes, and folders of data files with a card."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.core.records import RecordError
from maxtrain.corpus.read.jsonl import json_record
from maxtrain.corpus.read.options import kind_by_name, strip_compression
from maxtrain.corpus.read.records import Item
from maxtrain.corpus.read.source import Reading
from maxtrain.corpus.read.streams import decompress, lines, open_random, raw_pieces
from maxtrain.corpus.read.tables import arrow_rows, parquet_rows, unchanged

_STATE, _DICTIONARY, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
_MOST_JSON = 2**24
_DATA_KINDS = ("arrow", "parquet", "jsonl")


def read_huggingface(reading: Reading) -> Iterator[Item]:
    """A record a row of every data file, in order of their names."""
    root = files.local_path(reading.source.path)
    for name in data_files(root, reading.options.split, reading.source.name):
        path = root / name
        if reading.on_read is not None:
            reading.on_read(file_header(path, name))
        try:
            yield from _rows(reading, path, name)
        except RecordError as error:
            reading.next()
            yield reading.bad(error.reason, f"{name}: {error.detail}")


def file_header(path: Path, name: str) -> bytes:
    """What goes into the hash of a folder before the bytes of a file."""
    return f"{name}\0{path.stat().st_size}\n".encode()


def _rows(reading: Reading, path: Path, name: str) -> Iterator[Item]:
    kind = kind_by_name(name)
    if kind == "jsonl":
        first = reading.number
        pieces = decompress(raw_pieces(str(path), reading.on_read), strip_compression(name)[1])
        for number, line in lines(pieces, reading.options.max_record_bytes):
            reading.number = first + number
            yield from json_record(reading, line)
        return
    read = arrow_rows if kind == "arrow" else parquet_rows
    with open_random(str(path), reading.on_read) as file:
        yield from unchanged(reading, file, read(reading, file, f"{reading.source.name}/{name}"))


def data_files(root: Path, split: str | None, name: str) -> list[str]:
    """Names of the data files of a dataset's folder, in order.

    Args:
        root: the folder.
        split: the split to read, None for all.
        name: what messages call the folder.

    Raises:
        UserError: the folder holds no dataset, or not that split.
    """
    if not root.is_dir():
        raise UserError(f"{name}: no such folder; kind huggingface reads the folder of a dataset")
    if (root / _DICTIONARY).is_file():
        splits = [part for part in _load(root / _DICTIONARY, name).get("splits", []) if _is_plain(part)]
        if split is not None and split not in splits:
            raise UserError(f"{name}: no split {split}; it has {', '.join(splits)}")
        wanted = [split] if split is not None else splits
        return [f"{part}/{file}" for part in wanted for file in _saved(root / part, f"{name}/{part}")]
    if (root / _STATE).is_file():
        return _saved(root, name)
    found = [
        file
        for file in files.list_files(root)
        if kind_by_name(file) in _DATA_KINDS
        and not any(part.startswith(".") for part in file.split("/"))
        and not (root / file).is_symlink()
    ]
    if split is not None:
        pattern = re.compile(rf"(?:^|[/._-]){re.escape(split)}(?=$|[/._-])")
        wanted_files = [file for file in found if pattern.search(file)]
        if found and not wanted_files:
            raise UserError(f"{name}: no data file of a split {split} among {len(found)}, such as {found[0]}")
        found = wanted_files
    if not found:
        raise UserError(
            f"{name}: no dataset here; expected {_STATE}, {_DICTIONARY}, or .parquet, .arrow or .jsonl files"
        )
    return found


def _is_plain(name: Any) -> bool:
    """Whether something is a file's name alone: what a dataset says never leads out of its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\\" not in name


def _saved(folder: Path, name: str) -> list[str]:
    listed = _load(folder / _STATE, name).get("_data_files", [])
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    for file in names:
        if file is None or not _is_plain(file) or not (folder / file).is_file() or (folder / file).is_symlink():
            raise UserError(
                f"{name}: {_STATE} names {str(file)[:100]!r}, which is no file in the folder; copy it whole"
            )
    return [str(file) for file in names]


def _load(path: Path, name: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON:
            raise ValueError("too large")
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{name}: {path.name} is missing; copy the dataset's folder whole") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: {path.name} is damaged ({error}); copy the dataset again") from None
    if not isinstance(told, dict) or not isinstance(told.get("_data_files", []), list):
        raise UserError(f"{name}: {path.name} is damaged; copy the dataset again")
    if not isinstance(told.get("splits", []), list):
        raise UserError(f"{name}: {path.name} is damaged; copy the dataset again")
    return told
