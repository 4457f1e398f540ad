"""What is not finite ends the run with an exit code of its own, and is never taken for healthy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from maxtrain.checkpoint import list_steps
from maxtrain.checkpoint.health import Health
from maxtrain.config.batch_plan import plan_batches
from maxtrain.core.errors import ExitCode, StoppedError
from maxtrain.evaluation.perplexity import DomainLoss
from maxtrain.loader import Loader
from maxtrain.monitor.events import read_events
from maxtrain.monitor.metrics import read_metrics
from maxtrain.train.session import run_training


def train(config, parts):
    plan = plan_batches(config)
    loader = Loader(plan, data=config.data, seed=config.run.seed, vocab_size=config.model.vocab_size)
    return run_training(config, plan, loader, None, None, parts)


def health(directory) -> dict[int, Health | None]:
    return {info.step: info.health for info in list_steps(directory / "checkpoints")}


def test_an_update_that_ruins_the_parameters(runner, tmp_path):
    directory = tmp_path / "run"
    config = runner.load(directory)
    # Over what the config allows: every gradient is finite, and the squares of the parameters overflow.
    config = config.model_copy(update={"schedule": config.schedule.model_copy(update={"lr": 1e38})})
    with pytest.raises(StoppedError, match=r"^step 1: the norm of the parameters is inf .*lower schedule\.lr") as error:
        train(config, runner.parts(config))
    assert error.value.exit_code == ExitCode.STOPPED == 6
    assert "\n" not in str(error.value)
    (line,) = read_metrics(directory / "metrics.jsonl")
    assert not line["skipped"]
    assert line["grad_norm"] < 1e3
    assert health(directory) == {0: Health.PROVISIONAL}
    assert "StoppedError" in read_events(directory / "events.jsonl")[-1].fields["reason"]


def test_a_last_step_that_ruins_the_parameters_is_not_saved(runner, tmp_path):
    directory = tmp_path / "run"
    config = runner.load(directory)
    parts = runner.parts(config)

    def step(state, batch):
        state, metrics = parts.train_step(state, batch)
        if int(state.step) == 12:
            state = state._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, state.params))
            metrics = {**metrics, "param_norm": jnp.nan}
        return state, metrics

    with pytest.raises(StoppedError, match="step 12: the norm of the parameters is nan"):
        train(config, replace(parts, train_step=step))
    assert list(health(directory)) == [0, 4, 8]


def test_a_state_that_is_not_finite_at_a_save(runner, tmp_path):
    directory = tmp_path / "run"
    config = runner.load(directory)
    parts = runner.parts(config)

    def step(state, batch):
        state, metrics = parts.train_step(state, batch)
        if int(state.step) == 8:
            first = next(iter(state.opt_state.mu))
            mu = {**state.opt_state.mu, first: state.opt_state.mu[first] * jnp.inf}
            state = state._replace(opt_state=replace(state.opt_state, mu=mu))
        return state, metrics

    with pytest.raises(StoppedError, match=r"step 8: the state is not finite \(opt_state/mu/.* unhealthy;"):
        train(config, replace(parts, train_step=step))
    found = health(directory)
    assert found[8] == Health.UNHEALTHY
    assert found[4] == Health.PROVISIONAL
    assert runner.train(directory) == 0, "the next start goes on from step 4"
    assert list(health(directory)) == [0, 4, 8, 12]


def test_a_last_evaluation_that_is_not_finite(runner, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    monkeypatch.setattr(DomainLoss, "loss", property(lambda self: float("nan")))
    with pytest.raises(StoppedError, match=r"step 12: the held-out loss is not finite \(english nan, math nan\)"):
        runner.train(directory, "evaluation.every=12")
    found = health(directory)
    assert found.pop(12) == Health.UNHEALTHY
    assert Health.UNHEALTHY not in found.values()
