"""Pipeline stages: all of them computed at once, a vmap over stages, with a roll between two ticks.

The layers are cut into S · R slots of J layers; stage s holds slots s, S + s, 2S + s, … (rounds; Narayanan 2021, the
interleaved schedule). Microbatches travel in groups of S: stage 0 takes the S microbatches of a group through round 0,
then, as they come back from the last stage, through round 1, and so on, then the next group. One round is GPipe (Huang
2019). Each stage works in M · R of M · R + S - 1 ticks; the rest is the bubble. What surrounds the stages (embedding,
loss) is divided over them by microbatches.

S stages  R rounds  J layers of a slot  M microbatches = K groups of S  B rows of a microbatch  T tokens  D model
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtrain.parallel.rules import ACTIVATION_RULES, to_partition_spec

AXIS = "pipeline"
_ROWS = ("batch", "sequence")


@dataclass(frozen=True)
class Pipeline:
    """The stages of a stack of layers on a mesh."""

    mesh: Mesh
    rounds: int
    num_layers: int
    """Layers of the stack; where stages × rounds do not divide them, the last slots are not full."""

    @property
    def stages(self) -> int:
        """S, the size of the mesh axis."""
        return self.mesh.shape[AXIS]

    @property
    def slot_layers(self) -> int:
        """J, layers that a stage runs in one tick."""
        return -(-self.num_layers // (self.stages * self.rounds))

    @property
    def num_places(self) -> int:
        """P, places for layers in memory; more than the layers where slots are not full."""
        return self.stages * self.rounds * self.slot_layers

    @property
    def layer_at(self) -> np.ndarray:
        """Layer at each place of memory, int [P], -1 for none: a stage's slots lie one after another."""
        layers = np.arange(self.num_places)
        layers[self.num_layers :] = -1
        return layers.reshape(self.rounds, self.stages, self.slot_layers).swapaxes(0, 1).reshape(-1)

    @property
    def place_of(self) -> np.ndarray:
        """Place in memory of each layer, int [L]: the inverse."""
        return np.argsort(self.layer_at, kind="stable")[self.num_places - self.num_layers :]

    @property
    def keeps_order(self) -> bool:
        """Whether memory is in the order of layers, without empty places."""
        return np.array_equal(self.layer_at, np.arange(self.num_layers))

    def to_memory(self, leaf: Array) -> Array:
        """[L, ...] in the order of layers as [P, ...] in the order of memory, empty places zero."""
        layer = self.layer_at
        places = jnp.take(leaf, np.maximum(layer, 0), axis=0)
        return places if self.num_places == self.num_layers else jnp.where(_leading(layer >= 0, places), places, 0)

    def from_memory(self, leaf: Array) -> Array:
        """Inverse of to_memory."""
        return jnp.take(leaf, self.place_of, axis=0)

    def num_ticks(self, num_micro: int) -> int:
        """Ticks of a pass over so many microbatches."""
        return num_micro * self.rounds + self.stages - 1

    def bubble(self, num_micro: int) -> float:
        """Share of the ticks in which a stage has nothing to do."""
        return (self.stages - 1) / self.num_ticks(num_micro)

    def over_microbatches(self, function: Callable[..., Any], arguments: Any) -> Any:
        """Call function(microbatch's slice of the arguments) for every microbatch, divided over the stages.

        Args:
            function: from one microbatch's arrays ([B, T, ...] or [B]) to arrays.
            arguments: tree of [M, ...].

        Returns:
            Its results as [M, ...], microbatches laid out by `group`.
        """
        one_group = jax.vmap(function, spmd_axis_name=AXIS)
        grouped = jax.tree.map(self._group, arguments)
        results = lax.map(one_group, grouped)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), results)

    def run(
        self,
        stage: Callable[[Any, Any, Array, Any, Array], tuple[Array, Any]],
        params: Any,
        layers: Any,
        x_MBTD: Array,
        shared: Any,
        combine: Callable[[Any, int], Any],
    ) -> tuple[Array, Any]:
        """Take every microbatch through all layers.

        Args:
            stage: `(params [J, ...], layers [J, ...], x_BTD, shared of the microbatch, active) -> (x_BTD, outputs
                [J, ...])`; `active` is a bool, false in the bubble, where the outputs do not count and work may be
                left out.
            params: parameters in the order of memory, [P, ...].
            layers: what tells layers apart, in the order of memory, [P, ...].
            x_MBTD: the residual stream before the first layer.
            shared: what every layer reads of a microbatch, tree of [M, ...].
            combine: `(outputs, axis)`, to take the microbatches' outputs together.

        Returns:
            x_MBTD after the last layer, and the stages' outputs by layer, of all microbatches, [L, ...].
        """
        stages, rounds, num_micro = self.stages, self.rounds, x_MBTD.shape[0]
        slots = jax.tree.map(self._slots, (params, layers))
        x_KSBTD = self._group(x_MBTD)
        stage_S = jnp.arange(stages)
        last_S = stage_S == stages - 1

        def one_stage(slots: Any, round_: Array, x_BTD: Array, shared: Any, active: Array) -> tuple[Array, Any]:
            params, layers = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, round_, keepdims=False), slots)
            return stage(params, layers, x_BTD, shared, active)

        def tick(carry: tuple[Array, Array, Array, Array], t: Array) -> tuple[tuple[Array, Array, Array, Array], Any]:
            x_SBTD, waiting_SBTD, leaving_SBTD, done_KSBTD = carry
            item_S = t - stage_S
            active_S = (item_S >= 0) & (item_S < num_micro * rounds)
            item_S = jnp.clip(item_S, 0, num_micro * rounds - 1)
            group_S, within_S = item_S // (stages * rounds), item_S % (stages * rounds)
            round_S, micro_S = within_S // stages, group_S * stages + within_S % stages
            # Stage s holds the group's microbatch s at first; with each tick the next one comes to stage 0.
            arrived = lax.dynamic_index_in_dim(x_KSBTD, jnp.minimum(t // (stages * rounds), len(x_KSBTD) - 1), 0, False)
            waiting_SBTD = jnp.where(t % (stages * rounds) == 0, arrived, waiting_SBTD)
            enters_S = (stage_S == 0) & (round_S == 0)
            x_SBTD = self._constrain(jnp.where(_leading(enters_S, x_SBTD), waiting_SBTD, x_SBTD))
            now = jax.tree.map(lambda a: self._constrain(a[micro_S]), shared)
            x_SBTD, outputs = jax.vmap(one_stage, spmd_axis_name=AXIS)(slots, round_S, x_SBTD, now, active_S)
            x_SBTD = self._constrain(x_SBTD)
            leaving_SBTD = jnp.where(_leading(last_S, x_SBTD), x_SBTD, jnp.roll(leaving_SBTD, -1, axis=0))
            # Overwritten until the group's last microbatch has left.
            done_KSBTD = lax.dynamic_update_index_in_dim(done_KSBTD, leaving_SBTD, group_S[-1], 0)
            moved = jnp.roll(x_SBTD, 1, axis=0), jnp.roll(waiting_SBTD, -1, axis=0)
            x_SBTD, waiting_SBTD = map(self._constrain, moved)
            return (x_SBTD, waiting_SBTD, self._constrain(leaving_SBTD), done_KSBTD), outputs

        zero_SBTD = self._constrain(jnp.zeros_like(x_KSBTD[0]))
        start = zero_SBTD, zero_SBTD, zero_SBTD, jnp.zeros_like(x_KSBTD)
        (_, _, _, done_KSBTD), outputs = lax.scan(tick, start, jnp.arange(self.num_ticks(num_micro)))
        outputs = combine(self._by_microbatch(num_micro, outputs), 2)
        layered = jax.tree.map(lambda a: a.reshape(self.num_places, *a.shape[3:])[: self.num_layers], outputs)
        return done_KSBTD.reshape(x_MBTD.shape), layered

    def _by_microbatch(self, num_micro: int, outputs: Any) -> Any:
        """From the stages' outputs at every tick [ticks, S, J, ...] to those that count, [R, S, M, J, ...]."""
        round_, stage, micro = np.meshgrid(
            np.arange(self.rounds), np.arange(self.stages), np.arange(num_micro), indexing="ij"
        )
        group, place = np.divmod(micro, self.stages)
        tick = (group * self.rounds + round_) * self.stages + place + stage
        return jax.tree.map(lambda a: a[tick, stage], outputs)

    def _slots(self, leaf: Array) -> Array:
        """[P, ...] in the order of memory as [S, R, J, ...]."""
        return leaf.reshape(self.stages, self.rounds, self.slot_layers, *leaf.shape[1:])

    def _group(self, leaf: Array) -> Array:
        """[M, ...] as [K, S, ...], microbatch k · S + s on stage s."""
        grouped = leaf.reshape(-1, self.stages, *leaf.shape[1:])
        return jax.vmap(self._constrain)(grouped)

    def _constrain(self, leaf: Array) -> Array:
        """Lay [S, B, T, ...], [S, B] or [S] out: stages over the pipeline, rows and tokens by the rules."""
        rows = to_partition_spec(_ROWS[: leaf.ndim - 1], ACTIVATION_RULES)
        return lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, PartitionSpec(AXIS, *rows)))


def _leading(flag_S: Array | np.ndarray, like: Array) -> Array | np.ndarray:
    """A flag for each slice of an array's first dimension."""
    return flag_S.reshape(-1, *(1,) * (like.ndim - 1))
