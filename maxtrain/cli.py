"""The console script `maxtrain VERB ...`: names every entry module and imports only the one that is chosen."""

import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from maxtrain import __version__
from maxtrain.core.errors import ExitCode

VERBS = {
    "config": "show, compare, explain and check configs",
    "plan": "count a config's parameters, FLOPs a token and steps, without devices",
    "tokenizer": "train a tokenizer, show it, encode text with it",
    "corpus": "build a tokenised dataset from a recipe, show it, verify it",
    "train": "train a model, or go on with a run",
    "inspect": "print the documents of a batch of a dataset or run",
    "checkpoint": "list and verify the checkpoints of a run",
    "coordinate_check": "tell whether activations keep their size as a config's model grows",
    "profile": "print where the time of a run's profiled steps went",
    "report": "write a run's report and loss curve",
    "generate": "sample text from a run's newest verified checkpoint",
}
"""Each verb is the module `maxtrain.VERB`, with its own --help."""

USAGE = """\
usage: maxtrain [-h] [--version] VERB ...

Pretrain large sparse language models: a config in, a run directory out.

verbs:
{verbs}

examples:
  maxtrain config show configs/learning/first.yaml
  maxtrain train configs/learning/first.yaml train.total_tokens=1Mi
  maxtrain generate runs/first --prompt "Once upon a time"
  maxtrain VERB --help

exit codes:
  0  done
  1  failed for a reason outside the input; may be tried again
  2  bad command line, config or input
  3  dataset or tokenizer missing, damaged or not the expected one
  4  no usable checkpoint, or a save failed
  5  another run holds the directory
  6  the run's own guard stopped it, or a number is not finite
  130, 143  stopped by SIGINT, SIGTERM"""


def usage() -> str:
    """The help text."""
    width = max(map(len, VERBS))
    return USAGE.format(verbs="\n".join(f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb's module as `python -m maxtrain.VERB` would.

    Args:
        arguments: the words after `maxtrain`; None takes the command line.

    Returns:
        The exit code, where the module does not leave by SystemExit itself.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        print(usage(), file=sys.stderr)
        return int(ExitCode.USAGE)
    verb, *rest = words
    if verb in ("-h", "--help", "help"):
        print(usage())
        return int(ExitCode.OK)
    if verb == "--version":
        print(f"maxtrain {__version__}")
        return int(ExitCode.OK)
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}?" if near else f"known verbs: {', '.join(VERBS)}"
        print(f"error: {verb}: unknown verb; {cure}", file=sys.stderr)
        return int(ExitCode.USAGE)
    sys.argv = [f"maxtrain {verb}", *rest]
    runpy.run_module(f"maxtrain.{verb}", run_name="__main__", alter_sys=True)
    return int(ExitCode.OK)
