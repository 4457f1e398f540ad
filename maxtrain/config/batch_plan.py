"""Which rows each step reads: the run cut into segments of constant batch, by tokens."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from maxtrain.config.schema import Config, DomainConfig


@dataclass(frozen=True)
class Stage:
    """A stage with every default resolved. `rows` and `first_row` count rows of the whole run."""

    index: int
    name: str
    dataset: str | None
    mixture: dict[str, DomainConfig]
    sequence_length: int
    first_row: int
    num_rows: int


@dataclass(frozen=True)
class Segment:
    """Steps that share a stage and a batch size."""

    stage: Stage
    first_step: int
    num_steps: int
    first_row: int
    batch_rows: int
    first_token: int

    @property
    def step_tokens(self) -> int:
        """Tokens that one step consumes, padding included."""
        return self.batch_rows * self.stage.sequence_length

    @property
    def end_step(self) -> int:
        """The step after the segment."""
        return self.first_step + self.num_steps


@dataclass(frozen=True)
class BatchPlan:
    """The segments of a run in order; a pure function of the config."""

    segments: tuple[Segment, ...]

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.segments[-1].end_step

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole run."""
        return self.tokens_at(self.num_steps)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in order."""
        return tuple({segment.stage.index: segment.stage for segment in self.segments}.values())

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.first_step for segment in self.segments]

    def segment_at(self, step: int) -> Segment:
        """Segment of a step; the last segment for the step after the end."""
        return self.segments[max(bisect_right(self._starts, step) - 1, 0)]

    def rows_of(self, step: int) -> range:
        """Rows of the run that a step reads."""
        segment = self.segment_at(step)
        first = segment.first_row + (step - segment.first_step) * segment.batch_rows
        return range(first, first + segment.batch_rows)

    def tokens_at(self, step: int) -> int:
        """Tokens consumed before a step."""
        segment = self.segment_at(step)
        return segment.first_token + (step - segment.first_step) * segment.step_tokens

    def step_at_tokens(self, tokens: int) -> int:
        """First step before which at least this many tokens are consumed."""
        for segment in self.segments:
            end = segment.first_token + segment.num_steps * segment.step_tokens
            if tokens <= end:
                past = max(tokens - segment.first_token, 0)
                return segment.first_step + -(-past // segment.step_tokens)
        return self.num_steps


def plan_batches(config: Config) -> BatchPlan:
    """Cut the run into segments.

    The config has passed its checks: every stage and warm-up phase is a whole number of its batches.
    """
    data, batch = config.data, config.batch
    segments: list[Segment] = []
    step = row = token = 0

    def add(stage: Stage, tokens: int, batch_tokens: int) -> None:
        nonlocal step, row, token
        rows = batch_tokens // stage.sequence_length
        num_steps = tokens // batch_tokens
        if num_steps:
            segments.append(Segment(stage, step, num_steps, row, rows, token))
        step, row, token = step + num_steps, row + num_steps * rows, token + num_steps * batch_tokens

    if not data.stages:
        length = data.sequence_length
        stage = Stage(0, "main", data.dataset, data.mixture, length, 0, config.train.total_tokens // length)
        warmup = [(phase.tokens, phase.global_batch_tokens) for phase in batch.warmup]
        rest = config.train.total_tokens - sum(tokens for tokens, _ in warmup)
        for tokens, batch_tokens in [*warmup, (rest, batch.global_batch_tokens)]:
            add(stage, tokens, batch_tokens)
        return BatchPlan(tuple(segments))

    for index, part in enumerate(data.stages):
        length = part.sequence_length or data.sequence_length
        stage = Stage(
            index,
            part.name,
            part.dataset or data.dataset,
            part.mixture or data.mixture,
            length,
            row,
            part.tokens // length,
        )
        add(stage, part.tokens, part.global_batch_tokens or batch.global_batch_tokens)
    return BatchPlan(tuple(segments))
