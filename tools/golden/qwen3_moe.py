"""Make the logits in tests/golden/qwen3_moe anew from its checkpoint, with transformers.

Run by an interpreter that has torch and transformers:

    python tools/golden/qwen3_moe.py           compare, and exit with 1 where a logit differs by more than 1e-6
    python tools/golden/qwen3_moe.py --write   replace the logits, their hash and the versions
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "qwen3_moe"
TOLERANCE = 1e-6


def compute_logits(input_ids: torch.Tensor) -> torch.Tensor:
    """Logits of transformers' model, float32 on the CPU with eager attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDEN, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    with torch.no_grad():
        return model.eval()(input_ids).logits.contiguous()


def main() -> int:
    """Compare or write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace what is stored")
    write = parser.parse_args().write
    stored = load_file(GOLDEN / "reference.safetensors")
    logits = compute_logits(stored["input_ids"])
    worst = (logits - stored["logits"]).abs().max().item()
    print(f"largest difference to the stored logits: {worst:.3g}")
    if not write:
        return int(worst > TOLERANCE)
    save_file({**stored, "logits": logits}, GOLDEN / "reference.safetensors")
    figures = json.loads((GOLDEN / "reference.json").read_text())
    figures |= {name: module.__version__ for name, module in sys.modules.items() if name in _VERSIONS}
    figures["logits_sha256"] = hashlib.sha256(logits.numpy().tobytes()).hexdigest()
    (GOLDEN / "reference.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0


_VERSIONS = {module.__name__ for module in (torch, transformers, safetensors)}


if __name__ == "__main__":
    sys.exit(main())
