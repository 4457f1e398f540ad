"""Lines that fit the schema, shared by the tests of the monitor."""

from collections.abc import Callable
from typing import Any

import pytest


def make_line(step: int, **changes: Any) -> dict[str, Any]:
    """Values of one step of a two-domain run with one mixture-of-experts layer of four experts."""
    line: dict[str, Any] = {
        "step": step,
        "updates": step,
        "tokens_seen": 512 * step,
        "batch_digest": 2**32 - step,
        "target_tokens": 500,
        "loss": 9.0 / step,
        "cross_entropy": 8.9 / step,
        "balance_loss": 0.01,
        "router_z_loss": 0.0,
        "z_loss": 0.0,
        "loss_by_domain": {"english": 8.0 / step, "数学": None},
        "tokens_by_domain": {"english": 500, "数学": 0},
        "epochs": {"english": 0.1 * step, "数学": 0.0},
        "padding_fraction": 0.0,
        "grad_norm": 1.5,
        "grad_norm_by_group": {"embedding": 0.5, "experts": 1.0},
        "update_norm": 0.1,
        "param_norm": 30.0,
        "lr": 3e-4,
        "max_attention_logit": None,
        "skipped": False,
        "skipped_target_tokens": 0,
        "skips_in_a_row": 0,
        "expert_load": [[100, 150, 120, 130]],
        "expert_load_max_over_mean": [1.2],
        "expert_entropy": [0.99],
        "router_entropy": [1.3],
        "dropped_tokens": [0],
        "flops_per_token": 1.0e6,
        "num_devices": 8,
        "tokens_per_second": 5120.0,
        "tokens_per_second_per_device": 640.0,
        "mfu": 0.25,
        "step_seconds": 0.1,
        "data_wait_seconds": 0.001,
        "device_seconds": 0.09,
        "host_seconds": 0.009,
        "save_stall_seconds": 0.0,
        "communication_fraction": None,
        "memory_bytes": None,
        "memory_peak_bytes": None,
    }
    unknown = set(changes) - set(line)
    assert not unknown
    return line | changes


@pytest.fixture(name="make_line", scope="session")
def make_line_fixture() -> Callable[..., dict[str, Any]]:
    return make_line
