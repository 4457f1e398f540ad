"""Sizes of activations of one model at several widths or depths, after a few steps: the coordinate check.

In a right parametrization the change of every activation from its value before training keeps its size as the model
grows; in the standard one it grows with it, and the best learning rate falls (Yang 2022, appendix D.1; Dey 2025).
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from maxtrain.config import check_or_raise
from maxtrain.config.batch_plan import plan_batches
from maxtrain.config.load import to_plain
from maxtrain.config.schema import Config
from maxtrain.config.schema.types import MAX_SIZE
from maxtrain.core.errors import UserError
from maxtrain.loader.synthetic import synthetic_rows
from maxtrain.monitor.units import human_bytes
from maxtrain.plan import count_parameters
from maxtrain.train.parts import build_parts

ROWS, LENGTH = 4, 64
"""The batch, the same at every step: random tokens, so that no dataset is needed."""


_STATE_BYTES = 16
"""Of a parameter, its gradient and two moments in float32."""


class Coordinates(NamedTuple):
    """One model's activations, by name: root mean squares over tokens and coordinates."""

    sizes: dict[str, float]
    """After the last step."""
    changes: dict[str, float]
    """Of the difference between the last step and the start, on the same tokens."""


def resize(config: Config, *, width: int | None = None, depth: int | None = None) -> Config:
    """The config at another d_model (heads, d_ff and d_expert in step, head width kept) or number of layers.

    Raises:
        UserError: a size does not come out whole.
    """
    model = config.model
    tree = model.model_dump(mode="json") | {"head_dim": model.dim_per_head, "num_kv_heads": model.kv_heads}
    width = width or model.d_model

    def scaled(size: int, name: str) -> int:
        value, rest = divmod(size * width, model.d_model)
        if rest or not value:
            raise UserError(
                f"--widths {width}: model.{name} = {size} × {width} / {model.d_model} is no whole number; "
                f"use multiples of {model.d_model // math.gcd(size, model.d_model)}"
            )
        if value > MAX_SIZE:
            raise UserError(f"--widths {width}: model.{name} would be {value:,}, over {MAX_SIZE:,}; use smaller widths")
        return value

    for option, size in (("widths", width), ("depths", depth or model.num_layers)):
        if size > MAX_SIZE:
            raise UserError(f"--{option} {size}: must be at most {MAX_SIZE:,}")
    tree |= {name: scaled(tree[name], name) for name in ("num_heads", "num_kv_heads", "d_ff")}
    if model.moe is not None:
        experts = {"d_expert": scaled(model.moe.d_expert, "moe.d_expert")}
        if model.moe.d_shared is not None:
            experts["d_shared"] = scaled(model.moe.d_shared, "moe.d_shared")
        tree["moe"] |= experts
    tree |= {"d_model": width, "num_layers": depth or model.num_layers, "dropout": 0.0}
    return config.model_copy(update={"model": type(model).model_validate(tree)})


def _short_run(config: Config, steps: int) -> Config:
    """The same model and optimizer, a few steps on one device at the peak rate, without data or files."""
    tree: dict[str, Any] = to_plain(config) | {
        "data": {"source": "synthetic", "sequence_length": LENGTH},
        "batch": {"global_batch_tokens": ROWS * LENGTH, "micro_batch": ROWS},
        "mesh": {"devices": 1},
        "schedule": {"name": "constant", "lr": config.schedule.lr},
        "evaluation": {},
        "pipeline": {},
    }
    tree["train"] |= {"total_tokens": steps * ROWS * LENGTH}
    tree["model"] |= _windows(config)
    return Config.model_validate(tree)


def _windows(config: Config) -> dict[str, int | None]:
    """The windows that have an effect in rows of this length and so many layers."""
    window, every = config.model.window, config.model.global_every
    if window is None or window >= LENGTH:
        return {"window": None, "global_every": 0}
    return {"window": window, "global_every": every if every <= config.model.num_layers else 0}


def _check_size(short: Config, what: str) -> None:
    """Refuse a size before any is trained.

    Raises:
        UserError: the config breaks a rule at this size, or the model does not fit in the machine's memory.
    """
    check_or_raise(short, 1, name=what)
    needed = _STATE_BYTES * count_parameters(short.model).total
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if jax.default_backend() == "cpu" and needed > memory:
        raise UserError(
            f"{what}: parameters, gradients and moments need {human_bytes(needed)}, and this machine has "
            f"{human_bytes(memory)}; use smaller sizes"
        )


