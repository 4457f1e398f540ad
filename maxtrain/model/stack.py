"""Running a stack of layers of one kind: a scan for each run of layers with one remat policy.

A scan goes over the periods of its layers' window pattern; the tail is unrolled.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp

from maxtrain.model.kernels import attention, feed_forward

LayerFunction = Callable[[int | None, Any, Any], tuple[Any, Any]]
"""(window, carry, this layer's slice of the stacked inputs) -> (carry, output to stack)."""

_DOTS = (
    "query",
    "key",
    "value",
    *attention.KEPT_NAMES,
    "attention_output",
    "router_logits",
    *feed_forward.KEPT_NAMES,
    "feed_forward_output",
)
_SAVED_NAMES = {
    "full": (),
    "save_attention": attention.KEPT_NAMES,
    "save_dots": _DOTS,
}


def minimal_period(pattern: Sequence[Any]) -> int:
    """Least p with pattern[i] == pattern[i mod p] for all i; the last repetition may be cut short."""
    return next(
        period
        for period in range(1, len(pattern) + 1)
        if all(item == pattern[index % period] for index, item in enumerate(pattern))
    )


def with_remat(layer: LayerFunction, policy: str, *, looped: bool) -> LayerFunction:
    """Wrap a layer so that its backward pass recomputes what the policy does not keep.

    Args:
        layer: the layer.
        policy: a value of `remat.policy`.
        looped: the layer lies in a loop, where the compiler cannot merge the recomputation with the first pass.
    """
    if policy == "none":
        return layer
    if policy == "offload_dots":
        saved = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=list(_DOTS),
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        saved = jax.checkpoint_policies.save_only_these_names(*_SAVED_NAMES[policy])
    return jax.checkpoint(layer, policy=saved, prevent_cse=not looped, static_argnums=(0,))


def scan_layers(
    layer: LayerFunction,
    carry: Any,
    stacked: Any,
    windows: Sequence[int | None],
    *,
    unroll: int,
    remat: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Run layers in order.

    Args:
        layer: one layer; its window is static.
        carry: what goes from layer to layer.
        stacked: pytree of arrays [L, ...], a slice for each layer.
        windows: attention window of each of the L layers.
        unroll: layers to lay out in one turn of a loop.
        remat: policy of each of the L layers; None for `none` everywhere. Neighbours with one policy share a loop.

    Returns:
        The last carry, and the outputs stacked to [L, ...].
    """
    policies = ["none"] * len(windows) if remat is None else list(remat)
    assert len(policies) == len(windows), "a policy for every layer"
    sizes = [len(list(run)) for _, run in groupby(policies)]
    if len(sizes) == 1:
        return _scan_run(layer, carry, stacked, windows, unroll=unroll, remat=policies[0])
    # A split, as its transpose is one concatenation of the gradients; that of slices adds up padded copies.
    leaves, structure = jax.tree.flatten(stacked)
    pieces = [jax.lax.split(leaf, sizes) for leaf in leaves]
    parts, start = [], 0
    for number, size in enumerate(sizes):
        run = jax.tree.unflatten(structure, [piece[number] for piece in pieces])
        own = windows[start : start + size]
        carry, outputs = _scan_run(layer, carry, run, own, unroll=unroll, remat=policies[start])
        parts.append(outputs)
        start += size
    return carry, jax.tree.map(lambda *runs: jnp.concatenate(runs), *parts)


def _scan_run(
    layer: LayerFunction, carry: Any, stacked: Any, windows: Sequence[int | None], *, unroll: int, remat: str
) -> tuple[Any, Any]:
    """`scan_layers` of layers with one policy."""
    period = minimal_period(windows)
    turns = len(windows) // period
    turns_at_once = max(unroll // period, 1)
    looped = turns > turns_at_once
    in_loop = with_remat(layer, remat, looped=looped)

    def turn(carry: Any, slices: Any) -> tuple[Any, Any]:
        if period == 1:
            return in_loop(windows[0], carry, slices)
        outputs = []
        for position in range(period):
            carry, output = in_loop(windows[position], carry, _take(slices, position))
            outputs.append(output)
        return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)

    whole = turns * period
    head = stacked
    if period > 1:
        head = jax.tree.map(lambda leaf: leaf[:whole].reshape(turns, period, *leaf.shape[1:]), stacked)
    carry, outputs = jax.lax.scan(turn, carry, head, unroll=min(turns_at_once, turns))
    if period > 1:
        outputs = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), outputs)

    after_loop = with_remat(layer, remat, looped=False)
    tail = []
    for index in range(whole, len(windows)):
        carry, output = after_loop(windows[index], carry, _take(stacked, index))
        tail.append(output)
    if tail:
        outputs = jax.tree.map(lambda first, *rest: jnp.concatenate((first, jnp.stack(rest))), outputs, *tail)
    return carry, outputs


def _take(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)
