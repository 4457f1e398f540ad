"""The context axis: the tokens of a row divided over ranks, so that causal attention costs each of them the same.

For c ranks a row is cut into 2c chunks, and rank i holds chunk i and chunk 2c - 1 - i (zigzag; Llama 3, arXiv
2407.21783, section 3.3.2). The tokens lie in this ring order from the feed to the loss.

Full attention is a ring (Liu 2023, arXiv 2310.01889): keys and values go round while each rank attends to those that it
holds. Gathering them instead would hold whole rows of them and mask what a rank's queries do not see; the ring holds
two shards, sends while it computes, and forms only blocks of scores that are seen. Attention in a window exchanges no
more than the window's keys before each chunk.

B batch  T tokens of a rank, two chunks  N query heads  K kv heads  G query heads of a kv head  H head dim
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

AXIS = "context"
_NOTHING = -1e30
"""log Σ exp(scores) of no score at all."""

Part = tuple[Array, Array]
"""Output of attention to some of the keys, float32, and log Σ exp(scores)."""


class Blocks(NamedTuple):
    """Attention of a rank's queries to some of the keys, heads first: q [B, K, G, T, H], k and v [B, K, S, H]."""

    forward: Callable[..., Part]
    """`(q, k, v, (query_ids, key_ids), *, causal) -> (out, log_z)`."""
    backward: Callable[..., tuple[Array, Array, Array]]
    """`(q, k, v, (query_ids, key_ids), out, log_z, dout, *, causal) -> (dq, dk, dv)`, float32."""
    keep: Callable[[Array, Array], Part]
    """Names output and log_z for a remat policy."""


class Attention(NamedTuple):
    """Attention as `parallel` divides it."""

    whole: Callable[..., Array]
    """`(q_BTNH, k_BSKH, v_BSKH, query_ids_BT, key_ids_BS) -> out_BTNH`: queries of the last T of S positions."""
    window: int | None
    """Tokens that a query sees, itself included; None for all."""
    blocks: Blocks | None
    """None for the plain form, which is given whole rows."""


def place_of(index: Any, length: int, num_ranks: int) -> Any:
    """Place in its row of the token at an index of ring order (of an array of NumPy or JAX)."""
    if num_ranks == 1:
        return index
    size = length // (2 * num_ranks)
    rank, offset = index // (2 * size), index % (2 * size)
    return offset + size * (rank + (offset >= size) * (2 * num_ranks - 2 - 2 * rank))


def ring_order(length: int, num_ranks: int) -> np.ndarray:
    """Places in a row of its tokens in ring order, int64.

    Raises:
        ValueError: the length is no multiple of twice the ranks.
    """
    if num_ranks > 1 and length % (2 * num_ranks):
        raise ValueError(f"{length} tokens do not divide into two chunks for each of {num_ranks} ranks of {AXIS}")
    return place_of(np.arange(length), length, num_ranks)


def attend(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, segment_ids_BT: Array, *, attention: Attention) -> Array:
    """Attention of a rank's tokens to those of all ranks, inside a `shard_map` over `context`.

    Args:
        q_BTNH: queries of the rank's two chunks.
        k_BTKH: their keys.
        v_BTKH: their values.
        segment_ids_BT: their documents, 0 for padding.
        attention: what it is made of.
    """
    window, num_tokens = attention.window, q_BTNH.shape[1] * lax.axis_size(AXIS)
    if window is not None and window < num_tokens:
        return _attend_in_window(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, window, attention.whole)
    assert attention.blocks is not None
    batch, tokens, heads, width = q_BTNH.shape
    kv_heads = k_BTKH.shape[2]
    q_BKGTH = q_BTNH.reshape(batch, tokens, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    k_BKTH, v_BKTH = k_BTKH.transpose(0, 2, 1, 3), v_BTKH.transpose(0, 2, 1, 3)
    out_BKGTH = _ring(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, attention.blocks)
    return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(q_BTNH.shape)


def _attend_in_window(
    q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, ids_BT: Array, window: int, whole: Callable[..., Array]
) -> Array:
    """Each chunk with the window's keys before it; both chunks at once, as rows of a batch."""
    first, second = _halves((k_BTKH, v_BTKH, ids_BT), (1, 1, 1))
    keys = [(first, second)]
    missing = window - 1
    while missing > 0:
        size = min(missing, ids_BT.shape[1] // 2)
        first, second = _shift(*jax.tree.map(lambda a, size=size: a[:, a.shape[1] - size :], (first, second)))
        keys.insert(0, (first, second))
        missing -= size
    k, v, key_ids = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *map(_stack, keys))
    q, ids = _stack(_halves((q_BTNH, ids_BT), (1, 1)))
    return jnp.concatenate(jnp.split(whole(q, k, v, ids, key_ids), 2), axis=1)


def _stack(halves: tuple[Any, Any]) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate((a, b)), *halves)


