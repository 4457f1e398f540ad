"""Mesh, model, optimizer and compiled step of a config: the same for training, tests and benchmarks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtrain.config.batch_plan import BatchPlan, plan_batches
from maxtrain.config.parametrization import multipliers
from maxtrain.config.schema import Config
from maxtrain.model import Model
from maxtrain.optim import Optimizer, make_optimizer, make_schedule
from maxtrain.parallel.mesh import make_mesh
from maxtrain.parallel.xla_flags import quick_compile
from maxtrain.train.feed import abstract_batch
from maxtrain.train.state import TrainState, abstract_state, init_key, new_state
from maxtrain.train.step import Batch, Metrics, make_train_step


@dataclass(frozen=True)
class Parts:
    """The parts of a training step on its mesh.

    Attributes:
        abstract_state: shapes, dtypes and shardings of the state.
        new_state: from the key of the initial parameters to the state before the first step, every leaf created
            where it stays; compiled at its first call.
        train_step: (state, batch) -> (state, metrics), compiled at its first call; the state is donated.
        compiler_options: what programs that run often are compiled with.
    """

    mesh: Mesh
    model: Model
    optimizer: Optimizer
    abstract_state: TrainState
    new_state: Callable[[Array], TrainState]
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    compiler_options: dict[str, bool]

    def create_state(self, seed: int) -> TrainState:
        """The state before the first step."""
        return self.new_state(init_key(seed))


def build_model(config: Config, mesh: Mesh) -> Model:
    """The config's model on a mesh."""
    return Model(
        config.model,
        precision=config.precision,
        remat=config.remat,
        scan_unroll=config.train.scan_unroll,
        kernels=config.train.kernels,
        mesh=mesh,
        pipeline=config.pipeline,
        max_logits=config.optimizer.qk_clip is not None,
        layout=config.mesh,
    )


def build_parts(
    config: Config, plan: BatchPlan, num_domains: int, devices: Sequence[jax.Device] | None = None
) -> Parts:
    """Build everything that a step needs.

    Args:
        config: a checked config.
        plan: its batches.
        num_domains: domains of the loader.
        devices: those of the mesh; all of the backend by default.
    """
    mesh = make_mesh(config.mesh, devices)
    model = build_model(config, mesh)
    axes = {spec.path: spec.axes for spec in model.table}
    optimizer = make_optimizer(
        config.optimizer,
        jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            model.abstract_params(),
            model.update_shardings(),
        ),
        axes,
        factors=multipliers(config.model),
        order=model.memory_order,
        seed=config.run.seed,
    )
    step = make_train_step(model, optimizer, make_schedule(config.schedule, plan), config, num_domains)
    abstract = abstract_state(model, optimizer, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    replicated = NamedSharding(mesh, PartitionSpec())
    platform = mesh.devices.flat[0].platform
    options = quick_compile(platform) if config.train.quick_compile else {}
    return Parts(
        mesh,
        model,
        optimizer,
        abstract,
        jax.jit(
            partial(new_state, model, optimizer), out_shardings=shardings, compiler_options=quick_compile(platform)
        ),
        jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated), compiler_options=options),
        options,
    )


def largest_batch(config: Config, plan: BatchPlan, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The batch of the longest rows, of as many as there are at once; no array is made."""
    segment = max(plan.segments, key=lambda segment: (segment.stage.sequence_length, segment.batch_rows))
    return abstract_batch(mesh, config.batch.micro_batch, segment.batch_rows, segment.stage.sequence_length)


def lower_train_step(config: Config, devices: Sequence[jax.Device]) -> Any:
    """The step of the longest rows for devices that need not be there, such as those of a topology; no array is made.

    Args:
        config: a checked config.
        devices: at least as many as its mesh has.

    Returns:
        What `compile()` makes a program of.
    """
    plan = plan_batches(config)
    domains = {name for stage in plan.stages for name in stage.mixture}
    parts = build_parts(config, plan, len(domains), devices)
    return cast(Any, parts.train_step).lower(parts.abstract_state, largest_batch(config, plan, parts.mesh))
