"""What peers in torch share: training on random tokens, and its line of JSON."""

import json
import resource
import sys
import time
from collections.abc import Callable

import torch


def cpu_seconds() -> float:
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(
    start: float,
    make_model: Callable[[dict], torch.nn.Module],
    loss_of: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    """Train on random tokens and print the CPU-seconds of each step.

    Args:
        start: time of the command.
        make_model: from the case, which is the command's argument, to the model in float32.
        loss_of: mean loss of int64 [8, 512] tokens, each predicting the next.
    """
    shape = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(shape).train()
    if shape["precision"] == "bfloat16":
        model = model.to(torch.bfloat16)
    if shape.get("compile"):
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    start_up = time.perf_counter() - start
    cpu, wall = [], []
    for _ in range(shape["steps"] + 1):
        tokens = torch.randint(0, 8192, (8, 512))
        before, began = cpu_seconds(), time.perf_counter()
        loss = loss_of(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        cpu.append(cpu_seconds() - before)
        wall.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_seconds": cpu[1:], "wall_seconds": wall[1:], "start_up_seconds": start_up, "peak_mb": peak}))