def measure(config: Config, steps: int) -> Coordinates:
    """Train a few steps and compare the activations with those before.

    Args:
        config: a checked config; its data, batch, mesh and schedule (but for the rate) do not count.
        steps: updates.
    """
    short = _short_run(config, steps)
    check_or_raise(short, 1)
    parts = build_parts(short, plan_batches(short), num_domains=1)
    rows = synthetic_rows(
        np.arange(ROWS), seed=short.run.seed, sequence_length=LENGTH, vocab_size=short.model.vocab_size
    )
    batch = {name: jnp.asarray(value)[None] for name, value in rows.items()}
    batch["domain"] = jnp.zeros((1, ROWS), jnp.int32)
    activations = jax.jit(lambda state: parts.model.activations(state.params, batch["tokens"][0], state.expert_bias))
    state = parts.create_state(short.run.seed)
    before = jax.device_get(activations(state))
    for _ in range(steps):
        state, _ = parts.train_step(state, batch)
    after = jax.device_get(activations(state))
    return Coordinates(
        {name: _rms(after[name]) for name in after}, {name: _rms(after[name] - before[name]) for name in after}
    )


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def slopes(by_size: Mapping[int, Coordinates]) -> dict[str, float]:
    """Exponent p of change ~ size^p by least squares over the logarithms, by activation that all sizes have.

    0 is flat. Over depths the layers are those at the same part of the way.
    """
    sizes = sorted(by_size)
    names = [name for name in by_size[sizes[0]].changes if all(name in by_size[size].changes for size in sizes)]
    x = np.log2(np.asarray(sizes, np.float64))
    return {
        name: float(np.polyfit(x, np.log2([by_size[size].changes[name] for size in sizes]), 1)[0]) for name in names
    }


def drifting(name: str, slope: float, tolerance: float) -> bool:
    """Whether an exponent is not flat.

    The change of the logits may fall like size^-1/2 in the first steps, with the initial logits of maximal update.
    """
    return not -tolerance - (0.5 if name == "logits" else 0) <= slope <= tolerance


def sweep(
    config: Config, steps: int, tolerance: float, *, widths: Sequence[int] = (), depths: Sequence[int] = ()
) -> dict[str, Any]:
    """Measure a config at several widths and at several depths.

    Args:
        config: a checked config.
        steps: updates.
        tolerance: of the exponents.
        widths: values of d_model.
        depths: values of num_layers.

    Returns:
        Where asked for, `widths` and `depths`, each with `sizes`, `changes` (by size and activation), `slopes` and
        `drifting`, the activations that are not flat.

    Raises:
        UserError: a size cannot be built.
    """
    asked = {name: sorted(set(sizes)) for name, sizes in (("width", widths), ("depth", depths)) if sizes}
    for name, sizes in asked.items():
        for size in sizes:
            _check_size(_short_run(resize(config, **{name: size}), steps), f"--{name}s {size}")
    found: dict[str, Any] = {}
    for name, sizes in asked.items():
        measured = {size: measure(resize(config, **{name: size}), steps) for size in sizes}
        if name == "depth":
            measured = {size: _by_part(coordinates, size) for size, coordinates in measured.items()}
        exponents = slopes(measured)
        found[f"{name}s"] = {
            "sizes": {size: coordinates.sizes for size, coordinates in measured.items()},
            "changes": {size: coordinates.changes for size, coordinates in measured.items()},
            "slopes": exponents,
            "drifting": [name for name, slope in exponents.items() if drifting(name, slope, tolerance)],
        }
    return found


def _by_part(coordinates: Coordinates, depth: int) -> Coordinates:
    """Keep the middle and the last layer, named so, that depths can be compared at the same part of the way."""
    names = {"embedding": "embedding", f"layer {(depth - 1) // 2}": "middle layer"}
    names |= {f"layer {depth - 1}": "last layer", "logits": "logits"}
    return Coordinates(*({new: values[old] for old, new in names.items()} for values in coordinates))
