"""The attention kernels of CUDA and TPU, as `attention` calls them.

B batch  T queries  S keys, T or more  K kv heads  G query heads of a kv head  H head dim
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jax import Array

from maxtrain.model.kernels import attention_gpu, attention_tpu
from maxtrain.model.kernels.common import accelerated, to_dtype


class Kernels(NamedTuple):
    """Attention of a platform, and its gradients."""

    forward: Callable[..., Any]
    gradients: Callable[..., Any]


ON_GPU = Kernels(attention_gpu.forward, attention_gpu.gradients)
ON_TPU = Kernels(attention_tpu.forward, attention_tpu.gradients)


def forward_forms(compute_dtype: Any, out_dtype: Any, **how: Any) -> dict[str, Callable[..., Any]]:
    """Forms of `(q_BKGTH, k_BKSH, v_BKSH, segments) -> (out_BKGTH, log_z_BKGT)` by platform; none for other operands.

    Args:
        compute_dtype: type of the products' operands.
        out_dtype: of the output; None for q's.
        how: causal, window and scale.
    """

    def run(form: Kernels, q: Array, k: Array, v: Array, segments: Any) -> Any:
        return form.forward(*to_dtype((q, k, v), compute_dtype), segments, out_dtype=out_dtype or q.dtype, **how)

    return _by_name(run, compute_dtype)


def gradient_forms(compute_dtype: Any, out_dtype: Any, **how: Any) -> dict[str, Callable[..., Any]]:
    """Forms of `((q, k, v, out, log_z, dout), segments) -> (dq, dk, dv)` by platform; arguments as above."""

    def run(form: Kernels, arrays: tuple[Array, ...], segments: Any) -> Any:
        dtypes = tuple(out_dtype or a.dtype for a in arrays[:3])
        operands = to_dtype(arrays[:3], compute_dtype)
        return form.gradients(*operands, segments, *arrays[3:], out_dtype=dtypes, **how)

    return _by_name(run, compute_dtype)


def _by_name(run: Callable[..., Any], compute_dtype: Any) -> dict[str, Callable[..., Any]]:
    return accelerated("attention", compute_dtype, cuda=partial(run, ON_GPU), tpu=partial(run, ON_TPU))
