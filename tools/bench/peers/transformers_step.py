"""The peer of train_step.py: the same shapes as a transformers model, one step after another.

Run by an interpreter that has torch and transformers; prints one line of JSON.
"""

import json
import resource
import sys
import time

_START = time.perf_counter()

import torch  # noqa: E402  the clock starts before the imports
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM  # noqa: E402


def cpu_seconds() -> float:
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def make_model(shape: dict) -> torch.nn.Module:
    """The model of a case, in float32 with sdpa attention."""
    common = {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": shape["hidden"],
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    if not shape["experts"]:
        return LlamaForCausalLM(LlamaConfig(**common))
    moe = {"num_local_experts": shape["experts"], "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(**common, **moe, router_aux_loss_coef=0.01))


def main() -> None:
    """Train on random tokens and print the CPU-seconds of each step."""
    shape = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(shape).train()
    if shape["precision"] == "bfloat16":
        model = model.to(torch.bfloat16)
    if shape.get("compile"):
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    start_up = time.perf_counter() - _START
    cpu, wall = [], []
    for _ in range(shape["steps"] + 1):
        tokens = torch.randint(0, 8192, (8, 512))
        before, start = cpu_seconds(), time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(loss)
        cpu.append(cpu_seconds() - before)
        wall.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_seconds": cpu[1:], "wall_seconds": wall[1:], "start_up_seconds": start_up, "peak_mb": peak}))


if __name__ == "__main__":
    main()
