"""What inference reads of a checkpoint."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from maxtrain.model import Model


def abstract_weights(model: Model) -> dict[str, Any]:
    """The part of a saved state that inference needs, for `maxtrain.checkpoint.restore_subtree`.

    Returns:
        `params` and `expert_bias` as shapes, dtypes and shardings.
    """
    bias = jax.eval_shape(model.expert_bias)
    where: Sharding = SingleDeviceSharding(jax.local_devices()[0])
    if model.mesh is not None:
        where = NamedSharding(model.mesh, PartitionSpec())
    return {
        "params": model.abstract_params(),
        "expert_bias": jax.ShapeDtypeStruct(bias.shape, bias.dtype, sharding=where),
    }
