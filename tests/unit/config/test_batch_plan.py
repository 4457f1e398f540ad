"""The plan partitions the run's rows, and its clocks agree."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from maxtrain.config import check_config
from maxtrain.config.batch_plan import BatchPlan, plan_batches
from maxtrain.config.schema import Config

BASE: dict[str, Any] = {
    "run": {"directory": "runs/test"},
    "model": {"vocab_size": 256, "num_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 64},
    "schedule": {"lr": 1e-3},
}


def make(data: dict[str, Any], batch: dict[str, Any], total: int) -> Config:
    config = Config.model_validate(
        {
            **BASE,
            "data": {"dataset": "d", **data},
            "batch": {"micro_batch": 1, **batch},
            "train": {"total_tokens": total},
        }
    )
    assert check_config(config) == []
    return config


@st.composite
def staged(draw: st.DrawFn) -> Config:
    lengths = draw(st.lists(st.sampled_from([8, 16, 32]), min_size=1, max_size=4))
    stages: list[dict[str, Any]] = []
    for index, length in enumerate(lengths):
        batch_tokens = length * draw(st.integers(1, 5))
        tokens = batch_tokens * draw(st.integers(1, 9))
        stages.append(
            {"name": f"s{index}", "tokens": tokens, "sequence_length": length, "global_batch_tokens": batch_tokens}
        )
    data: dict[str, Any] = {"sequence_length": 8, "stages": stages}
    return make(data, {"global_batch_tokens": 8}, sum(stage["tokens"] for stage in stages))


@st.composite
def warmed_up(draw: st.DrawFn) -> Config:
    final = draw(st.integers(3, 6))
    warmup: list[dict[str, int]] = [
        {"tokens": 8 * rows * draw(st.integers(1, 5)), "global_batch_tokens": 8 * rows}
        for rows in sorted(draw(st.lists(st.integers(1, final), max_size=3)))
    ]
    total = sum(phase["tokens"] for phase in warmup) + 8 * final * draw(st.integers(1, 9))
    return make({"sequence_length": 8}, {"global_batch_tokens": 8 * final, "warmup": warmup}, total)


plans = st.one_of(staged(), warmed_up())


@given(plans)
@settings(max_examples=60)
def test_rows_partition_the_run(config: Config) -> None:
    plan = plan_batches(config)
    rows = [row for step in range(plan.num_steps) for row in plan.rows_of(step)]
    assert rows == list(range(len(rows)))
    assert len(rows) == sum(stage.num_rows for stage in plan.stages)
    for stage in plan.stages:
        own = [step for step in range(plan.num_steps) if plan.segment_at(step).stage is stage]
        assert plan.rows_of(own[0]).start == stage.first_row
        assert plan.rows_of(own[-1]).stop == stage.first_row + stage.num_rows


@given(plans)
@settings(max_examples=60)
def test_tokens_grow_by_whole_steps_and_the_inverse_finds_each_step(config: Config) -> None:
    plan = plan_batches(config)
    tokens = [plan.tokens_at(step) for step in range(plan.num_steps + 1)]
    assert tokens[0] == 0
    assert tokens[-1] == plan.num_tokens == config.train.total_tokens
    for step in range(plan.num_steps):
        segment = plan.segment_at(step)
        assert tokens[step + 1] - tokens[step] == len(plan.rows_of(step)) * segment.stage.sequence_length > 0
        assert plan.step_at_tokens(tokens[step]) == step
        assert plan.step_at_tokens(tokens[step] + 1) == step + 1
    assert plan.step_at_tokens(plan.num_tokens + 1) == plan.num_steps


def test_stages_take_the_defaults_that_they_do_not_give() -> None:
    stages = [{"name": "one", "tokens": 160}, {"name": "two", "tokens": 64, "dataset": "other", "sequence_length": 4}]
    plan: BatchPlan = plan_batches(make({"sequence_length": 8, "stages": stages}, {"global_batch_tokens": 32}, 224))
    one, two = plan.stages
    assert (one.dataset, one.sequence_length, one.first_row, one.num_rows) == ("d", 8, 0, 20)
    assert (two.dataset, two.sequence_length, two.first_row, two.num_rows) == ("other", 4, 20, 16)
    assert [segment.batch_rows for segment in plan.segments] == [4, 8]
    assert plan.segment_at(5).stage is two
    assert plan.segment_at(plan.num_steps).stage is two
