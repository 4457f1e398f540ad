"""Learning-rate schedules against closed forms."""

import math

import jax.numpy as jnp
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import Config, ScheduleConfig
from maxtrain.optim import make_schedule


def make_config(schedule: ScheduleConfig, **batch) -> Config:
    return Config.model_validate(
        {
            "run": {"directory": "runs/test"},
            "data": {"source": "synthetic", "sequence_length": 8},
            "batch": {"global_batch_tokens": 16, "micro_batch": 2, **batch},
            "model": {"vocab_size": 16, "num_layers": 1, "d_model": 8, "num_heads": 1, "d_ff": 8},
            "train": {"total_tokens": 1600},
            "schedule": schedule,
        }
    )


def rates(schedule: ScheduleConfig, **batch) -> list[float]:
    plan = plan_batches(make_config(schedule, **batch))
    function = make_schedule(schedule, plan)
    return [float(function(jnp.int32(update))) for update in range(plan.num_steps)]


def test_cosine_with_warmup():
    got = rates(ScheduleConfig(lr=1.0, min_lr=0.1, warmup_frac=0.1))
    assert got[:10] == pytest.approx([(u + 1) / 10 for u in range(10)])
    for update in range(10, 100):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (update - 10) / 90))
        assert got[update] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ("linear", lambda p: 1 - p),
        ("sqrt", lambda p: 1 - math.sqrt(p)),
        ("cosine", lambda p: (1 + math.cos(math.pi * p)) / 2),
    ],
)
def test_wsd(shape, value):
    got = rates(ScheduleConfig(name="wsd", lr=2.0, warmup_tokens=80, decay_frac=0.2, decay_shape=shape))
    assert got[4:81] == pytest.approx([2.0] * 77)
    for update in range(80, 100):
        assert got[update] == pytest.approx(2.0 * value((update - 80) / 20), rel=1e-5, abs=1e-7)


def test_inverse_sqrt_meets_the_warmup():
    got = rates(ScheduleConfig(name="inverse_sqrt", lr=1.0, min_lr=0.4, warmup_tokens=160))
    assert got[9] == pytest.approx(1.0)
    assert got[40] == pytest.approx(0.5)
    assert got[99] == pytest.approx(0.4)


def test_constant():
    assert rates(ScheduleConfig(name="constant", lr=0.3)) == pytest.approx([0.3] * 100)


def test_warmup_tokens_count_through_a_batch_warmup():
    # 10 steps of 8 tokens, then 95 of 16: 240 tokens end with the 20th update.
    got = rates(
        ScheduleConfig(name="constant", lr=1.0, warmup_tokens=240),
        micro_batch=1,
        warmup=[{"tokens": 80, "global_batch_tokens": 8}],
    )
    assert len(got) == 105
    assert got[19] == pytest.approx(1.0)
    assert got[18] == pytest.approx(19 / 20)
