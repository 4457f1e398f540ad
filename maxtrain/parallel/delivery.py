"""Rows carried to the ranks that hold their experts, and results carried back: each way is the other's transpose.

A row travels once to a rank, as a parcel, however many of its experts live there. Buffers are bounded, so parcels
travel in rounds: usually all of them in the first. What a row receives is summed in the order of its ranks, so that
neither way has an addition whose order is open.

N rows  k choices of a row  M = N · k  R ranks  m most ranks of a row  S slots of what is sent  P places received
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


@dataclass(frozen=True)
class Carrier:
    """How rows travel; static."""

    axes: tuple[str, ...]
    """Mesh axes whose ranks exchange rows, slowest first."""
    num_ranks: int
    experts_per_rank: int
    most_ranks: int
    """Most ranks that a row has experts on."""
    rows: int
    """Most rows of a round: from one rank to another, or (ragged) to a rank from all."""
    choices: int
    """Choices of experts among them after which a new round begins."""
    ragged: bool
    """Only rows in use travel (`ragged_all_to_all`), instead of whole buffers."""

    @property
    def num_places(self) -> int:
        """Rows of the buffer of what is received."""
        return self.rows if self.ragged else self.num_ranks * self.rows

    def num_slots(self, num_rows: int) -> int:
        """Rows of the buffer of what is sent."""
        return num_rows * self.most_ranks if self.ragged else self.num_ranks * self.rows

    def is_ample(self, num_rows: int, top_k: int) -> bool:
        """Whether one round holds whatever so many rows of each rank can send."""
        sources = self.num_ranks if self.ragged else 1
        most = num_rows * sources
        return self.rows >= most and self.choices >= most * min(top_k, self.experts_per_rank)

    def most_choices(self, top_k: int) -> int:
        """Most choices among the rows received: the last parcel of a round may exceed `choices`."""
        of_one = self.choices + min(top_k, self.experts_per_rank) - 1
        return of_one if self.ragged else self.num_ranks * of_one


class Parcels(NamedTuple):
    """What a rank sends in all, in the order of its destinations, then of its rows."""

    choice_M: Array
    """int32: the choice (row · k + j) that stands for the parcel: its row's first at that rank."""
    rank_M: Array
    """int32 destination; R for a choice that is no parcel, all of which come last."""
    size_M: Array
    """int32: how many of the row's choices live there."""
    round_M: Array
    """int32, ascending among the parcels of a rank."""
    start_R: Array
    """int32: first place of each rank, of none, and M: (R + 2,)."""


class Way(NamedTuple):
    """Where the parcels of one round lie."""

    row_S: Array
    """int32: row in each slot; N for none."""
    slot_Nm: Array
    """int32: slots of each row, ascending; S for none."""
    sizes_RR: Array | None
    """int32: rows from each rank to each; None where whole buffers travel."""


