"""Flags of XLA for each backend: collectives overlap with computation, and are combined to a size that fills a link.

A CPU's compiler is told to spend less.

The compiler reads them when the backend starts. A flag that it does not know ends the process, so a test asks the
installed jaxlib about each of its own; those of a TPU are read by libtpu.
"""

import os
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from typing import NamedTuple


class Preset(NamedTuple):
    """Flags of one backend."""

    variable: str
    """Environment variable that they belong in."""
    flags: Mapping[str, str]
    """Value by name, without the leading dashes."""


PRESETS: Mapping[str, Preset] = {
    "cpu": Preset(
        "XLA_FLAGS",
        {
            # Unrolled loops take a quarter of the time of compiling a step, and the step is no faster for them.
            "xla_backend_extra_options": "xla_cpu_disable_loop_unrolling",
        },
    ),
    "gpu": Preset(
        "XLA_FLAGS",
        {
            # Collectives start as early and end as late as data allows.
            "xla_gpu_enable_latency_hiding_scheduler": "true",
            "xla_gpu_enable_highest_priority_async_stream": "true",
            # A layer's weights are gathered, and its gradients scattered, while its neighbour computes.
            "xla_gpu_enable_pipelined_all_gather": "true",
            "xla_gpu_enable_pipelined_reduce_scatter": "true",
            "xla_gpu_enable_pipelined_all_reduce": "true",
            "xla_gpu_enable_while_loop_double_buffering": "true",
            # Small collectives are sent together.
            "xla_gpu_all_gather_combine_threshold_bytes": str(128 * 2**20),
            "xla_gpu_reduce_scatter_combine_threshold_bytes": str(128 * 2**20),
            "xla_gpu_all_reduce_combine_threshold_bytes": str(128 * 2**20),
        },
    ),
    "tpu": Preset(
        "LIBTPU_INIT_ARGS",
        {
            "xla_tpu_enable_async_collective_fusion": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
            "xla_tpu_overlap_compute_collective_tc": "true",
            "xla_enable_async_all_gather": "true",
        },
    ),
}
"""By platform."""


def quick_compile(platform: str) -> dict[str, bool]:
    """Compiler options for programs that cost more to compile than to run: XLA's older generator of CPU code.

    It takes less than half the time. Loops over memory run as fast, large attention blocks up to a third slower.

    Args:
        platform: of the devices to compile for; others than `cpu` have no such choice.
    """
    return {"xla_cpu_use_fusion_emitters": False} if platform == "cpu" else {}


def expected_platform(environment: Mapping[str, str] = os.environ) -> str:
    """The platform that JAX will choose, as far as can be told before it starts: from JAX_PLATFORMS or its plugins."""
    stated = environment.get("JAX_PLATFORMS", "").split(",")[0].lower()
    if stated:
        return {"cuda": "gpu", "rocm": "gpu"}.get(stated, stated)
    if find_spec("libtpu") is not None:
        return "tpu"
    if any(find_spec(plugin) is not None for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        return "gpu"
    return "cpu"


def apply_preset(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Add the platform's flags to the environment; before the backend starts.

    Flags that are there already keep their values.

    Returns:
        What was added, for the log; None for nothing.
    """
    preset = PRESETS.get(expected_platform(environment))
    if preset is None:
        return None
    present = environment.get(preset.variable, "")
    names = {word.lstrip("-").partition("=")[0] for word in present.split()}
    added = [f"--{name}={value}" for name, value in preset.flags.items() if name not in names]
    if not added:
        return None
    environment[preset.variable] = " ".join([*present.split(), *added])
    return f"{preset.variable}: added {' '.join(added)}"