def _halves(arrays: Any, axes: Any) -> tuple[Any, Any]:
    """The first and the second chunk of arrays whose tokens lie along the axes."""
    pairs = jax.tree.map(lambda a, axis: tuple(jnp.split(a, 2, axis)), arrays, axes)
    return tuple(jax.tree.map(lambda _, pair, i=i: pair[i], arrays, pairs) for i in range(2))


def _shift(first: Any, second: Any) -> tuple[Any, Any]:
    """Each chunk's predecessor: its own place takes zeros (padding) where there is none."""
    ranks, rank = lax.axis_size(AXIS), lax.axis_index(AXIS)
    up = [(i, i + 1) for i in range(ranks - 1)]
    down = [(j, i) for i, j in up]
    # Second chunks run downward over the ranks; the one in the row's middle follows the last rank's first chunk.
    from_above = lax.ppermute(second, AXIS, down)
    return lax.ppermute(first, AXIS, up), jax.tree.map(
        lambda own, other: jnp.where(rank == ranks - 1, own, other), first, from_above
    )


def _rotate(packed: Array) -> Array:
    """What the rank before holds.

    A turn sends one array: of several in flight at once, emulated CPU devices were seen to take one for another, and
    elsewhere each costs a message's latency.
    """
    ranks = lax.axis_size(AXIS)
    return lax.ppermute(packed, AXIS, [(i, (i + 1) % ranks) for i in range(ranks)])


def _pack(a: Array, b: Array) -> Array:
    return jnp.concatenate((a, b), axis=-1)


def _unpack(packed: Array) -> tuple[Array, Array]:
    a, b = jnp.split(packed, 2, axis=-1)
    return a, b


def _join(one: Part, other: Part) -> Part:
    """Attention to the keys of both."""
    log_z = jnp.logaddexp(one[1], other[1])
    weight, other_weight = jnp.exp(one[1] - log_z)[..., None], jnp.exp(other[1] - log_z)[..., None]
    return one[0] * weight + other[0] * other_weight, log_z


class _Pairs(NamedTuple):
    """The two blocks that a rank's queries see whole of what another rank holds.

    An earlier rank's first chunk is seen by both of the rank's chunks, its second by none; a later rank's chunks are
    both seen by the rank's second chunk. So the second chunk attends to the first held, and either the first chunk to
    the same or the second chunk to the second held. Blocks are chosen by value, not by a branch, which a vmap over
    stages would turn into both.
    """

    earlier: Array
    """Whether the keys are of a rank before, bool []."""

    def of_queries(self, x: Array, axis: int) -> Array:
        first, second = jnp.split(x, 2, axis)
        return jnp.concatenate((second, jnp.where(self.earlier, first, second)))

    def of_keys(self, x: Array, axis: int) -> Array:
        first, second = jnp.split(x, 2, axis)
        return jnp.concatenate((first, jnp.where(self.earlier, first, second)))

    def inputs(
        self, q: Array, ids: Array, held: Array, key_ids: Array
    ) -> tuple[Array, Array, Array, tuple[Array, Array]]:
        k, v = _unpack(held)
        segments = self.of_queries(ids, 1), self.of_keys(key_ids, 1)
        return self.of_queries(q, 3), self.of_keys(k, 2), self.of_keys(v, 2), segments

    def query_gradient(self, pair: Array) -> Array:
        """Gradients of the two blocks' queries, laid back to the two chunks."""
        one, other = jnp.split(pair, 2)
        zero = jnp.zeros_like(other)
        return jnp.concatenate(
            (jnp.where(self.earlier, other, zero), one + jnp.where(self.earlier, zero, other)), axis=3
        )

    def key_gradient(self, pair: Array) -> Array:
        """Gradients of the two blocks' keys, or values."""
        one, other = jnp.split(pair, 2)
        zero = jnp.zeros_like(other)
        return jnp.concatenate(
            (one + jnp.where(self.earlier, other, zero), jnp.where(self.earlier, zero, other)), axis=2
        )