def pack(carrier: Carrier, index_Nk: Array) -> tuple[Parcels, Array]:
    """Parcels of the rows, and the number of rounds that all ranks together need (at least 1).

    With r parcels and c choices before it on its way, a parcel travels in round r // rows + c // choices: within a
    round neither quotient changes, so it has at most `rows` parcels, and choices only as many as `most_choices`.

    Args:
        carrier: how rows travel.
        index_Nk: int32 experts of each row, -1 for none.
    """
    num_ranks = carrier.num_ranks
    rank_Nk = jnp.where(index_Nk >= 0, index_Nk // carrier.experts_per_rank, num_ranks)
    same_Nkk = rank_Nk[:, :, None] == rank_Nk[:, None, :]
    earlier_kk = np.tri(rank_Nk.shape[1], k=-1, dtype=bool)
    key_M = jnp.where((same_Nkk & earlier_kk).any(-1), num_ranks, rank_Nk).reshape(-1).astype(jnp.int32)
    rank_M, choice_M = lax.sort_key_val(key_M, lax.iota(jnp.int32, key_M.size), is_stable=True)
    size_M = jnp.where(rank_M < num_ranks, same_Nkk.sum(-1, dtype=jnp.int32).reshape(-1)[choice_M], 0)

    count_R = jnp.zeros(num_ranks + 1, jnp.int32).at[key_M].add(1)
    start_R = jnp.append(0, jnp.cumsum(count_R))

    quotients = []
    for amount_M, most in ((jnp.ones_like(rank_M), carrier.rows), (size_M, carrier.choices)):
        before_M, total_R = _running(amount_M, rank_M, start_R)
        if carrier.ragged:
            total_RR = lax.all_gather(total_R, carrier.axes)
            lower_R1 = jnp.arange(num_ranks)[:, None] < lax.axis_index(carrier.axes)
            before_M += jnp.append(jnp.where(lower_R1, total_RR, 0).sum(0), 0)[rank_M]
        quotients.append(before_M // most)
    round_M = jnp.where(rank_M < num_ranks, quotients[0] + quotients[1], 0)
    return Parcels(choice_M, rank_M, size_M, round_M, start_R), 1 + lax.pmax(round_M.max(), carrier.axes)


def _running(amount_M: Array, rank_M: Array, start_R: Array) -> tuple[Array, Array]:
    """Before each parcel the amount that goes to its rank, and to each rank in all: int32 [M], [R]."""
    sum_M = jnp.cumsum(amount_M)
    at_start_R = jnp.append(0, sum_M)[start_R]
    return sum_M - amount_M - at_start_R[rank_M], jnp.diff(at_start_R)[:-1]


def way_of(carrier: Carrier, parcels: Parcels, number: Array | int, num_rows: int) -> Way:
    """Slots of the parcels of one round.

    Args:
        carrier: how rows travel.
        parcels: of all rounds.
        number: of the round.
        num_rows: N.
    """
    num_slots, num_ranks = carrier.num_slots(num_rows), carrier.num_ranks
    top_k = parcels.choice_M.size // num_rows
    in_round_M = (parcels.rank_M < num_ranks) & (parcels.round_M == number)
    place_M, size_R = _running(in_round_M.astype(jnp.int32), parcels.rank_M, parcels.start_R)
    sizes_RR = lax.all_gather(size_R, carrier.axes) if carrier.ragged else None
    start_R = _starts(size_R) if carrier.ragged else jnp.arange(num_ranks) * carrier.rows
    slot_M = jnp.where(in_round_M, jnp.append(start_R, 0)[parcels.rank_M] + place_M, num_slots).astype(jnp.int32)
    row_S = jnp.full(num_slots, num_rows, jnp.int32)
    row_S = row_S.at[slot_M].set(parcels.choice_M // top_k, mode="drop", unique_indices=True)
    slot_Nk = jnp.zeros_like(slot_M).at[parcels.choice_M].set(slot_M, unique_indices=True).reshape(num_rows, top_k)
    return Way(row_S, jnp.sort(slot_Nk, axis=1)[:, : carrier.most_ranks], sizes_RR)


def _starts(size_R: Array) -> Array:
    return jnp.cumsum(size_R, axis=0) - size_R


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def deliver(carrier: Carrier, way: Way, x_ND: Array, weight_Nk: Array, index_Nk: Array) -> tuple[Array, Array, Array]:
    """Rows at their destinations, with their choices.

    Args:
        carrier: how rows travel.
        way: of this round.
        x_ND: rows.
        weight_Nk: float32 weights of their experts' outputs.
        index_Nk: int32 experts, -1 for none.

    Returns:
        x_PD, which means nothing where no row was received; weight_Pk and index_Pk, there 0 and -1.
    """
    bits_Nk = lax.bitcast_convert_type(weight_Nk, jnp.int32)
    choices_N2k = jnp.concatenate([index_Nk, bits_Nk], axis=1)
    index_Pk, bits_Pk = jnp.split(_send(carrier, way, choices_N2k, fill=-1), 2, axis=1)
    weight_Pk = jnp.where(index_Pk >= 0, lax.bitcast_convert_type(bits_Pk, jnp.float32), 0.0)
    return _send(carrier, way, x_ND), weight_Pk, index_Pk


def _deliver_forward(
    carrier: Carrier, way: Way, x_ND: Array, weight_Nk: Array, index_Nk: Array
) -> tuple[tuple[Array, Array, Array], Way]:
    return deliver(carrier, way, x_ND, weight_Nk, index_Nk), way


def _deliver_backward(
    carrier: Carrier, way: Way, cotangents: tuple[Array, Array, Array]
) -> tuple[None, Array, Array, None]:
    dx_PD, dweight_Pk, _ = cotangents
    return None, _bring_back(carrier, way, dx_PD).astype(dx_PD.dtype), _bring_back(carrier, way, dweight_Pk), None


deliver.defvjp(_deliver_forward, _deliver_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def collect(carrier: Carrier, way: Way, y_PD: Array) -> Array:
    """Results at home: each row's, summed over its ranks in float32, y_ND; 0 for a row that did not travel."""
    return _bring_back(carrier, way, y_PD)


def _collect_forward(carrier: Carrier, way: Way, y_PD: Array) -> tuple[Array, tuple[Way, Array]]:
    return collect(carrier, way, y_PD), (way, y_PD[:0])


def _collect_backward(carrier: Carrier, kept: tuple[Way, Array], dy_ND: Array) -> tuple[None, Array]:
    way, like_y = kept
    return None, _send(carrier, way, dy_ND.astype(like_y.dtype))


collect.defvjp(_collect_forward, _collect_backward)


def unwritten(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """A buffer whose rows must not be read before they are written."""
    return lax.empty(shape, dtype)


def _send(carrier: Carrier, way: Way, x_ND: Array, fill: int | None = None) -> Array:
    """Rows to their destinations; where no row is received: `fill`, or (None) anything."""
    sent_SD = jnp.take(x_ND, way.row_S, axis=0, mode="fill", fill_value=fill or 0)
    if way.sizes_RR is None:
        return lax.all_to_all(sent_SD, carrier.axes, 0, 0, tiled=True)
    shape = carrier.num_places, x_ND.shape[1]
    buffer_PD = unwritten(shape, x_ND.dtype) if fill is None else jnp.full(shape, fill, x_ND.dtype)
    return _ragged(carrier, sent_SD, buffer_PD, way.sizes_RR)


def _bring_back(carrier: Carrier, way: Way, y_PD: Array) -> Array:
    """The transpose of `_send`, summed in float32."""
    if way.sizes_RR is None:
        back_SD = lax.all_to_all(y_PD, carrier.axes, 0, 0, tiled=True)
    else:
        buffer_SD = unwritten((way.row_S.size, y_PD.shape[1]), y_PD.dtype)
        back_SD = _ragged(carrier, y_PD, buffer_SD, way.sizes_RR.T)
    total_ND = None
    for slot_N in way.slot_Nm.T:
        part_ND = jnp.take(back_SD, slot_N, axis=0, mode="clip").astype(jnp.float32)
        part_ND = jnp.where((slot_N < way.row_S.size)[:, None], part_ND, 0.0)
        total_ND = part_ND if total_ND is None else total_ND + part_ND
    assert total_ND is not None, "a row has at least one choice"
    return total_ND


def _ragged(carrier: Carrier, rows: Array, buffer: Array, sizes_RR: Array) -> Array:
    """Rows that lie in the order of their destinations, into the buffer in the order of their sources.

    Args:
        carrier: how rows travel.
        rows: what this rank sends, [·, D].
        buffer: what it receives into, [·, D].
        sizes_RR: rows from each rank to each.
    """
    me = lax.axis_index(carrier.axes)
    starts_RR = _starts(sizes_RR)
    return lax.ragged_all_to_all(
        rows,
        buffer,
        input_offsets=_starts(sizes_RR[me]),
        send_sizes=sizes_RR[me],
        output_offsets=starts_RR[me],
        recv_sizes=sizes_RR[:, me],
        axis_name=carrier.axes,
    )
