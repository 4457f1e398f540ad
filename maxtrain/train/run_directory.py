"""The run directory: created or resumed, locked, and held against the config."""

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from maxtrain.checkpoint.steps import newest_record
from maxtrain.config.load import to_yaml
from maxtrain.config.schema import Config
from maxtrain.core.errors import UserError
from maxtrain.core.files import DirectoryLock, write_atomic
from maxtrain.loader import compare_fingerprints

_FIXED = (
    "model",
    "run.seed",
    "precision.parameters",
    "optimizer.name",
    "optimizer.mu_dtype",
    "optimizer.nu_dtype",
)
"""Parts of the config that a resume may not change; the data has the loader's fingerprint."""
_FREE_MODEL = {"model.dropout", "model.init_std", "model.depth_scaled_init", "model.z_weight"}


class RunDirectory:
    """A run directory that this process holds alone.

    Attributes:
        path: the directory.
        newest: record of the newest verified checkpoint that is not unhealthy, or None for a fresh run.
        changed: keys of the config that differ from that checkpoint's.
    """

    def __init__(self, config: Config, fingerprint: dict[str, Any]) -> None:
        self.path = Path(config.run.directory)
        self._config, self._fingerprint = config, fingerprint
        self._held = ExitStack()
        self.newest: dict[str, Any] | None = None
        self.changed: list[str] = []

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    def __enter__(self) -> Self:
        """Create and lock the directory, and refuse a config that the checkpoints contradict.

        Raises:
            UserError: the directory cannot be written, or the config may not change so.
            BusyError: another run holds it.
        """
        try:
            for part in ("checkpoints", "eval"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
            self._held.enter_context(DirectoryLock(self.path))
        except (PermissionError, FileExistsError, NotADirectoryError, OSError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"run.directory {self.path}: cannot be written ({error.strerror}); choose a writable directory"
            ) from None
        try:
            self._compare()
            write_atomic(self.path / "config.yaml", to_yaml(self._config).encode())
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def keep_tokenizer(self, model: bytes) -> None:
        """Keep the tokenizer beside the checkpoints, so that text can be generated without the dataset."""
        path = self.path / "tokenizer.model"
        if not path.exists() or path.read_bytes() != model:
            write_atomic(path, model)

    def _compare(self) -> None:
        self.newest = newest_record(self.checkpoints)
        if self.newest is None:
            return
        differences = compare_fingerprints(self.newest["fingerprint"], self._fingerprint, self.newest["step"])
        if differences:
            raise UserError(
                f"{self.path}: the data differs from that of step {self.newest['step']}: {'; '.join(differences)}; "
                "restore the old values, or start in another run.directory"
            )
        self.changed = changed_keys(self.newest["config"], self._config)
        fixed = [key for key in self.changed if _is_fixed(key)]
        if fixed:
            raise UserError(
                f"{self.path}: {', '.join(fixed)} differ from those of step {self.newest['step']} and may not change "
                "in a resumed run; restore the old values, or start in another run.directory"
            )


def changed_keys(saved: dict[str, Any], config: Config) -> list[str]:
    """Dotted keys in which a config differs from a saved one; a key that did not exist then had its default."""
    with suppress(ValidationError):  # else a key has gone, or may no longer have that value: it differs
        saved = Config.model_validate(saved).model_dump(mode="json")
    return sorted(_different_keys(saved, config.model_dump(mode="json")))


def _is_fixed(key: str) -> bool:
    return key not in _FREE_MODEL and any(key == part or key.startswith(f"{part}.") for part in _FIXED)


def _different_keys(old: Any, new: Any, path: str = "") -> Iterable[str]:
    """Dotted keys of two JSON trees that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _different_keys(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path
