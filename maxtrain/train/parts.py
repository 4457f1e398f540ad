"""Mesh, model, optimizer and compiled step of a config: the same for training, tests and benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import Config
from maxtrain.model import Model
from maxtrain.optim import make_optimizer, make_schedule
from maxtrain.parallel.mesh import make_mesh
from maxtrain.train.state import TrainState, abstract_state, create_state
from maxtrain.train.step import Batch, Metrics, make_train_step


@dataclass(frozen=True)
class Parts:
    """The parts of a training step on its mesh.

    Attributes:
        train_step: (state, batch) -> (state, metrics), compiled at its first call; the state is donated.
    """

    mesh: Mesh
    model: Model
    optimizer: optax.GradientTransformation
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return abstract_state(self.model, self.optimizer, self.mesh)

    def create_state(self, seed: int) -> TrainState:
        """The state before the first step."""
        return create_state(self.model, self.optimizer, self.mesh, seed)


def build_model(config: Config, mesh: Mesh) -> Model:
    """The config's model on a mesh."""
    return Model(
        config.model,
        precision=config.precision,
        remat=config.remat,
        scan_unroll=config.train.scan_unroll,
        kernels=config.train.kernels,
        mesh=mesh,
    )


def build_parts(config: Config, plan: BatchPlan, num_domains: int) -> Parts:
    """Build everything that a step needs.

    Args:
        config: a checked config.
        plan: its batches.
        num_domains: domains of the loader.
    """
    mesh = make_mesh(config.mesh)
    model = build_model(config, mesh)
    axes = {spec.path: spec.axes for spec in model.table}
    optimizer = make_optimizer(config.optimizer, model.abstract_params(), axes)
    step = make_train_step(model, optimizer, make_schedule(config.schedule, plan), config, num_domains)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(model, optimizer, mesh))
    replicated = NamedSharding(mesh, PartitionSpec())
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated))
    return Parts(mesh, model, optimizer, compiled)
