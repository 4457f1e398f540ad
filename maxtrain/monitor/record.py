"""A run read back from its directory, for people: no JAX, no checkpoint is opened."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import load_config
from maxtrain.config.schema import Config
from maxtrain.core.errors import UserError
from maxtrain.monitor.events import Event, read_events
from maxtrain.monitor.heldout import HeldOutResult, read_heldout
from maxtrain.monitor.jsonl import read_json_lines
from maxtrain.monitor.metrics import forget_from, iterate_metrics
from maxtrain.monitor.schema import FIELDS

_SCALAR_KINDS = ("int", "float", "bool")
_MAX_LOADS = 240


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote: a line `{"step", "prompt", "text"}` of samples.jsonl."""

    step: int | None
    prompt: str
    text: str


@dataclass(frozen=True)
class Metrics:
    """Columns over the S steps that count, in order; what is not known is nan.

    Attributes:
        scalars: Every field of one number by name, float64 [S].
        by_name: Every field by name: name → key → float64 [S].
        by_layer: Every list by mixture-of-experts layer: name → float64 [S, L]; L is 0 for a dense model.
        load_tokens: tokens_seen of the steps whose expert load was kept, int64 [P].
        load: Their expert loads, float64 [P, L, E]; thinned evenly, the last step included.
    """

    scalars: dict[str, np.ndarray]
    by_name: dict[str, dict[str, np.ndarray]]
    by_layer: dict[str, np.ndarray]
    load_tokens: np.ndarray
    load: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        """Step of every row, [S]."""
        return self.scalars["step"]

    @property
    def tokens(self) -> np.ndarray:
        """tokens_seen of every row, [S]."""
        return self.scalars["tokens_seen"]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Runs (first, last) of steps before the newest that have no line."""
        steps = [0, *self.steps.astype(int).tolist()]
        return [(before + 1, step - 1) for before, step in pairwise(steps) if step > before + 1]


@dataclass(frozen=True)
class RunRecord:
    """What a run directory tells.

    Attributes:
        directory: The run directory.
        metrics: Every step.
        heldout: Held-out evaluations by step.
        events: Events in order.
        samples: Texts that the model wrote, if there are any.
        config: The resolved config, or None where config.yaml is absent or of another version.
        config_text: config.yaml as it stands; empty if absent.
    """

    directory: Path
    metrics: Metrics
    heldout: list[HeldOutResult]
    events: list[Event]
    samples: list[Sample]
    config: Config | None
    config_text: str

    @property
    def name(self) -> str:
        """Name of the run: that of its directory."""
        return self.directory.resolve().name

    @property
    def domains(self) -> list[str]:
        """Domains in the order of the mixture."""
        return list(self.metrics.by_name["tokens_by_domain"])

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run, or None without a config."""
        return plan_batches(self.config).num_steps if self.config is not None else None

    def tokens_by_domain(self) -> dict[str, int]:
        """Target tokens consumed so far by domain."""
        consumed = self.metrics.by_name["tokens_by_domain"]
        return {name: int(np.nansum(values)) for name, values in consumed.items()}

    def stated_shares(self) -> dict[str, float] | None:
        """Share of the rows that the config gives each domain over the steps so far; None without a config."""
        if self.config is None:
            return None
        shares = dict.fromkeys(self.domains, 0.0)
        done = int(self.metrics.steps[-1])
        for segment in plan_batches(self.config).segments:
            tokens = min(max(done - segment.first_step, 0), segment.num_steps) * segment.step_tokens
            mixture = segment.stage.mixture
            whole = sum(domain.weight for domain in mixture.values())
            for name, domain in mixture.items():
                shares[name] = shares.get(name, 0.0) + tokens * domain.weight / whole
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()} if total else None


