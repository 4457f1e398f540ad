"""A small state with every kind of leaf, on any mesh, and stores in a fresh directory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtrain.checkpoint import CheckpointStore

SPECS = {
    "params": {"w": ("data", "fsdp"), "norm": ("fsdp",), "half": (None, "fsdp")},
    "expert_bias": (),
    "step": (),
    "flags": ("fsdp",),
    "key": (),
    "row_keys": ("data",),
}


def _values(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "params": {
            "w": random.standard_normal((8, 64), np.float32),
            "norm": np.array([np.nan, np.inf, -0.0, 0.0, 1e-45, 1, 2, seed], np.float32),
            "half": random.standard_normal((3, 16), np.float32).astype(jnp.bfloat16),
        },
        "expert_bias": np.zeros((0, 0), np.float32),
        "step": np.int32(seed),
        "flags": random.integers(0, 2, 8).astype(bool),
    }


class Events(list):
    """Records events; `kinds` lists them by name."""

    def __call__(self, kind: str, step: int | None, fields: dict[str, Any]) -> None:
        self.append((kind, step, fields))

    def of(self, kind: str) -> list[tuple[int | None, dict[str, Any]]]:
        return [(step, fields) for name, step, fields in self if name == kind]


class Kit(NamedTuple):
    mesh: Callable[[int, int], Mesh]
    state: Callable[..., Any]
    abstract: Callable[[Mesh], Any]


@pytest.fixture(scope="session")
def kit() -> Kit:
    def mesh(data: int, fsdp: int) -> Mesh:
        axes = (AxisType.Auto,) * 2
        return jax.make_mesh((data, fsdp), ("data", "fsdp"), axes, devices=jax.devices()[: data * fsdp])

    def place(on: Mesh, spec: tuple) -> NamedSharding:
        return NamedSharding(on, PartitionSpec(*spec))

    def state(on: Mesh, seed: int = 3) -> Any:
        values = _values(seed)
        keys = {"key": jax.random.key(seed), "row_keys": jax.random.split(jax.random.key(seed), 8)}
        return jax.tree.map(lambda value, spec: jax.device_put(value, place(on, spec)), values | keys, SPECS)

    def abstract(on: Mesh) -> Any:
        shapes = jax.eval_shape(
            lambda: _values(0) | {"key": jax.random.key(0), "row_keys": jax.random.split(jax.random.key(0), 8)}
        )
        return jax.tree.map(
            lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(on, spec)), shapes, SPECS
        )

    return Kit(mesh, state, abstract)


@pytest.fixture(scope="session")
def mesh(kit: Kit) -> Mesh:
    return kit.mesh(2, 4)


@pytest.fixture(scope="session")
def state(kit: Kit, mesh: Mesh) -> Any:
    return kit.state(mesh)


@pytest.fixture(scope="session")
def abstract(kit: Kit, mesh: Mesh) -> Any:
    return kit.abstract(mesh)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def open_store(directory: Path, events: Events) -> Iterator[Callable[..., CheckpointStore]]:
    """Open a store of the test's directory, closing the one before."""
    stores: list[CheckpointStore] = []

    def close() -> None:
        if stores:
            stores.pop().close()

    def open_one(**options: Any) -> CheckpointStore:
        close()
        stores.append(CheckpointStore(directory, on_event=events, **options))
        return stores[-1]

    yield open_one
    close()


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory, kit: Kit, mesh: Mesh) -> Path:
    """A `checkpoints` directory with steps 2 and 3; copy it before changing it."""
    directory = tmp_path_factory.mktemp("committed") / "checkpoints"
    with CheckpointStore(directory) as store:
        for step in (2, 3):
            store.save(step, kit.state(mesh, seed=step), {"step": step, "seed": 7, "fingerprint": {"manifest": "ab"}})
    return directory
