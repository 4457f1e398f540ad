"""A task: a pure function from files to a folder of files, which is kept under the hash of what it is made from.

The folder of a task is named by the hash of its function and arguments. Arguments name other tasks' files by those
folders, and input files with their hashes, so that a folder that is there is what the task would make again: a build
that was killed goes on where it was, and a changed recipe or input remakes only what follows from it.
"""

import hashlib
import importlib
import json
import resource
import secrets
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError

_DONE = "done.json"
_HOME = "maxtrain.corpus."
"""Where functions of tasks live; nothing else is ever called by its name."""


@dataclass(frozen=True)
class Task:
    """What a worker is to do.

    Attributes:
        stage: name of the stage, which is the folder's parent.
        function: `module:name` of a function (arguments, work directory, folder to fill) -> facts, plain JSON values.
        arguments: plain JSON values from which the output follows.
        version: of the code; another one makes everything anew.
        weight: bytes to work through, for the progress bar.
    """

    stage: str
    function: str
    arguments: dict[str, Any]
    version: int
    weight: int = 1

    @cached_property
    def key(self) -> str:
        """Identity of the output: 24 hex digits."""
        made_from = [self.version, self.function, self.arguments]
        text = json.dumps(made_from, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def folder(self) -> str:
        """Where the output lies, relative to the work directory."""
        return f"{self.stage}/{self.key}"

    def to_json(self) -> str:
        """The task as a line for a worker."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "Task":
        """The task of such a line."""
        return Task(**json.loads(text))


@dataclass(frozen=True)
class Outcome:
    """What a task has left.

    Attributes:
        folder: where its files are, relative to the work directory.
        facts: what its function returned.
        cpu_seconds, peak_bytes: what it took; 0 where it was done before.
    """

    folder: str
    facts: dict[str, Any]
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


def find_done(work: Path, task: Task) -> Outcome | None:
    """What an earlier run has left of a task, every file verified by its hash; None where it is to be done."""
    folder = work / task.folder
    try:
        record = json.loads((folder / _DONE).read_bytes())
        whole = all(files.sha256_file(folder / name) == sha256 for name, sha256 in record["files"].items())
    except (OSError, ValueError, KeyError, EOFError):
        whole = False
    if whole:
        return Outcome(task.folder, record["facts"])
    if folder.exists():
        shutil.rmtree(folder)
    return None


def _function(name: str) -> Callable[[dict[str, Any], Path, Path], dict[str, Any]]:
    module, _, attribute = name.partition(":")
    assert module.startswith(_HOME), "tasks call functions of this package only"
    return getattr(importlib.import_module(module), attribute)


def run_task(work: Path, task: Task) -> Outcome:
    """Do a task. Its folder appears whole or not at all; of two workers at the same one, the first to end leaves it."""
    target = work / task.folder
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    partial.mkdir(parents=True)
    started = time.process_time()
    try:
        facts = _function(task.function)(task.arguments, work, partial)
        hashes = {name: files.sha256_file(partial / name) for name in files.list_files(partial)}
        (partial / _DONE).write_text(json.dumps({"facts": facts, "files": hashes}, ensure_ascii=False), "utf-8")
        try:
            partial.rename(target)
        except OSError:
            if not (target / _DONE).exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Outcome(task.folder, facts, time.process_time() - started, peak)


def run_told(work: str, line: str) -> str:
    """Do the task of a line, in a worker; failures come back as values, so that no engine wraps or loses them."""
    task = Task.from_json(line)
    try:
        return json.dumps({"outcome": asdict(run_task(Path(work), task))}, ensure_ascii=False)
    except UserError as error:
        kind = "data" if isinstance(error, DataError) else "user"
        return json.dumps({"error": {"kind": kind, "message": str(error)}}, ensure_ascii=False)
    except OSError as error:
        told = {"kind": "os", "errno": error.errno, "message": error.strerror or str(error), "file": error.filename}
        return json.dumps({"error": told}, default=str, ensure_ascii=False)
    except Exception:
        return json.dumps({"error": {"kind": "bug", "message": traceback.format_exc()}}, ensure_ascii=False)


def outcome_of(line: str) -> Outcome:
    """The outcome that a worker told.

    Raises:
        UserError, DataError, OSError: as the task did.
        RuntimeError: the task failed by a mistake of ours; the message is its traceback.
    """
    told = json.loads(line)
    if "outcome" in told:
        return Outcome(**told["outcome"])
    error = told["error"]
    if error["kind"] == "os":
        raise OSError(error["errno"], error["message"], error["file"])
    if error["kind"] == "bug":
        raise RuntimeError(f"a task of the pipeline failed:\n{error['message']}")
    raise (DataError if error["kind"] == "data" else UserError)(error["message"])