def _go_round(turn: Callable[..., tuple[Any, Any]], sums: Any, held: Array, travelling: Any = None) -> tuple[Any, Any]:
    """Call `turn(sums, held, travelling, step) -> (sums, travelling)` with what each other rank holds.

    Args:
        turn: its step is how many ranks before this one, cyclically, what is held comes from.
        sums: what the turns add up here.
        held: packed keys and values of the rank before; the next ones are under way while a turn computes.
        travelling: packed gradients that follow their keys a turn behind, for each turn to add to; or None.

    Returns:
        The sums, and what travelled, at home again.
    """
    steps = lax.axis_size(AXIS) - 1

    def one(carry: tuple[Any, Array, Any], step: Array) -> tuple[tuple[Any, Array, Any], None]:
        sums, held, travelling = carry
        if travelling is None:
            after = _rotate(held)
        else:
            after, travelling = _unpack(_rotate(_pack(held.astype(travelling.dtype), travelling)))
        sums, travelling = turn(sums, held, travelling, step)
        return (sums, after.astype(held.dtype), travelling), None

    if steps > 1:
        (sums, held, travelling), _ = lax.scan(one, (sums, held, travelling), jnp.arange(1, steps))
    if travelling is None:
        return turn(sums, held, None, steps)
    sums, travelling = turn(sums, held, _rotate(travelling), steps)
    return sums, _rotate(travelling)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _ring(q_BKGTH: Array, k_BKTH: Array, v_BKTH: Array, ids_BT: Array, blocks: Blocks) -> Array:
    return _ring_forward(q_BKGTH, k_BKTH, v_BKTH, ids_BT, blocks)[0]


def _ring_forward(
    q_BKGTH: Array, k_BKTH: Array, v_BKTH: Array, ids_BT: Array, blocks: Blocks
) -> tuple[Array, tuple[Array, ...]]:
    rank, all_ids = lax.axis_index(AXIS), lax.all_gather(ids_BT, AXIS)
    held = _rotate(_pack(k_BKTH, v_BKTH))
    # The rank's own chunks lie in order: causal among themselves.
    out, log_z = blocks.forward(q_BKGTH, k_BKTH, v_BKTH, (ids_BT, ids_BT), causal=True)

    def turn(sums: tuple[Part, Part], held: Array, _: None, step: Any) -> tuple[tuple[Part, Part], None]:
        pairs = _Pairs(step <= rank)
        inputs = pairs.inputs(q_BKGTH, ids_BT, held, _ids_of(all_ids, step))
        out, log_z = blocks.forward(*inputs, causal=False)
        (one, other), (one_z, other_z) = jnp.split(out, 2), jnp.split(log_z, 2)
        first, second = sums
        second = _join(second, (one, one_z))
        return (
            _join(first, (other, jnp.where(pairs.earlier, other_z, _NOTHING))),
            _join(second, (other, jnp.where(pairs.earlier, _NOTHING, other_z))),
        ), None

    (first, second), _ = _go_round(turn, _halves((out, log_z), (3, 3)), held)
    out, log_z = (jnp.concatenate(parts, axis=3) for parts in zip(first, second, strict=True))
    out, log_z = blocks.keep(out.astype(q_BKGTH.dtype), log_z)
    return out, (q_BKGTH, k_BKTH, v_BKTH, ids_BT, out, log_z)


def _ring_backward(blocks: Blocks, kept: tuple[Array, ...], dout: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, ids, out, log_z = kept
    rank, all_ids = lax.axis_index(AXIS), lax.all_gather(ids, AXIS)
    held = _rotate(_pack(k, v))
    dq, dk, dv = blocks.backward(q, k, v, (ids, ids), out, log_z, dout, causal=True)

    def turn(dq: Array, held: Array, travelling: Array, step: Any) -> tuple[Array, Array]:
        pairs = _Pairs(step <= rank)
        of_results = (pairs.of_queries(a, 3) for a in (out, log_z, dout))
        inputs = pairs.inputs(q, ids, held, _ids_of(all_ids, step))
        more_dq, more_dk, more_dv = blocks.backward(*inputs, *of_results, causal=False)
        more = _pack(pairs.key_gradient(more_dk), pairs.key_gradient(more_dv))
        return dq + pairs.query_gradient(more_dq), travelling + more

    dq, home = _go_round(turn, dq, held, jnp.zeros(held.shape, dk.dtype))
    home_dk, home_dv = _unpack(home)
    return dq.astype(q.dtype), (dk + home_dk).astype(k.dtype), (dv + home_dv).astype(v.dtype), None


def _ids_of(all_ids: Array, step: Any) -> Array:
    """Documents of the tokens that the rank `step` before this one holds."""
    ranks = lax.axis_size(AXIS)
    return lax.dynamic_index_in_dim(all_ids, (lax.axis_index(AXIS) - step) % ranks, keepdims=False)


_ring.defvjp(_ring_forward, _ring_backward)
