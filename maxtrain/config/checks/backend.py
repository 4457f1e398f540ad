"""What the devices must be able to do; known only once they have started."""

from collections.abc import Iterator
from typing import NamedTuple

from maxtrain.config.schema import Config
from maxtrain.config.violations import Violation


class Backend(NamedTuple):
    """The devices of a run, as JAX names them."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    device_kind: str
    """Such as `NVIDIA H100 80GB HBM3` or `TPU v5p`."""
    compute_capability: tuple[int, int] | None = None
    """Of NVIDIA devices, such as (9, 0)."""


def check_backend(config: Config, backend: Backend) -> Iterator[Violation]:
    """Options that these devices lack."""
    yield from _check_offload(config, backend)
    yield from _check_eight_bit(config, backend)


def _check_eight_bit(config: Config, backend: Backend) -> Iterator[Violation]:
    compute = config.precision.compute
    units = {
        "float8": (_has_float8, "NVIDIA from Ada and Hopper on, TPU7x"),
        "mxfp8": (_has_mxfp8, "NVIDIA from Blackwell on"),
    }
    if compute not in units or config.precision.emulate:
        return
    has, owners = units[compute]
    if not has(backend):
        other = "float8 or bfloat16" if compute == "mxfp8" and _has_float8(backend) else "bfloat16"
        cure = f"set {other}, or precision.emulate to true to round operands only, which is slow"
        yield Violation("precision.compute", compute, f"{backend.device_kind} has no {compute} units ({owners})", cure)


def _is_cuda(backend: Backend, least: tuple[int, int]) -> bool:
    return backend.compute_capability is not None and backend.compute_capability >= least


def _has_mxfp8(backend: Backend) -> bool:
    return _is_cuda(backend, (10, 0))


def _has_float8(backend: Backend) -> bool:
    if backend.platform == "gpu":
        return _is_cuda(backend, (8, 9))
    return backend.platform == "tpu" and backend.device_kind.lower().replace(" v", "").startswith("tpu7")


def _check_offload(config: Config, backend: Backend) -> Iterator[Violation]:
    if backend.platform != "cpu":
        return
    policies = {"remat.policy": config.remat.policy}
    policies |= {f"remat.layers.{index}.policy": part.policy for index, part in enumerate(config.remat.layers)}
    for path, policy in policies.items():
        if policy == "offload_dots":
            limit = "the CPU's device memory is the host's memory, so that nothing would leave it"
            yield Violation(path, policy, limit, "set save_dots, or full to keep less")
