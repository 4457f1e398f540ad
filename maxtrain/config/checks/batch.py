"""Batches: whole microbatches a step, whole steps a phase, whole rows a block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm, prod

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.checks.numbers import divisors_below, multiples_near, say_either
from maxtrain.config.schema import BATCH_AXES, Config
from maxtrain.config.schema.types import MAX_INT
from maxtrain.config.violations import Violation


@dataclass(frozen=True)
class BatchPhase:
    """A part of the run with one batch size, and the keys that set it."""

    tokens_key: str
    tokens: int
    before: int
    """Tokens that count in `tokens` but belong to other phases."""
    batch_key: str
    batch_tokens: int
    sequence_length: int


def batch_phases(config: Config) -> list[BatchPhase]:
    """The parts of the run by batch size, in order."""
    data, batch = config.data, config.batch
    phases = []
    for index, stage in enumerate(data.stages):
        own = stage.global_batch_tokens
        key = "batch" if own is None else f"data.stages.{index}"
        length = stage.sequence_length or data.sequence_length
        phases.append(
            BatchPhase(
                f"data.stages.{index}.tokens",
                stage.tokens,
                0,
                f"{key}.global_batch_tokens",
                own or batch.global_batch_tokens,
                length,
            )
        )
    if phases:
        return phases
    for index, warmup in enumerate(batch.warmup):
        key = f"batch.warmup.{index}"
        phases.append(
            BatchPhase(
                f"{key}.tokens",
                warmup.tokens,
                0,
                f"{key}.global_batch_tokens",
                warmup.global_batch_tokens,
                data.sequence_length,
            )
        )
    before = sum(warmup.tokens for warmup in batch.warmup)
    main = BatchPhase(
        "train.total_tokens",
        config.train.total_tokens,
        before,
        "batch.global_batch_tokens",
        batch.global_batch_tokens,
        data.sequence_length,
    )
    return [*phases, main]


_MOST_CHOICES = 2**30
"""Most choices of experts, or tokens, of a rank's microbatch: their places are counted in int32."""


