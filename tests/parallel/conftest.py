"""The same small model on one device and on meshes of the eight emulated ones."""

import functools
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import pytest

from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.schema import Config, MeshConfig, PipelineConfig, RematConfig
from maxtrain.core.trees import leaf_paths
from maxtrain.parallel.emulation import settle
from maxtrain.train.feed import BatchFeeder
from maxtrain.train.parts import build_parts
from maxtrain.train.state import from_saved, to_saved

ROWS, LENGTH, VOCABULARY = 32, 32, 128


def parity_config(mesh: dict[str, int], num_micro: int = 1, /, **sections: dict[str, Any]) -> Config:
    """Eight experts, shared expert, first layer dense, windows; float32; sections change some keys of it.

    `zero` may stand among the mesh's axes.
    """
    sizes = [size for axis, size in mesh.items() if axis != "zero"]
    ranks = int(np.prod([mesh.get(axis, 1) for axis in ("data", "fsdp", "expert")]))
    config: dict[str, Any] = {
        "run": {"directory": "unused", "seed": 11},
        "data": {"source": "synthetic", "sequence_length": LENGTH},
        "batch": {"global_batch_tokens": ROWS * LENGTH, "micro_batch": ROWS // ranks // num_micro},
        "model": {
            "vocab_size": VOCABULARY,
            "num_layers": 3,
            "d_model": 32,
            "num_heads": 8,
            "num_kv_heads": 4,
            "head_dim": 8,
            "d_ff": 64,
            "window": 16,
            "global_every": 3,
            "qk_norm": True,
            "attention_gate": True,
            "z_weight": 1e-4,
            "moe": {
                "num_experts": 8,
                "top_k": 2,
                "d_expert": 32,
                "num_shared": 1,
                "first_dense": 1,
                "balance_weight": 0.01,
                "z_weight": 1e-3,
            },
        },
        "mesh": {"devices": int(np.prod(sizes)) if sizes else 1, **mesh},
        "train": {"total_tokens": 64 * ROWS * LENGTH, "scan_unroll": 1},
        # eps over the rounding of a gradient's sum, which Adam would otherwise turn into whole steps.
        "optimizer": {"weight_decay": 0.1, "clip_norm": None, "eps": 1e-6},
        "schedule": {"name": "constant", "lr": 1e-3},
    }
    return Config.model_validate(config | {name: config.get(name, {}) | keys for name, keys in sections.items()})


def parity_batch(seed: int) -> dict[str, np.ndarray]:
    """[R, T] rows with two documents each and some padding; row 5 is padding only."""
    random = np.random.default_rng(seed)
    tokens = random.integers(1, VOCABULARY, (ROWS, LENGTH + 1))
    cut = random.integers(4, LENGTH - 4, ROWS)
    place = np.arange(LENGTH)[None]
    second = place >= cut[:, None]
    segment_ids = np.where(second, 2, 1)
    segment_ids[-4:, -7:] = 0
    segment_ids[5] = 0
    positions = np.where(second, place - cut[:, None], place)
    weights = np.ones((ROWS, LENGTH), np.float32)
    weights[:, :-1][segment_ids[:, 1:] != segment_ids[:, :-1]] = 0
    weights[segment_ids == 0] = 0
    rows = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": segment_ids,
        "positions": np.where(segment_ids > 0, positions, 0),
        "domain": np.arange(ROWS) % 2,
    }
    return {**{name: value.astype(np.int32) for name, value in rows.items()}, "weights": weights}


