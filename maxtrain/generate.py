"""`python -m maxtrain.generate RUN --prompt TEXT`: continue texts with a run's newest verified checkpoint."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxtrain.config.load import load_config
from maxtrain.config.schema import Config
from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError, run_command
from maxtrain.core.files import user_cache_directory
from maxtrain.core.log import configure_logging
from maxtrain.tokenizer import Tokenizer

if TYPE_CHECKING:
    from maxtrain.inference.engine import Completion
    from maxtrain.inference.sample import Sampling

_DESCRIPTION = """\
Continue prompts with the model of a run: its newest verified checkpoint that is not unhealthy, or that of one step.

The text goes to stdout. The same seed gives the same text on the same machine, whatever other prompts stand beside."""

_MOST_TOKENS = 1_000_000

_EPILOG = """\
examples:
  python -m maxtrain.generate runs/first --prompt "The sea was" --max-tokens 100
  python -m maxtrain.generate runs/first --prompt "def " --prompt "春天" --temperature 0
  python -m maxtrain.generate runs/first --prompt "Once" --top-p 0.9 --seed 3 --step 256 --json

exit codes:
  0 done   1 failed   2 bad command line   3 tokenizer or dataset missing or damaged   4 no usable checkpoint"""


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m maxtrain.generate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="text to continue; repeatable")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="most tokens to add (default 128)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: the likeliest (default 0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest (default 0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest that reach P")
    parser.add_argument("--seed", type=int, default=0, help="prompt i draws with seed + i (default 0)")
    parser.add_argument("--step", type=int, help="checkpoint of this step instead of the newest")
    parser.add_argument("--tokenizer", metavar="FILE", help="another tokenizer.model than the one in the run")
    parser.add_argument("--record", action="store_true", help="add the texts to RUN/samples.jsonl, which reports show")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser.parse_args(arguments)


def _load_run(run: Path) -> Config:
    path = run / "config.yaml"
    if not path.is_file():
        raise UserError(f"{run}: no run here (config.yaml is missing); give the directory of a run")
    return load_config(path)


def _load_tokenizer(run: Path, given: str | None) -> Tokenizer:
    """The given tokenizer, or the one that the run keeps."""
    path = given or str(run / "tokenizer.model")
    if given is None and not files.exists(path):
        raise DataError(f"{run}: holds no tokenizer.model (it read synthetic data?); give one with --tokenizer")
    return Tokenizer.load(path)


def _check_tokenizer(tokenizer: Tokenizer, record: dict[str, Any]) -> None:
    """Refuse a tokenizer that the checkpoint was not trained with."""
    stages = record.get("fingerprint", {}).get("stages", [])
    hashes = {stage["tokenizer_hash"] for stage in stages if "tokenizer_hash" in stage}
    if hashes and tokenizer.hash not in hashes:
        expected = ", ".join(sorted(known[:12] for known in hashes))
        raise DataError(
            f"tokenizer {tokenizer.hash[:12]} is not the one that the checkpoint was trained with ({expected}); "
            "give that one with --tokenizer"
        )


def _encode(tokenizer: Tokenizer, prompt: str, record: dict[str, Any]) -> list[int]:
    """Ids of a prompt, after the beginning-of-text token where the training data had one."""
    start = [] if record.get("bos_id") is None else [int(record["bos_id"])]
    ids = start + tokenizer.encode(prompt)
    if not ids:
        raise UserError(
            "--prompt: an empty prompt needs a model trained with a beginning-of-text token; give some text"
        )
    return ids


def _complete(
    args: argparse.Namespace, config: Config, tokenizer: Tokenizer, sampling: "Sampling"
) -> tuple[int, list["Completion"]]:
    """Restore the parameters and generate; returns the checkpoint's step and the completions."""
    import jax
    from tqdm import tqdm

    from maxtrain.checkpoint import restore_subtree
    from maxtrain.inference.engine import Engine
    from maxtrain.inference.restore import abstract_weights
    from maxtrain.model import Model
    from maxtrain.parallel.start import enable_compilation_cache

    if config.train.compilation_cache:
        enable_compilation_cache(user_cache_directory() / "compiled")
    precision = config.precision
    if precision.is_eight_bit:
        # A scale taken from a prompt would make its tokens depend on each other; that of blocks needs its device.
        precision = precision.model_copy(update={"compute": "bfloat16", "emulate": False})
    model = Model(
        config.model,
        precision=precision,
        scan_unroll=config.train.scan_unroll,
        kernels=config.train.kernels,
    )
    step, weights, record = restore_subtree(args.run / "checkpoints", abstract_weights(model), step=args.step)
    _check_tokenizer(tokenizer, record)
    prompts = [_encode(tokenizer, prompt, record) for prompt in args.prompt]
    num_tokens = min(tokenizer.vocab_size, config.model.vocab_size)
    if args.top_k > num_tokens:
        raise UserError(f"--top-k {args.top_k}: the vocabulary has {num_tokens} tokens; 0 keeps all")
    engine = Engine(model, weights["params"], weights["expert_bias"], end_id=tokenizer.eod_id, num_tokens=num_tokens)
    seeds = [(args.seed + row) % 2**32 for row in range(len(prompts))]
    with tqdm(total=args.max_tokens, unit="token", disable=None, leave=False) as bar:
        try:
            return step, engine.generate(prompts, args.max_tokens, sampling, seeds=seeds, on_tokens=bar.update)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise UserError(
                f"--max-tokens {args.max_tokens}: the memory does not hold so many for {len(prompts)} prompt(s); "
                "ask for fewer tokens or prompts at once"
            ) from None


def main(arguments: list[str] | None = None) -> int:
    """Check the request, restore the weights, print the texts.

    Returns:
        The exit code.
    """
    args = _parse(arguments)
    configure_logging()
    for name, value, least, most in (
        ("--max-tokens", args.max_tokens, 1, _MOST_TOKENS),
        ("--seed", args.seed, 0, 2**32 - 1),
    ):
        if not least <= value <= most:
            raise UserError(f"{name} {value}: must be from {least} to {most:,}")
    config = _load_run(args.run)
    tokenizer = _load_tokenizer(args.run, args.tokenizer)

    # JAX is imported only now, so that a mistake above is told within a second.
    from maxtrain.inference.sample import Sampling

    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    step, completions = _complete(args, config, tokenizer, sampling)
    if args.record:
        for prompt, completion in zip(args.prompt, completions, strict=True):
            sample = {"step": step, "prompt": prompt, "text": tokenizer.decode(completion.tokens)}
            files.append_line(args.run / "samples.jsonl", json.dumps(sample, ensure_ascii=False))
    if args.json:
        samples = [
            {
                "prompt": prompt,
                "text": tokenizer.decode(completion.tokens),
                "tokens": completion.tokens,
                "log_probs": completion.log_probs,
                "stop_reason": completion.stop_reason,
            }
            for prompt, completion in zip(args.prompt, completions, strict=True)
        ]
        print(json.dumps({"run": str(args.run), "step": step, "samples": samples}, ensure_ascii=False))
        return 0
    for number, (prompt, completion) in enumerate(zip(args.prompt, completions, strict=True)):
        if number:
            print("---")
        print(prompt + tokenizer.decode(completion.tokens))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
