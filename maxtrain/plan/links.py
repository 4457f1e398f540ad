"""What mesh axes send over slow links, by arithmetic.

n tokens of one device in a step  D model  K · H width of the keys, and of the values  L layers
L_moe layers with experts  k experts of a token  a bytes of an activation  s ranks of the axis  c nodes that it spans
"""

import math
from collections.abc import Mapping

from maxtrain.config.schema import BATCH_AXES, Config

LINK_FORMULAS: dict[str, str] = {
    "expert": "4 · L_moe · n · k · D · a · (c - 1) / c",
    "context": "6 · L · n · K · H · a · s · (c - 1) / c",
    "tensor": "8 · L · n · D · a · (c - 1) / c",
}
"""Bytes that a device sends to other nodes in a step, without recomputation.

expert: rows to their experts and back, forward and backward. context: keys and values of every other rank, once forward
and, with their gradients, twice backward. tensor: an all-reduce of the residual stream after attention and
feed-forward, forward and backward, each of which moves twice the data.
"""


def slow_link_bytes(config: Config, sizes: Mapping[str, int], nodes_spanned: Mapping[str, int]) -> dict[str, int]:
    """Bytes that a device sends to other nodes in a step, for the axes that should not cross nodes and do.

    Args:
        config: a checked config; its first batch size counts.
        sizes: size of every mesh axis.
        nodes_spanned: nodes that the ranks of one group of each axis stand on.
    """
    model = config.model
    ranks = math.prod(sizes[axis] for axis in (*BATCH_AXES, "context"))
    tokens = config.batch.global_batch_tokens / ranks
    width = 2 if config.precision.activations == "bfloat16" else 4
    num_moe = sum(model.is_moe(layer) for layer in range(model.num_layers))
    top_k = model.moe.top_k if model.moe is not None else 0
    per_node = {
        "expert": 4 * num_moe * tokens * top_k * model.d_model * width,
        "context": 6 * model.num_layers * tokens * model.kv_heads * model.dim_per_head * width * sizes["context"],
        "tensor": 8 * model.num_layers * tokens * model.d_model * width,
    }
    found = {axis: int(total * (1 - 1 / nodes_spanned[axis])) for axis, total in per_node.items()}
    return {axis: count for axis, count in found.items() if count}
