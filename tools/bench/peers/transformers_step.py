"""A peer of train_step.py: the same shapes as a transformers model, one step after another.

Run by an interpreter that has torch and transformers; prints one line of JSON.
"""

import time

_START = time.perf_counter()

import torch  # noqa: E402  the clock starts before the imports
from torch_loop import run  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM  # noqa: E402


def make_model(shape: dict) -> torch.nn.Module:
    """The model of a case, in float32 with sdpa attention; every layer is computed anew where remat is full."""
    common = {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": shape["hidden"],
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    if shape["experts"]:
        moe = {"num_local_experts": shape["experts"], "num_experts_per_tok": 2, "output_router_logits": True}
        model = MixtralForCausalLM(MixtralConfig(**common, **moe, router_aux_loss_coef=0.01))
    else:
        model = LlamaForCausalLM(LlamaConfig(**common))
    if shape["remat"] == "full":
        model.gradient_checkpointing_enable()
    return model


if __name__ == "__main__":
    run(_START, make_model, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)