class _Loads:
    """Keeps an even choice of at most _MAX_LOADS steps' expert loads while reading."""

    def __init__(self) -> None:
        self._stride = 1
        self._kept: dict[int, tuple[int, np.ndarray]] = {}
        self._last: tuple[int, int, np.ndarray] | None = None

    def add(self, step: int, tokens: int, load: list[list[int]] | None) -> None:
        if not load:
            return
        array = np.asarray(load, np.int64)
        self._last = (step, tokens, array)
        if step % self._stride:
            return
        self._kept[step] = (tokens, array)
        if len(self._kept) > _MAX_LOADS:
            self._stride *= 2
            self._kept = {kept: value for kept, value in self._kept.items() if kept % self._stride == 0}

    def forget_from(self, step: int) -> None:
        """Drop the loads of a step and later ones."""
        forget_from(step, self._kept)
        if self._last is not None and self._last[0] >= step:
            newest = max(self._kept, default=None)
            self._last = (newest, *self._kept[newest]) if newest is not None else None

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        if self._last is None:
            return np.zeros(0, np.int64), np.zeros((0, 0, 0))
        chosen = self._kept | {self._last[0]: self._last[1:]}
        ordered = [chosen[step] for step in sorted(chosen)]
        shape = ordered[-1][1].shape
        same = [(tokens, load) for tokens, load in ordered if load.shape == shape]
        return np.array([tokens for tokens, _ in same]), np.stack([load for _, load in same]).astype(np.float64)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _column(values: Iterable[Any]) -> np.ndarray:
    return np.array([_number(value) for value in values], np.float64)


def read_columns(path: Path) -> Metrics:
    """Read metrics.jsonl into columns, in one pass.

    Raises:
        UserError: the file is absent or has no step yet.
    """
    loads = _Loads()
    by_step: dict[int, dict[str, Any]] = {}
    if path.is_file():
        attempt = None
        for line in iterate_metrics(path):
            if line["attempt"] != attempt:
                attempt = line["attempt"]
                forget_from(line["step"], by_step)
                loads.forget_from(line["step"])
            loads.add(line["step"], line["tokens_seen"], line.pop("expert_load", None))
            by_step[line["step"]] = line
    if not by_step:
        raise UserError(f"{path}: no step is recorded; give the directory of a run that has finished its first step")
    lines = [by_step[step] for step in sorted(by_step)]
    scalars = {
        field.name: _column(line.get(field.name) for line in lines) for field in FIELDS if field.kind in _SCALAR_KINDS
    }
    by_name, by_layer = {}, {}
    for field in FIELDS:
        if field.kind.endswith("by name"):
            keys = dict.fromkeys(key for line in lines for key in line.get(field.name) or ())
            by_name[field.name] = {
                key: _column((line.get(field.name) or {}).get(key) for line in lines) for key in keys
            }
        elif field.kind.endswith("list"):
            layers = max(len(line.get(field.name) or ()) for line in lines)
            table = np.full((len(lines), layers), np.nan)
            for row, line in enumerate(lines):
                values = line.get(field.name) or ()
                table[row, : len(values)] = [_number(value) for value in values]
            by_layer[field.name] = table
    return Metrics(scalars, by_name, by_layer, *loads.arrays())


def _read_samples(path: Path) -> list[Sample]:
    if not path.is_file():
        return []

    def sample(line: dict[str, Any]) -> Sample:
        step = line.get("step")
        return Sample(step if isinstance(step, int) else None, str(line.get("prompt", "")), str(line.get("text", "")))

    return list(read_json_lines(path, sample))


def _read_config(path: Path) -> tuple[Config | None, str]:
    if not path.is_file():
        return None, ""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return load_config(path), text
    except UserError:  # written by another version: the text is still shown
        return None, text


def read_run(directory: Path) -> RunRecord:
    """Read a run directory; a run that is still going is read as far as it is.

    Raises:
        UserError: there is no such directory, or the run has no finished step.
        DataError: a file holds a damaged line.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such run directory; give the one that the config names as run.directory")
    config, text = _read_config(directory / "config.yaml")
    return RunRecord(
        directory,
        read_columns(directory / "metrics.jsonl"),
        read_heldout(directory / "eval" / "heldout.jsonl"),
        read_events(directory / "events.jsonl"),
        _read_samples(directory / "samples.jsonl"),
        config,
        text,
    )
