"""Batches of the loader as global arrays on the mesh."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from maxtrain.config.schema import BATCH_AXES
from maxtrain.loader import Loader
from maxtrain.loader.prefetch import prefetch_items
from maxtrain.parallel.context import ring_order
from maxtrain.parallel.mesh import local_columns, local_rows, make_global
from maxtrain.parallel.rules import ACTIVATION_RULES, to_partition_spec


class BatchFeeder:
    """Turns a batch's rows into [A, B, T] arrays: A microbatches of B rows, B divided over the batch axes.

    T is divided over the context axis, whose ranks' tokens lie in ring order.

    Args:
        mesh: the device mesh.
        micro_batch: rows that one data-parallel rank takes at once.
    """

    def __init__(self, mesh: Mesh, micro_batch: int) -> None:
        self._mesh = mesh
        self.micro_rows = micro_batch * int(np.prod([mesh.shape[axis] for axis in BATCH_AXES]))

    def select(self, batch_rows: int) -> np.ndarray:
        """Positions inside a batch of this many rows that this process reads, in the order that `place` expects."""
        starts = np.arange(0, batch_rows, self.micro_rows)
        return (starts[:, None] + local_rows(self._mesh, self.micro_rows)).reshape(-1)

    def place(self, batch: dict[str, np.ndarray], batch_rows: int) -> dict[str, jax.Array]:
        """Put this process's rows of a batch on its devices."""
        num_micro, num_context = batch_rows // self.micro_rows, self._mesh.shape["context"]

        def put(rows: np.ndarray) -> jax.Array:
            shape = num_micro, self.micro_rows, *rows.shape[1:]
            if rows.ndim > 1 and num_context > 1:
                order = ring_order(rows.shape[1], num_context)
                rows = rows[:, order[local_columns(self._mesh, len(order))]]
            local = rows.reshape(num_micro, -1, *rows.shape[1:])
            spec = to_partition_spec((None, "batch", "sequence")[: local.ndim], ACTIVATION_RULES)
            return make_global(self._mesh, spec, local, shape)

        return {name: put(rows) for name, rows in batch.items()}


def abstract_batch(mesh: Mesh, micro_batch: int, batch_rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a placed batch of so many rows of so many tokens."""
    micro_rows = BatchFeeder(mesh, micro_batch).micro_rows
    shape = batch_rows // micro_rows, micro_rows, length

    def leaf(num_dims: int, dtype: type) -> jax.ShapeDtypeStruct:
        spec = to_partition_spec((None, "batch", "sequence")[:num_dims], ACTIVATION_RULES)
        return jax.ShapeDtypeStruct(shape[:num_dims], dtype, sharding=NamedSharding(mesh, spec))

    rows = {name: leaf(3, np.int32) for name in ("tokens", "targets", "segment_ids", "positions")}
    return {**rows, "weights": leaf(3, np.float32), "domain": leaf(2, np.int32)}


def feed(
    loader: Loader, feeder: BatchFeeder, first_step: int, prefetch: int
) -> Iterator[tuple[int, dict[str, jax.Array]]]:
    """Global batches in order, from a step on: (step, batch); some are prepared ahead."""
    plan = loader.plan

    def own_rows(step: int) -> dict[str, np.ndarray]:
        return loader.batch(step, feeder.select(len(plan.rows_of(step))))

    for step, batch in prefetch_items(own_rows, first=first_step, end=plan.num_steps, num_ahead=prefetch):
        yield step, feeder.place(batch, len(plan.rows_of(step)))
