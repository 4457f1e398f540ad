"""What every kernel shares: products, activations, blocks of rows."""

import logging
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from maxtrain.model.kernels.float8 import float8_einsum, is_float8, name_of

_log = logging.getLogger(__name__)

Implementation = Literal["auto", "reference"]
"""`reference` is the plain form that the tests hold the fast one against."""


def product(spec: str, a: Array, b: Array, compute_dtype: Any, *, gradient: int | None = None) -> Array:
    """Einsum of operands cast to compute_dtype, accumulated and returned in float32.

    float32 operands are multiplied as float32 on every backend (accelerators would otherwise round them). E4M3 and
    E8M0 mean products of `float8`, where a gradient may have a format of its own: `gradient` says which operand (0 or
    1) is one.
    """
    if is_float8(compute_dtype):
        return float8_einsum(spec, a, b, gradient, compute_dtype)
    precision = lax.Precision.HIGHEST if jnp.dtype(compute_dtype) == jnp.float32 else None
    return jnp.einsum(
        spec,
        a.astype(compute_dtype),
        b.astype(compute_dtype),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def to_dtype(arrays: Any, dtype: Any) -> Any:
    """Every array of a tree in a dtype."""
    return jax.tree.map(lambda a: a.astype(dtype), arrays)


def per_platform(run: Callable[..., Any], cpu: Any, default: Any, *arguments: Any) -> Any:
    """Call run(setting, *arguments) with the setting for the platform that it is compiled for."""
    return lax.platform_dependent(*arguments, cpu=partial(run, cpu), default=partial(run, default))


def by_platform(*arguments: Any, default: Callable[..., Any], **forms: Callable[..., Any]) -> Any:
    """Call the form of the platform that the program is compiled for (`cpu`, `cuda`, `tpu`), or the default."""
    forms = {name: form for name, form in forms.items() if name in compiled_for()}
    return lax.platform_dependent(*arguments, default=default, **forms) if forms else default(*arguments)


@cache
def compiled_for() -> frozenset[str]:
    """The platforms that programs can be compiled for here; to trace the forms of others would only take time."""
    plugins = {"cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "tpu": ("libtpu",)}
    found = {"cpu"} | {platform for platform, packages in plugins.items() if any(map(find_spec, packages))}
    if "TPU_LIBRARY_PATH" in os.environ:
        found.add("tpu")
    backend = jax.default_backend()
    return frozenset(found | {"cuda" if backend == "gpu" else backend})


def accelerated(what: str, compute_dtype: Any, **forms: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The forms of CUDA and TPU, if their kernels take operands of this type; else none, and the log says so once."""
    if jnp.dtype(compute_dtype) in (jnp.float32, jnp.bfloat16):
        return forms
    if compiled_for() & forms.keys():
        _tell_portable(what, name_of(compute_dtype))
    return {}


@cache
def _tell_portable(what: str, dtype: str) -> None:
    _log.info("%s: the portable form, slower and equal: no kernel multiplies %s", what, dtype)


def activate(gate: Array | None, up: Array, activation: str) -> Array:
    """Hidden values of a feed-forward from its pre-activations.

    Args:
        gate: pre-activation of the gate; None for `relu2`.
        up: pre-activation of the linear half (gated) or of the whole (`relu2`).
        activation: `swiglu` (Shazeer 2020), `geglu` (the same paper, tanh approximation) or `relu2` (So 2021).
    """
    if activation == "relu2":
        return jnp.square(jax.nn.relu(up))
    assert gate is not None, f"{activation} needs a gate"
    if activation == "swiglu":
        return jax.nn.silu(gate) * up
    assert activation == "geglu", f"unknown activation {activation}"
    return jax.nn.gelu(gate, approximate=True) * up


def stored_transpose(x: Array) -> Array:
    """The last two dimensions swapped, on CPU by writing it out.

    XLA's CPU products contract the first dimension of their left operand at half the speed (measured on jax 0.10), as
    the gradient of every weight does; a transposed copy of the small operand costs less.
    """
    return lax.platform_dependent(
        x,
        cpu=lambda x: lax.optimization_barrier(jnp.swapaxes(x, -1, -2)),
        default=lambda x: jnp.swapaxes(x, -1, -2),
    )


def transpose_of_product(x: Array) -> Array:
    """The last two dimensions of a product's result swapped, on CPU without changing the product.

    Folding the transpose into the product would turn it into the slow form that `stored_transpose` avoids, which on
    jax 0.10 does not even exist for bfloat16 operands with a float32 sum.
    """
    return lax.platform_dependent(
        x,
        cpu=lambda x: jnp.swapaxes(lax.optimization_barrier(x), -1, -2),
        default=lambda x: jnp.swapaxes(x, -1, -2),
    )


def pad_rows(x: Array, num_rows: int) -> Array:
    """Zero rows appended to x's first dimension until it has num_rows."""
    return jnp.pad(x, [(0, num_rows - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is at least the value."""
    return -(-value // multiple) * multiple
