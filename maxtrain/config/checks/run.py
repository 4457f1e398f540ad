"""Schedule, checkpoints and the run directory."""

from collections.abc import Iterator, Mapping

from maxtrain.config.checks.numbers import multiples_near, say_either
from maxtrain.config.checks.unused import check_unused
from maxtrain.config.schema import Config
from maxtrain.config.violations import Violation


def _check_schedule(config: Config) -> Iterator[Violation]:
    schedule, total = config.schedule, config.train.total_tokens
    if schedule.min_lr > schedule.lr:
        yield Violation(
            "schedule.min_lr",
            schedule.min_lr,
            f"must be at most schedule.lr = {schedule.lr:g}",
            f"set {schedule.lr / 10:g}, or raise schedule.lr",
        )
    elif schedule.name == "constant" and schedule.min_lr:
        limit = "has no effect with schedule.name = constant, which does not decay"
        yield Violation("schedule.min_lr", schedule.min_lr, limit, "set 0, or schedule.name to cosine or wsd")
    elif schedule.name == "wsd" and schedule.min_lr and not schedule.decay_frac:
        limit = "has no effect with schedule.decay_frac = 0, by which the rate never decays"
        yield Violation("schedule.min_lr", schedule.min_lr, limit, "set 0, or give schedule.decay_frac")
    if schedule.name != "wsd":
        why = f" with schedule.name = {schedule.name}"
        yield from check_unused(schedule, "schedule", ("decay_frac", "decay_shape"), why, "schedule.name to wsd")
    if schedule.warmup_frac is not None and schedule.warmup_tokens is not None:
        yield Violation(
            "schedule.warmup_tokens",
            schedule.warmup_tokens,
            f"schedule.warmup_frac = {schedule.warmup_frac:g} is given too, and one of the two is enough",
            "set one of them to null",
        )
        return
    warmup = schedule.warmup_frac if schedule.warmup_frac is not None else (schedule.warmup_tokens or 0) / total
    if schedule.name == "wsd" and warmup + schedule.decay_frac > 1:
        yield Violation(
            "schedule.decay_frac",
            schedule.decay_frac,
            f"with a warm-up of {warmup:.4g} it is over the whole run",
            f"set at most {max(1 - warmup, 0):.4g}, or shorten the warm-up",
        )


def _check_profile(config: Config) -> Iterator[Violation]:
    if config.profile.steps is None:
        return
    first, last = config.profile.steps
    shown = f"[{first}, {last}]"
    if first < 2:
        yield Violation("profile.steps", shown, "the first step compiles and cannot be profiled", "begin at 2 or later")
    if last < first:
        yield Violation("profile.steps", shown, "the last step comes before the first", f"set [{last}, {first}]")


def check_run(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """The learning rate's phases fit in the run; what is to be kept is saved at all; profiled steps are in order."""
    yield from _check_schedule(config)
    yield from _check_profile(config)
    checkpoint = config.checkpoint
    if checkpoint.keep_every is not None and checkpoint.keep_every % checkpoint.every:
        yield Violation(
            "checkpoint.keep_every",
            checkpoint.keep_every,
            f"must be a multiple of checkpoint.every = {checkpoint.every:,}, or those steps are not saved",
            f"set {say_either(multiples_near(checkpoint.keep_every, checkpoint.every))}",
        )
    if not config.run.directory.strip():
        yield Violation(
            "run.directory", config.run.directory, "is an empty text", "give a directory such as runs/first"
        )
