"""Layers of one kind as functions of (graph definition, stacked parameters, activations): a decoder, or a stage of it.

L layers of the stack  B batch  T tokens  D model
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from maxtrain.model.attention import LayerCache
from maxtrain.model.block import Block, Layer, LayerStats, Shared
from maxtrain.model.parameters import Params
from maxtrain.model.stack import scan_layers


def run_stack(
    graph: nnx.GraphDef[Block],
    params: Params,
    layers: Layer,
    x_BTD: jax.Array,
    shared: Shared,
    *,
    windows: Sequence[int | None],
    unroll: int,
    remat: Sequence[str],
    has_empty: bool = False,
) -> tuple[jax.Array, LayerStats]:
    """Run the layers in order.

    Args:
        graph: one layer of the kind.
        params: its parameters, every leaf [L, ...].
        layers: what tells the layers apart, every leaf [L, ...].
        x_BTD: the residual stream.
        shared: the batch.
        windows: attention window of each layer; static.
        unroll: layers to lay out in one turn of the loop.
        remat: policy of each layer; static.
        has_empty: some places may hold no layer: their number is under 0, and they change nothing.

    Returns:
        The residual stream after the last layer, and the layers' statistics [L, ...].
    """

    def step(window: int | None, x_BTD: jax.Array, slices: tuple[Params, Layer]) -> tuple[jax.Array, LayerStats]:
        layer_params, layer = slices
        block = nnx.merge(graph, layer_params)
        if not has_empty:
            return block(x_BTD, shared, layer, window)
        exists = layer.number >= 0
        y_BTD, stats = block(x_BTD, shared.only_if(exists), layer, window)
        return jnp.where(exists, y_BTD, x_BTD), stats

    return scan_layers(step, x_BTD, (params, layers), windows, unroll=unroll, remat=remat)


def decode_stack(
    graph: nnx.GraphDef[Block],
    params: Params,
    layers: Layer,
    x_BTD: jax.Array,
    positions_BT: jax.Array,
    shared: Shared,
    cache: LayerCache,
    *,
    windows: Sequence[int | None],
    unroll: int,
) -> tuple[jax.Array, LayerCache]:
    """The same with attention to a cache, every leaf [L, ...]; returns the new one."""

    def step(
        window: int | None, x_BTD: jax.Array, slices: tuple[Params, Layer, LayerCache]
    ) -> tuple[jax.Array, LayerCache]:
        layer_params, layer, layer_cache = slices
        block = nnx.merge(graph, layer_params)
        return block.decode(x_BTD, positions_BT, shared, layer, window, layer_cache)

    return scan_layers(step, x_BTD, (params, layers, cache), windows, unroll=unroll)
