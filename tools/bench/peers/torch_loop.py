"""What peers in torch share: a step of training on random tokens."""

from collections.abc import Callable

import torch
from step_loop import read_case, time_steps


def run(
    start: float,
    make_model: Callable[[dict], torch.nn.Module],
    loss_of: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    """Train on random tokens and print the CPU-seconds of each step.

    Args:
        start: time of the command.
        make_model: from the case to the model in float32.
        loss_of: mean loss of int64 [8, 512] tokens, each predicting the next.
    """
    case = read_case()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(case).train()
    if case["precision"] == "bfloat16":
        model = model.to(torch.bfloat16)
    if case.get("compile"):
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(tokens: torch.Tensor) -> float:
        loss = loss_of(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    time_steps(start, case["steps"], lambda: torch.randint(0, 8192, (8, 512)), step)