def _check_batch_size(config: Config, phase: BatchPhase, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """global_batch_tokens = micro_batch × sequence length × ranks × accumulation."""
    batch, key, value = config.batch, phase.batch_key, phase.batch_tokens
    ranks = prod(sizes[axis] for axis in BATCH_AXES) if sizes else 1
    unit = batch.micro_batch * phase.sequence_length * ranks
    parts = f"micro_batch {batch.micro_batch} × sequence length {phase.sequence_length:,}"
    parts += f" × {ranks} data-parallel ranks" if sizes else ""
    accumulation, rest = divmod(value, unit)
    choices = batch.micro_batch * phase.sequence_length * (config.model.moe.top_k if config.model.moe else 1)
    if choices > _MOST_CHOICES:
        limit = f"× sequence length {phase.sequence_length:,} × model.moe.top_k is {choices:,}, over {_MOST_CHOICES:,}"
        cure = "lower it; accumulation makes up for it"
        yield Violation("batch.micro_batch", batch.micro_batch, limit, cure)
        return
    if batch.accumulation is not None and sizes and value != unit * batch.accumulation:
        exact = unit * batch.accumulation
        limit = f"must be {parts} × accumulation {batch.accumulation} = {exact:,}"
        other = "null (derived)" if rest else f"{accumulation} or null (derived)"
        yield Violation(key, value, limit, f"set {exact:,}, or batch.accumulation to {other}")
    elif rest:
        limit = f"must be a whole number of microbatches of {unit:,} tokens ({parts})"
        rows, uneven = divmod(value, unit // batch.micro_batch)
        smaller = f", or batch.micro_batch to {divisors_below(batch.micro_batch, rows)}" if rows and not uneven else ""
        yield Violation(key, value, limit, f"set {say_either(multiples_near(value, unit))}{smaller}")
    elif config.model.moe is not None and config.model.moe.balance == "global" and sizes and accumulation > 1:
        limit = f"counts loads over the whole batch, so accumulation must be 1; {key} = {value:,} has {accumulation}"
        cure = f"set batch.micro_batch to {batch.micro_batch * accumulation}, or balance to sequence or bias"
        yield Violation("model.moe.balance", "global", limit, cure)


def _check_phase(config: Config, phase: BatchPhase) -> Iterator[Violation]:
    rest = phase.tokens - phase.before
    if rest % phase.batch_tokens or rest <= 0:
        near = say_either(multiples_near(phase.tokens, phase.batch_tokens, phase.before))
        after = f" after {phase.before:,} tokens of batch.warmup" if phase.before else ""
        yield Violation(
            phase.tokens_key,
            phase.tokens,
            f"must be a whole number of batches of {phase.batch_tokens:,} tokens{after}",
            f"set {near}",
        )


def _check_blocks(config: Config, phases: list[BatchPhase]) -> Iterator[Violation]:
    lengths = [phase.sequence_length for phase in phases]
    block = config.data.block_tokens or max(lengths)
    wrong = sorted({length for length in lengths if block % length})
    if wrong:
        near = say_either(multiples_near(block, lcm(*lengths)))
        given = "data.block_tokens" if config.data.block_tokens else "data.block_tokens (by default the longest)"
        yield Violation(
            "data.block_tokens",
            config.data.block_tokens,
            f"every stage's sequence length must divide {given} = {block:,}; {say_either(wrong)} does not",
            f"set {near}",
        )


def _check_warmup_boundary(config: Config) -> Iterator[Violation]:
    """schedule.warmup_tokens ends between two steps; asked only of a config whose batches are sound."""
    tokens = config.schedule.warmup_tokens
    if not tokens:
        return
    plan = plan_batches(config)
    step = plan.step_at_tokens(tokens)
    near = [plan.tokens_at(max(step - 1, 0)), plan.tokens_at(step)]
    if tokens > plan.num_tokens:
        yield Violation(
            "schedule.warmup_tokens", tokens, f"is over the run's {plan.num_tokens:,} tokens", "shorten the warm-up"
        )
    elif tokens not in near:
        yield Violation(
            "schedule.warmup_tokens", tokens, "must end with a whole step", f"set {say_either(near)}, or warmup_frac"
        )


def _check_num_steps(config: Config) -> Iterator[Violation]:
    """Steps are counted in int32; asked only of a config whose batches are sound."""
    num_steps = plan_batches(config).num_steps
    if num_steps > MAX_INT:
        limit = f"is {num_steps:,} steps, over {MAX_INT:,}"
        cure = "lower it, or raise batch.global_batch_tokens"
        yield Violation("train.total_tokens", config.train.total_tokens, limit, cure)


def check_batch(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Sizes of batches and lengths of phases; ranks count only where the mesh's sizes are known."""
    batch, stages = config.batch, config.data.stages
    phases = batch_phases(config)
    found: list[Violation] = []
    for phase in phases:
        found += [*_check_batch_size(config, phase, sizes), *_check_phase(config, phase)]
    found += _check_blocks(config, phases)
    if stages and batch.warmup:
        found.append(
            Violation(
                "batch.warmup",
                f"{len(batch.warmup)} phases",
                "is only for a run without data.stages",
                "delete it, and give the first stages a smaller global_batch_tokens",
            )
        )
    for index, warmup in enumerate(batch.warmup):
        if warmup.global_batch_tokens > batch.global_batch_tokens:
            found.append(
                Violation(
                    f"batch.warmup.{index}.global_batch_tokens",
                    warmup.global_batch_tokens,
                    f"must be at most batch.global_batch_tokens = {batch.global_batch_tokens:,}",
                    "lower it",
                )
            )
    total = sum(stage.tokens for stage in stages)
    if stages and total != config.train.total_tokens:
        found.append(
            Violation(
                "train.total_tokens",
                config.train.total_tokens,
                f"must be the sum of the stages' tokens, {total:,}",
                f"set {total:,}, or change a stage",
            )
        )
    unique = dict.fromkeys(found)
    yield from unique
    if not unique:
        yield from _check_warmup_boundary(config)
        yield from _check_num_steps(config)
