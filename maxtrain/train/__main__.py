"""`python -m maxtrain.train CONFIG [KEY=VALUE ...]`: train a model, or go on with it."""

import argparse
import logging
import sys

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.checks import check_or_raise
from maxtrain.config.load import validate
from maxtrain.config.merge import load_source
from maxtrain.core.errors import UserError, run_command
from maxtrain.core.files import user_cache_directory
from maxtrain.core.log import configure_logging
from maxtrain.core.memory import collect_rarely, keep_freed_memory
from maxtrain.loader import HeldOut, Loader

_DESCRIPTION = """\
Train a model from a config, or resume the run in its directory from the newest verified checkpoint.

The run directory (run.directory) gets config.yaml, tokenizer.model, metrics.jsonl, events.jsonl, eval/,
tensorboard/ and checkpoints/.
SIGTERM saves and stops (to any one of several processes: all of them), and so does Ctrl-C with a single process; the
same command goes on, bit for bit."""

_EPILOG = """\
examples:
  python -m maxtrain.train configs/learning/first.yaml
  python -m maxtrain.train configs/learning/first.yaml run.directory=runs/mine schedule.lr=1e-3
  python -m maxtrain.train configs/learning/first.yaml mesh.devices=8 mesh.fsdp=2 mesh.expert=4 batch.micro_batch=1
  python -m maxtrain.train configs/learning/first.yaml --memory-report remat.policy=full
  python -m maxtrain.train CONFIG --coordinator host0:1234 --num-processes 2 --process-id 0

exit codes:
  0 done   1 failed   2 bad config, command line or input   3 dataset missing or damaged
  4 no usable checkpoint or a save failed   5 the run directory is in use   6 stopped by the guard
  130, 143 stopped by SIGINT, SIGTERM after a save"""


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m maxtrain.train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="YAML config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides of the config")
    parser.add_argument(
        "--memory-report",
        action="store_true",
        help="compile the step, print what it holds in a device's memory, and leave without training",
    )
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="save and stop after this step")
    group = parser.add_argument_group("several processes (found by themselves under Slurm, JobSet and on TPU pods)")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    group.add_argument("--num-processes", type=int, metavar="N", help="processes in all")
    group.add_argument("--process-id", type=int, metavar="I", help="number of this process, from 0")
    return parser.parse_intermixed_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Check everything that needs no device, then start the devices and train.

    Returns:
        The exit code.
    """
    args = _parse(arguments)
    if args.stop_at is not None and args.stop_at < 1:
        raise UserError(f"--stop-at {args.stop_at}: must be at least 1")
    source = load_source(args.config, args.overrides)
    config = validate(source)
    check_or_raise(config, name=source.name, origins=source.origins)
    plan = plan_batches(config)
    if args.stop_at is not None and args.stop_at > plan.num_steps:
        raise UserError(f"--stop-at {args.stop_at}: the run has {plan.num_steps} steps; leave it out to train them all")
    if config.profile.steps is not None and config.profile.steps[1] > plan.num_steps:
        raise UserError(
            f"profile.steps = {list(config.profile.steps)}: the run has {plan.num_steps} steps; "
            f"set the last one to at most {plan.num_steps}"
        )

    loader = heldout = None
    if not args.memory_report:
        loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
        heldout = HeldOut.from_config(config, loader) if config.evaluation.every else None

    # JAX is imported only now, so that a mistake in the config or the data is told within a second.
    import jax

    from maxtrain.parallel.start import enable_compilation_cache, find_backend, start_devices, start_processes
    from maxtrain.parallel.xla_flags import apply_preset

    keep_freed_memory()  # before JAX starts its threads; only steps on CPU need it
    added = apply_preset() if config.train.xla_flags == "auto" else None
    num_processes = start_processes(args.coordinator, args.num_processes, args.process_id)
    start_devices(config.mesh.devices, num_processes=num_processes)
    configure_logging(process=jax.process_index())
    if added is not None:
        logging.getLogger(__name__).info(added)
    if jax.default_backend() != "cpu":
        keep_freed_memory(False)
    if config.train.compilation_cache:
        enable_compilation_cache(user_cache_directory() / "compiled")
    devices = config.mesh.devices or jax.device_count()
    check_or_raise(config, devices, backend=find_backend(), name=source.name, origins=source.origins)

    if loader is None:
        from maxtrain.train.memory import memory_report

        print(memory_report(config, plan))
        return 0
    from maxtrain.train.session import run_training

    collect_rarely()
    return run_training(config, plan, loader, heldout, args.stop_at)


if __name__ == "__main__":
    sys.exit(run_command(main))
