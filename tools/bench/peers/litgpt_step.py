"""A peer of train_step.py: the same shapes as a litgpt model, one step after another; no load balancing.

Run by an interpreter that has torch and litgpt; prints one line of JSON.
"""

import time

_START = time.perf_counter()

import torch  # noqa: E402  the clock starts before the imports
from litgpt.config import Config  # noqa: E402
from litgpt.model import GPT  # noqa: E402
from torch_loop import run  # noqa: E402


def make_model(shape: dict) -> torch.nn.Module:
    """The model of a case, in float32."""
    if shape["remat"] != "none":
        raise SystemExit("litgpt computes nothing anew: choose a case without remat")
    experts = {"mlp_class_name": "LLaMAMoE", "n_expert": shape["experts"], "n_expert_per_token": 2}
    config = Config(
        name="peer",
        block_size=512,
        vocab_size=8192,
        padded_vocab_size=8192,
        n_layer=4,
        n_head=8,
        n_embd=256,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        intermediate_size=shape["hidden"],
        **(experts if shape["experts"] else {"mlp_class_name": "LLaMAMLP"}),
    )
    return GPT(config)


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next tokens."""
    logits = model(tokens)[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


if __name__ == "__main__":
    run(_START, make_model, loss_of)