def relative(a, b) -> float:
    """Relative L2 distance of two leaves; a zero leaf must be matched exactly."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not np.any(b):
        return float(np.abs(a).max(initial=0.0))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def farthest(a: dict, b: dict) -> tuple[str, float]:
    """The leaf with the greatest distance."""
    assert a.keys() == b.keys()
    return max(((name, relative(leaf, b[name])) for name, leaf in a.items()), key=lambda item: item[1])


class Trained(NamedTuple):
    """Some steps of training, by parameter path."""

    gradient: dict[str, np.ndarray]
    """Adam's first moment after the first step: a tenth of that step's gradient, not clipped."""
    params: dict[str, np.ndarray]
    """Parameters after the last step."""
    lines: list[dict]
    """Metrics of every step."""


_initial: dict[str, dict[str, Any]] = {}


def initial_state(config: Config) -> dict[str, Any]:
    """The state before the first step as it is saved, on the host: one program bears it for all meshes."""
    batch = config.batch.model_copy(update={"micro_batch": ROWS})
    plain = {"mesh": MeshConfig(devices=1), "pipeline": PipelineConfig(), "remat": RematConfig(), "batch": batch}
    config = config.model_copy(update=plain)
    key = config.model_dump_json()
    if key not in _initial:
        parts = build_parts(config, plan_batches(config), num_domains=2)
        _initial[key] = jax.device_get(to_saved(parts.create_state(config.run.seed), parts.model))
    return _initial[key]


class OnMesh:
    """The model on one mesh."""

    def __init__(self, config: Config) -> None:
        self.parts = build_parts(config, plan_batches(config), num_domains=2)
        self._feeder = BatchFeeder(self.parts.mesh, config.batch.micro_batch)
        self._config = config

    def create_state(self):
        """The state before the first step."""
        like, model = self.parts.abstract_state, self.parts.model
        saved = jax.tree.map(
            lambda leaf, place: jax.device_put(np.array(leaf), place.sharding),
            initial_state(self._config),
            to_saved(like, model),
        )
        return from_saved(saved, like, model)

    def batch(self, seed: int, **more: np.ndarray):
        """A batch on the mesh, with more arrays of [R, T, ...] in it, or others in place of its own."""
        own = self._feeder.select(ROWS)
        return self._feeder.place({name: rows[own] for name, rows in (parity_batch(seed) | more).items()}, ROWS)

    @functools.cached_property
    def step(self):
        """The compiled step."""
        return cast(Any, self.parts.train_step).lower(self.parts.abstract_state, self.batch(0)).compile()

    def train(self, num_steps: int) -> "Trained":
        """Train and bring everything to the host."""
        return self.run(self.step, (self.batch(step) for step in range(num_steps)))

    def run(self, step, batches) -> "Trained":
        """The same with a step and batches of one's own."""
        state, lines = self.create_state(), []
        gradient: dict[str, np.ndarray] = {}
        for batch in batches:
            state, metrics = settle(step(state, batch))
            lines.append(jax.device_get(metrics))
            gradient = gradient or self.gradient(state)
        return Trained(gradient, self.params(state), lines)

    def gradient(self, state) -> dict[str, np.ndarray]:
        """Adam's first moment by parameter path."""
        moments = jax.device_get(to_saved(state, self.parts.model)["opt_state"])
        return {name.removeprefix("mu/"): leaf for name, leaf in moments.items() if name.startswith("mu/")}

    def params(self, state) -> dict[str, np.ndarray]:
        """Parameters by path."""
        return dict(leaf_paths(jax.device_get(to_saved(state, self.parts.model)["params"])))


@pytest.fixture(scope="session")
def on_mesh():
    @functools.cache
    def build(num_micro: int = 1, **mesh: int) -> OnMesh:
        return OnMesh(parity_config(mesh, num_micro))

    return build


@pytest.fixture(scope="session")
def build_on():
    """From a mesh, microbatches a step and changed sections to the model on it."""

    def build(mesh: dict[str, int], num_micro: int = 1, /, **sections: dict[str, Any]) -> OnMesh:
        return OnMesh(parity_config(mesh, num_micro, **sections))

    return build


@pytest.fixture(scope="session")
def one_device(on_mesh) -> Trained:
    """Five steps of the same model on one device."""
    return on_mesh().train(5)


@pytest.fixture(scope="session")
def assert_parity():
    """Loss, gradient of the first step and parameters after the last one against a reference.

    Adam divides a gradient by its size: where that is near zero, rounding alone moves the parameter, so that a mesh
    that adds up in another order may ask for a wider bound on the parameters.
    """

    def check(trained: Trained, reference: Trained, params: float = 1e-5) -> None:
        for line, other in zip(reference.lines, trained.lines, strict=True):
            np.testing.assert_array_equal(other["expert_load"], line["expert_load"])  # a flipped expert would show here
            assert other["batch_digest"] == line["batch_digest"]
            assert relative(other["loss"], line["loss"]) < 2e-6
            assert relative(other["grad_norm"], line["grad_norm"]) < 2e-6
        assert farthest(trained.gradient, reference.gradient)[1] < 1e-5, farthest(trained.gradient, reference.gradient)
        assert farthest(trained.params, reference.params)[1] < params, farthest(trained.params, reference.params)

    return check


@pytest.fixture(scope="session")
def farthest_leaf():
    return farthest


@pytest.fixture(scope="session")
def relative_to():
    return relative


@pytest.fixture(scope="session")
def batch_rows() -> dict[str, np.ndarray]:
    """The rows of the first batch."""
    return parity_batch(0)
