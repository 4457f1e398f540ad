"""Peak arithmetic speed of a device, for MFU."""

import time

import jax
import jax.numpy as jnp

from maxtrain.config.schema import PrecisionConfig

_BF16_TFLOPS = {
    "H100": 989.0,
    "H200": 989.0,
    "H800": 989.0,
    "A100": 312.0,
    "B200": 2250.0,
    "GB200": 2500.0,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
}
"""Dense bf16 peak by a part of the device's name, as the makers state it."""

_SIZE, _REPEATS = 1024, 10


def device_peak_tflops(stated: float | None, precision: PrecisionConfig) -> tuple[float, str]:
    """Peak of one device and where it comes from.

    Args:
        stated: the config's value, which wins.
        precision: on a device that is not known, a square product in this format is measured (bfloat16 for eight bits,
            whose MFU is told against the bfloat16 peak on every device).

    Returns:
        TFLOP/s a device, and `config`, `maker` or `measured`.
    """
    if stated is not None:
        return stated, "config"
    device = jax.local_devices()[0]
    known = [name for name in _BF16_TFLOPS if name.lower() in device.device_kind.lower()]
    if known:
        return _BF16_TFLOPS[max(known, key=len)], "maker"
    measured = "bfloat16" if precision.is_eight_bit else precision.compute
    return _measure(jnp.dtype(measured), len(jax.local_devices())), "measured"


def _measure(dtype: jnp.dtype, sharers: int) -> float:
    """Best of a few products of square matrices, divided by the emulated devices that share the host."""
    a = jnp.ones((_SIZE, _SIZE), dtype)
    product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32))
    product(a).block_until_ready()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        product(a).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * _SIZE**3 / min(times) / 1e12 / sharers
