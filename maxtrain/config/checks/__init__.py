"""What must hold across sections, all of it checked before JAX starts."""

from collections.abc import Callable, Iterator, Mapping

from maxtrain.config.checks.backend import Backend, check_backend
from maxtrain.config.checks.batch import check_batch
from maxtrain.config.checks.data import check_data
from maxtrain.config.checks.experts import check_experts
from maxtrain.config.checks.mesh import axis_sizes, check_mesh
from maxtrain.config.checks.model import check_model
from maxtrain.config.checks.optim import check_optimizer
from maxtrain.config.checks.pipeline import check_pipeline
from maxtrain.config.checks.remat import check_remat
from maxtrain.config.checks.run import check_run
from maxtrain.config.checks.sequence import check_sequence
from maxtrain.config.schema import Config
from maxtrain.config.violations import ConfigError, Violation, with_origins

__all__ = ["Backend", "axis_sizes", "check_config", "check_or_raise"]

_CHECKS: tuple[Callable[[Config, Mapping[str, int] | None], Iterator[Violation]], ...] = (
    check_model,
    check_remat,
    check_experts,
    check_batch,
    check_pipeline,
    check_sequence,
    check_data,
    check_optimizer,
    check_run,
)


def check_config(config: Config, num_devices: int | None = None, backend: Backend | None = None) -> list[Violation]:
    """Every rule across sections that a config breaks.

    Args:
        config: a config that has passed its schema.
        num_devices: devices of the run in all; None takes mesh.devices. Where neither is known, a mesh with an axis
            of -1 is checked only as far as the other axes tell.
        backend: what the devices are; None where they have not started.

    Returns:
        The violations, none if the config can run.
    """
    sizes = axis_sizes(config.mesh, num_devices)
    found = list(check_mesh(config, num_devices))
    for check in _CHECKS:
        found.extend(check(config, sizes))
    if backend is not None:
        found.extend(check_backend(config, backend))
    return found


def check_or_raise(
    config: Config,
    num_devices: int | None = None,
    *,
    backend: Backend | None = None,
    name: str = "config",
    origins: Mapping[str, str] | None = None,
) -> None:
    """Refuse a config that breaks rules across sections.

    Args:
        config: a config that has passed its schema.
        num_devices: as in `check_config`.
        backend: as in `check_config`.
        name: what the error calls the config, such as its file.
        origins: where each key was written (`merge.Source.origins`), for the messages.

    Raises:
        ConfigError: with all violations.
    """
    violations = check_config(config, num_devices, backend)
    if violations:
        raise ConfigError(name, with_origins(violations, origins or {}))
