"""From a step's device values to a line of the metrics schema."""

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from maxtrain.config.batch_plan import BatchPlan
from maxtrain.optim import GROUPS

LineBuilder = Callable[[int, dict[str, Any], dict[str, float]], dict[str, Any]]

_FLOATS = (
    "loss",
    "cross_entropy",
    "z_loss",
    "balance_loss",
    "router_z_loss",
    "grad_norm",
    "update_norm",
    "param_norm",
    "lr",
)


def make_line_builder(
    plan: BatchPlan,
    *,
    domains: Sequence[str],
    groups: Sequence[str],
    epochs: Callable[[int], dict[str, float]],
    flops_per_token: Callable[[int], float],
    peak_flops: float,
    num_devices: int,
) -> LineBuilder:
    """Build the function (step, metrics, seconds) -> line, without attempt and time.

    Args:
        plan: the run's batches.
        domains: names in the order of `batch["domain"]`.
        groups: parameter groups that the model has.
        epochs: epochs of every domain before a step.
        flops_per_token: model FLOPs a token at a sequence length.
        peak_flops: FLOP/s of one device.
        num_devices: devices in the mesh.
    """

    def build(step: int, metrics: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
        segment = plan.segment_at(step - 1)
        flops = flops_per_token(segment.stage.sequence_length)
        speed = segment.step_tokens / seconds["step"]
        tokens = float(metrics["tokens"])
        in_use, peak_memory = _memory()
        counts = metrics["tokens_by_domain"]
        losses = metrics["loss_by_domain"]
        load = np.asarray(metrics["expert_load"], np.float64)
        return {
            **{name: float(metrics[name]) for name in _FLOATS},
            "max_attention_logit": _logit(metrics, tokens),
            "step": int(metrics["step"]),
            "updates": int(metrics["updates"]),
            "tokens_seen": plan.tokens_at(step),
            "batch_digest": int(metrics["batch_digest"]),
            "target_tokens": int(metrics["target_tokens"]),
            "loss_by_domain": {name: float(losses[i]) if counts[i] else None for i, name in enumerate(domains)},
            "tokens_by_domain": {name: int(counts[i]) for i, name in enumerate(domains)},
            "epochs": epochs(step),
            "padding_fraction": 1.0 - tokens / segment.step_tokens,
            "grad_norm_by_group": {
                name: float(metrics["grad_norm_by_group"][i]) for i, name in enumerate(GROUPS) if name in groups
            },
            "skipped": bool(metrics["skipped"]),
            "skipped_target_tokens": int(metrics["target_tokens"]) if metrics["skipped"] else 0,
            "skips_in_a_row": int(metrics["skips_in_a_row"]),
            "expert_load": load.astype(np.int64).tolist(),
            "expert_load_max_over_mean": (load.max(-1) / np.maximum(load.mean(-1), 1e-9)).tolist() if load.size else [],
            "expert_entropy": _load_entropy(load),
            "router_entropy": np.asarray(metrics["router_entropy"], np.float64).tolist(),
            "dropped_tokens": np.asarray(metrics["dropped_tokens"]).astype(np.int64).tolist(),
            "flops_per_token": flops,
            "num_devices": num_devices,
            "tokens_per_second": speed,
            "tokens_per_second_per_device": speed / num_devices,
            "mfu": flops * tokens / seconds["step"] / (peak_flops * num_devices) if peak_flops else None,
            "step_seconds": seconds["step"],
            "data_wait_seconds": seconds["data_wait"],
            "device_seconds": seconds["device"],
            "host_seconds": seconds["host"],
            "save_stall_seconds": seconds["save_stall"],
            "communication_fraction": None,
            "memory_bytes": in_use,
            "memory_peak_bytes": peak_memory,
        }

    return build


def _logit(metrics: dict[str, Any], tokens: float) -> float | None:
    """None where QK-clip measures none, or no token attends."""
    return float(metrics["max_attention_logit"]) if "max_attention_logit" in metrics and tokens else None


def _load_entropy(load: np.ndarray) -> list[float]:
    """Entropy of each layer's expert load, divided by that of an even load."""
    if not load.size:
        return []
    share = load / np.maximum(load.sum(-1, keepdims=True), 1e-9)
    nats = -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)
    return (nats / max(np.log(load.shape[-1]), 1e-9)).tolist()


def _memory() -> tuple[int | None, int | None]:
    """Bytes in use and their peak: the fullest local device's, or on CPU the process's resident memory."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    known = [stat for stat in stats if stat]
    if known:
        return (
            max(int(stat["bytes_in_use"]) for stat in known),
            max(int(stat.get("peak_bytes_in_use", 0)) for stat in known) or None,
        )
    if jax.default_backend() != "cpu":
        return None, None
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else None
    in_use = pages * os.sysconf("SC_PAGE_SIZE") if pages is not None else None
    return in_use, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
