"""Where metrics go besides metrics.jsonl; the only place that knows vendors."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tensorboardX import SummaryWriter

from maxtrain.monitor.heldout import HeldOutResult


class Sink(Protocol):
    """Takes what a run measures; `metrics.jsonl` stays the record, a sink is a view."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Take a line of the metrics schema."""

    def write_heldout(self, result: HeldOutResult) -> None:
        """Take a held-out evaluation."""

    def flush(self) -> None:
        """Hand on what is buffered."""

    def close(self) -> None:
        """Flush and end."""


SCALARS: dict[str, str] = {
    "loss": "loss/total",
    "cross_entropy": "loss/cross_entropy",
    "balance_loss": "loss/balance",
    "router_z_loss": "loss/router_z",
    "z_loss": "loss/z",
    "lr": "optimizer/lr",
    "grad_norm": "optimizer/grad_norm",
    "update_norm": "optimizer/update_norm",
    "param_norm": "optimizer/param_norm",
    "max_attention_logit": "optimizer/max_attention_logit",
    "updates": "optimizer/updates",
    "skips_in_a_row": "optimizer/skips_in_a_row",
    "tokens_seen": "data/tokens_seen",
    "padding_fraction": "data/padding_fraction",
    "tokens_per_second": "speed/tokens_per_second",
    "tokens_per_second_per_device": "speed/tokens_per_second_per_device",
    "mfu": "speed/mfu",
    "communication_fraction": "speed/communication_fraction",
    "step_seconds": "speed/step_seconds",
    "data_wait_seconds": "speed/data_wait_seconds",
    "device_seconds": "speed/device_seconds",
    "host_seconds": "speed/host_seconds",
    "save_stall_seconds": "speed/save_stall_seconds",
    "memory_bytes": "memory/bytes",
    "memory_peak_bytes": "memory/peak_bytes",
}
"""Field of the metrics schema → TensorBoard name."""
SCALARS_BY_NAME: dict[str, str] = {
    "loss_by_domain": "loss_by_domain",
    "epochs": "epochs",
    "grad_norm_by_group": "grad_norm_by_group",
}
"""Field by name → prefix of its TensorBoard names."""
SCALARS_BY_LAYER: dict[str, str] = {
    "expert_load_max_over_mean": "expert_load_max_over_mean",
    "expert_entropy": "expert_entropy",
    "router_entropy": "router_entropy",
    "dropped_tokens": "dropped_tokens",
}
"""Field by layer → prefix of its TensorBoard names."""


class TensorBoardSink:
    """Writes TensorBoard event files; the horizontal axis is the step."""

    def __init__(self, directory: Path) -> None:
        """Nothing is opened before the first value.

        Args:
            directory: Folder of the event files; a resumed run adds a file of its own.
        """
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Take a line of the metrics schema; null and non-finite values are left out."""
        for name, tag in SCALARS.items():
            self._scalar(tag, line[name], line["step"])
        for name, prefix in SCALARS_BY_NAME.items():
            values: Mapping[str, float | None] = line[name]
            for key, value in values.items():
                self._scalar(f"{prefix}/{key}", value, line["step"])
        for name, prefix in SCALARS_BY_LAYER.items():
            by_layer: Sequence[float] = line[name]
            for layer, value in enumerate(by_layer):
                self._scalar(f"{prefix}/moe_layer_{layer:03d}", value, line["step"])

    def write_heldout(self, result: HeldOutResult) -> None:
        """Take a held-out evaluation."""
        for name, score in [("all", result.total), *result.by_domain.items()]:
            self._scalar(f"heldout_loss/{name}", score.loss, result.step)
            self._scalar(f"heldout_bits_per_byte/{name}", score.bits_per_byte, result.step)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()

    def _scalar(self, tag: str, value: float | None, step: int) -> None:
        if value is None or not math.isfinite(value):
            return
        if self._writer is None:
            # TensorBoard then hides what an earlier attempt wrote from this step on.
            self._writer = SummaryWriter(str(self._directory), purge_step=step)
        self._writer.add_scalar(tag, value, step)
