"""Routed experts over a mesh: how a token's row meets the experts that it has chosen.

The experts of a layer are divided over `expert` and the axes folded onto it (MoE Parallel Folding, Liu 2025), in
contiguous blocks in the mesh's order, so that a group of experts lies on neighbouring ranks. Each form is an island of
`shard_map` around the same local computation:

- `all_to_all`: a row travels once to each rank that holds experts of it, in buffers of a bounded size, and the sum of
  their outputs travels back. What a buffer cannot hold travels in further rounds, as many as are needed, or is dropped;
- `ragged`: the same, and only rows in use travel;
- `ring`: all rows are gathered on every rank, outputs are summed and scattered back;
- `dense`: weights are gathered, and every expert sees every row. What the others are held against.

B batch  T tokens  N rows  k choices of a row  E experts  R ranks  D model  F hidden
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from maxtrain.config.schema import MeshConfig
from maxtrain.core.errors import UserError
from maxtrain.parallel.delivery import Carrier, Parcels, collect, deliver, pack, way_of
from maxtrain.parallel.island import (
    ROW_AXES,
    Entered,
    activation_spec,
    active_axes,
    enter_weights,
    flatten_tokens,
    gather_tokens,
    gather_weights,
    is_single,
    run_island,
    sequence_axis,
    sum_tensor_parts,
)

LEAST_ROWS = 8
"""Fewest rows of a buffer from one rank to another; its size is a multiple of it."""


@dataclass(frozen=True)
class Exchange:
    """How tokens meet their experts; static."""

    kind: Literal["all_to_all", "ragged", "ring", "dense"] = "all_to_all"
    factor: float = 1.25
    """Size of a buffer, in what an even load needs."""
    overflow: Literal["replay", "drop"] = "replay"
    expert_axes: tuple[str, ...] = ("expert",)
    """Mesh axes that divide the experts, slowest first."""
    num_groups: int = 1
    """Groups of experts, of which a token uses `top_groups`: they bound the ranks that its row travels to."""
    top_groups: int = 1

    @classmethod
    def create(cls, config: MeshConfig, mesh: Mesh | None, *, num_groups: int = 1, top_groups: int = 1) -> "Exchange":
        """From the config's section.

        Raises:
            UserError: the mesh's devices cannot run it.
        """
        kind = "all_to_all" if config.exchange == "auto" else config.exchange
        if kind == "ragged" and mesh is not None and mesh.devices.flat[0].platform == "cpu":
            raise UserError("mesh.exchange = ragged: CPUs have no ragged all-to-all; set all_to_all, its portable form")
        return cls(kind, config.exchange_factor, config.exchange_overflow, config.expert_axes, num_groups, top_groups)

    def exact(self) -> "Exchange":
        """The same, dropping nothing."""
        return replace(self, overflow="replay")


def sharded_experts(
    x_BTD: Array,
    index_BTk: Array,
    weight_BTk: Array,
    gate: Array | None,
    up: Array,
    down: Array,
    *,
    mesh: Mesh | None,
    exchange: Exchange,
    zero: int = 3,
    compute: Callable[..., Array],
    sequence_parallel: bool = False,
) -> tuple[Array, Array]:
    """Routed experts of the tokens.

    Args:
        x_BTD: input.
        index_BTk: int32 experts of each token, -1 for none.
        weight_BTk: float32 weights of their outputs.
        gate: gate_EDF or None.
        up: up_EDF.
        down: down_EFD.
        mesh: the device mesh.
        exchange: how rows and experts meet.
        zero: as mesh.zero.
        compute: `(x_ND, index_Nk, weight_Nk, gate, up, down, first_expert=, num_experts=, most_choices=) -> y_ND`,
            over the experts whose weights it is given.
        sequence_parallel: `tensor` divides the tokens of x, of the choices and of the result.

    Returns:
        y_BTD in x's dtype, and the number of choices dropped because a buffer was full: float32 [].
    """
    num_experts = up.shape[0]
    compute = partial(compute, num_experts=num_experts)
    dropped = jnp.zeros((), jnp.float32)
    if is_single(mesh):
        y_ND = compute(*map(flatten_tokens, (x_BTD, index_BTk, weight_BTk)), gate, up, down)
        return y_ND.reshape(x_BTD.shape), dropped
    assert mesh is not None
    axes = active_axes(mesh, *exchange.expert_axes)
    sequence = sequence_axis(mesh, x_BTD, sequence_parallel)
    tokens, choices = (activation_spec(mesh, "batch", sequence, axis) for axis in ("embed", None))
    # Ranks of an axis that divides experts and not tokens hold the same rows: each takes a part of them.
    copies = tuple(axis for axis in axes if axis not in _axes_of(tokens))
    partial_sums = "tensor" not in exchange.expert_axes
    layout = ("expert", "embed", "mlp"), ("expert", "embed", "mlp"), ("expert", "mlp", "embed")
    run = _FORMS[exchange.kind] if axes else _at_home

    def island(x: Array, index: Array, weight: Array, *entered: Entered) -> tuple[Array, Array]:
        if partial_sums:
            x, index, weight = (gather_tokens(a, sequence) for a in (x, index, weight))
        rows = _own_part([flatten_tokens(a) for a in (x, index, weight)], copies)
        weights = gather_weights(entered, layout, mesh, exchange.expert_axes)
        y_ND, dropped = run(exchange, axes, rows, weights, compute)
        y_BTD = _all_parts(y_ND.astype(x.dtype), copies)[: math.prod(x.shape[:2])].reshape(x.shape)
        y_BTD = sum_tensor_parts(y_BTD, mesh, sequence) if partial_sums else y_BTD
        counted = dict.fromkeys((*active_axes(mesh, *ROW_AXES), *axes))
        return y_BTD, lax.psum(dropped, tuple(counted))

    weights, specs = enter_weights((gate, up, down), layout, mesh, zero, exchange.expert_axes)
    return run_island(
        island,
        mesh,
        (tokens, choices, choices, *specs),
        (tokens, PartitionSpec()),
        (x_BTD, index_BTk, weight_BTk, *weights),
        fill=(0, -1, 0),
    )


def _axes_of(spec: PartitionSpec) -> set[str]:
    return {name for entry in spec if entry for name in ((entry,) if isinstance(entry, str) else entry)}


Rows = list[Array]
"""x_ND, index_Nk, weight_Nk."""
Weights = tuple[Array | None, ...]
"""gate, up and down of the experts held here."""


def _at_home(
    exchange: Exchange, axes: tuple[str, ...], rows: Rows, weights: Weights, compute: Callable[..., Array]
) -> tuple[Array, Array]:
    """Every rank holds all experts."""
    return compute(*rows, *weights), jnp.float32(0)


def _dense(
    exchange: Exchange, axes: tuple[str, ...], rows: Rows, weights: Weights, compute: Callable[..., Array]
) -> tuple[Array, Array]:
    return compute(*rows, *(_whole(w, axes, 0) for w in weights)), jnp.float32(0)


def _ring(
    exchange: Exchange, axes: tuple[str, ...], rows: Rows, weights: Weights, compute: Callable[..., Array]
) -> tuple[Array, Array]:
    gathered = [lax.all_gather(a, axes, axis=0, tiled=True) for a in rows]
    y_ND = compute(*gathered, *weights, first_expert=_first_expert(axes, weights))
    return lax.psum_scatter(y_ND, axes, scatter_dimension=0, tiled=True), jnp.float32(0)


def _routed(
    exchange: Exchange, axes: tuple[str, ...], rows: Rows, weights: Weights, compute: Callable[..., Array]
) -> tuple[Array, Array]:
    x_ND, index_Nk, weight_Nk = rows
    num_local = _num_local(weights)
    carrier = make_carrier(exchange, axes, _num_ranks(axes), num_local, x_ND.shape[0], index_Nk.shape[1])
    parcels, num_rounds = pack(carrier, index_Nk)
    one_round = partial(_one_round, carrier, axes, compute)
    needed = x_ND, weight_Nk, weights
    if carrier.is_ample(x_ND.shape[0], index_Nk.shape[1]):
        return one_round(0, needed, index_Nk, parcels), jnp.float32(0)
    if exchange.overflow == "drop":
        late = jnp.where(parcels.round_M > 0, parcels.size_M, 0).sum().astype(jnp.float32)
        return one_round(0, needed, index_Nk, parcels), late
    return _in_rounds(one_round, needed, index_Nk, parcels, num_rounds), jnp.float32(0)


_FORMS = {"all_to_all": _routed, "ragged": _routed, "ring": _ring, "dense": _dense}


def _one_round(
    carrier: Carrier,
    axes: tuple[str, ...],
    compute: Callable[..., Array],
    number: Array | int,
    needed: tuple[Array, Array, Weights],
    index_Nk: Array,
    parcels: Parcels,
) -> Array:
    """What the experts add to each row, float32 y_ND, by the parcels of one round."""
    x_ND, weight_Nk, weights = needed
    way = way_of(carrier, parcels, number, x_ND.shape[0])
    x_PD, weight_Pk, index_Pk = deliver(carrier, way, x_ND, weight_Nk, index_Nk)
    y_PD = compute(
        x_PD,
        index_Pk,
        weight_Pk,
        *weights,
        first_expert=_first_expert(axes, weights),
        most_choices=carrier.most_choices(index_Nk.shape[1]),
    )
    return collect(carrier, way, y_PD)


Round = Callable[..., Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_rounds(one_round: Round, needed: Any, index_Nk: Array, parcels: Parcels, num_rounds: Array) -> Array:
    """Σ over rounds of one_round(number, needed, index, parcels).

    The first keeps what its backward pass needs; a further one, which is rare, keeps nothing and runs again there.
    Ranks that exchange rows agree on the number of rounds; others may differ.
    """
    return _in_rounds_forward(one_round, needed, index_Nk, parcels, num_rounds)[0]


def _in_rounds_forward(
    one_round: Round, needed: Any, index_Nk: Array, parcels: Parcels, num_rounds: Array
) -> tuple[Array, tuple[Any, ...]]:
    y_ND, pull = jax.vjp(lambda needed: one_round(0, needed, index_Nk, parcels), needed)

    def further(state: tuple[Array, Array]) -> tuple[Array, Array]:
        number, y_ND = state
        return number + 1, y_ND + one_round(number, needed, index_Nk, parcels)

    _, y_ND = lax.while_loop(lambda state: state[0] < num_rounds, further, (jnp.int32(1), y_ND))
    return y_ND, (pull, needed, index_Nk, parcels, num_rounds)


def _in_rounds_backward(one_round: Round, kept: tuple[Any, ...], dy_ND: Array) -> tuple[Any, None, None, None]:
    pull, needed, index_Nk, parcels, num_rounds = kept

    def further(state: tuple[Array, Any]) -> tuple[Array, Any]:
        number, total = state
        _, pull = jax.vjp(lambda needed: one_round(number, needed, index_Nk, parcels), needed)
        return number + 1, jax.tree.map(jnp.add, total, pull(dy_ND)[0])

    _, total = lax.while_loop(lambda state: state[0] < num_rounds, further, (jnp.int32(1), pull(dy_ND)[0]))
    return total, None, None, None


_in_rounds.defvjp(_in_rounds_forward, _in_rounds_backward)


def make_carrier(
    exchange: Exchange, axes: tuple[str, ...], num_ranks: int, num_local: int, num_rows: int, top_k: int
) -> Carrier:
    """Buffers for `factor` times what an even load sends, and never more than can be sent.

    Args:
        exchange: how rows travel.
        axes: mesh axes that exchange them.
        num_ranks: R.
        num_local: experts of a rank.
        num_rows: N, of a rank.
        top_k: k.
    """
    most_ranks, expected = ranks_of_a_row(
        num_ranks * num_local, num_ranks, top_k, exchange.num_groups, exchange.top_groups
    )
    ragged = exchange.kind == "ragged"
    sources = num_ranks if ragged else 1

    def bound(expected: float, most: int) -> int:
        rows = LEAST_ROWS * math.ceil(exchange.factor * expected * sources / LEAST_ROWS)
        return min(max(rows, LEAST_ROWS), most * sources)

    return Carrier(
        axes,
        num_ranks,
        num_local,
        most_ranks,
        bound(num_rows * expected / num_ranks, num_rows),
        bound(num_rows * top_k / num_ranks, num_rows * min(top_k, num_local)),
        ragged,
    )


def ranks_of_a_row(
    num_experts: int, num_ranks: int, top_k: int, num_groups: int = 1, top_groups: int = 1
) -> tuple[int, float]:
    """Ranks that hold experts of one row: the most, and the expected number where every choice is equally likely.

    Args:
        num_experts: E, in contiguous blocks over the ranks.
        num_ranks: R.
        top_k: experts of a row, all different.
        num_groups: contiguous groups of experts; a row's are all in `top_groups` of them.
        top_groups: groups of a row.
    """
    held, group = num_experts // num_ranks, num_experts // num_groups
    allowed = top_groups * group

    def misses(overlap: int) -> float:
        """That none of the k lies on a rank which holds so many of the allowed experts."""
        return math.comb(allowed - overlap, top_k) / math.comb(allowed, top_k)

    if num_groups % num_ranks == 0:  # a rank holds whole groups, of which j may be chosen
        of_rank = num_groups // num_ranks
        most = top_groups
        missed = sum(
            math.comb(of_rank, j) * math.comb(num_groups - of_rank, top_groups - j) * misses(j * group)
            for j in range(min(of_rank, top_groups) + 1)
        ) / math.comb(num_groups, top_groups)
    elif num_ranks % num_groups == 0:  # a group lies on whole ranks
        most = top_groups * (num_ranks // num_groups)
        missed = 1 - top_groups / num_groups * (1 - misses(held))
    else:  # refused by the config's checks; any bound is safe
        most, missed = num_ranks, 0.0
    return min(most, top_k, num_ranks), num_ranks * (1 - missed)


def _num_ranks(axes: tuple[str, ...]) -> int:
    return math.prod(lax.axis_size(axis) for axis in axes)


def _num_local(weights: Weights) -> int:
    assert weights[1] is not None
    return weights[1].shape[0]


def _first_expert(axes: tuple[str, ...], weights: Weights) -> Array:
    return lax.axis_index(axes) * _num_local(weights)


def _whole(weight: Array | None, axes: tuple[str, ...], dim: int) -> Array | None:
    """A weight gathered along one dimension; its gradient is reduce-scattered back."""
    if weight is None or not axes:
        return weight
    return lax.all_gather(weight, axes, axis=dim, tiled=True)


def _own_part(rows: Rows, axes: tuple[str, ...]) -> Rows:
    """This rank's part of rows that all ranks of the axes hold; the last part is filled up."""
    if not axes:
        return rows
    num_ranks = _num_ranks(axes)
    share = -(-rows[0].shape[0] // num_ranks)
    missing = share * num_ranks - rows[0].shape[0]
    return [
        lax.dynamic_slice_in_dim(
            jnp.pad(a, ((0, missing), (0, 0)), constant_values=fill), lax.axis_index(axes) * share, share
        )
        for a, fill in zip(rows, (0, -1, 0), strict=True)
    ]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _all_parts(y: Array, axes: tuple[str, ...]) -> Array:
    """The parts of all ranks of the axes, on each of them.

    Each rank receives an equal part of the output's cotangent, as in `sum_parts`: its own rows, scaled up, are what
    the transposition of a plain all-gather would sum.
    """
    return lax.all_gather(y, axes, axis=0, tiled=True) if axes else y


def _all_parts_forward(y: Array, axes: tuple[str, ...]) -> tuple[Array, None]:
    return _all_parts(y, axes), None


def _all_parts_backward(axes: tuple[str, ...], _: None, dy: Array) -> tuple[Array]:
    if not axes:
        return (dy,)
    num_ranks = _num_ranks(axes)
    share = dy.shape[0] // num_ranks
    return (lax.dynamic_slice_in_dim(dy, lax.axis_index(axes) * share, share) * num_ranks,)


_all_parts.defvjp(_all_parts_forward, _all_parts_backward)
