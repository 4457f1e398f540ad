"""What a training step holds in the memory of one device, by component, and what would save most of it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from maxtrain.config.batch_plan import BatchPlan
from maxtrain.config.schema import Config
from maxtrain.core.errors import UserError
from maxtrain.model.kernels.cross_entropy import logits_at_once
from maxtrain.monitor.units import human_bytes
from maxtrain.train.parts import Parts, build_parts, largest_batch

_NOTES = {
    "parameters": "as they are stored",
    "moments": "the optimizer's state",
    "gradients": "float32, the sum over microbatches; of one alone, stored as its parameters",
    "activations": "kept for the backward pass of a microbatch, or of all in a pipeline",
    "logits": "of one chunk of the loss, at most",
    "batch": "rows and counters",
    "temporary": "what else the compiled step needs",
}


class OutOfMemoryError(UserError):
    """A device's memory does not hold the run."""


@dataclass(frozen=True)
class MemoryTable:
    """Bytes on one device. None is what only a compiled step tells, where there is none."""

    parameters: int
    moments: int
    gradients: int
    activations: int | None
    logits: int
    batch: int | None
    temporary: int | None
    capacity: int | None
    """What the device has; None where it does not say."""

    @property
    def total(self) -> int:
        """Sum of what is known."""
        return sum(getattr(self, name) or 0 for name in _NOTES)

    def lines(self) -> list[str]:
        """The table as text."""
        rows = [(name, getattr(self, name), note) for name, note in _NOTES.items()]
        known = all(size is not None for _, size, _ in rows)
        rows.append(("total", self.total, "" if known else "of what is known"))
        if self.capacity is not None:
            rows.append(("device", self.capacity, "what it has"))
        texts = [(name, "–" if size is None else human_bytes(size), note) for name, size, note in rows]
        return [f"{name:<12}{size:>12}  {note}".rstrip() for name, size, note in texts]


def measure_memory(config: Config, plan: BatchPlan, parts: Parts) -> MemoryTable:
    """The table of the step with the longest rows, compiled from abstract state: no array is made.

    Sizes of parameters, moments and gradients follow from the parameter table and its shardings. The compiler tells
    the rest: activations are what a compiled forward pass hands to the backward pass, and temporary is what the whole
    step's memory leaves after all others.
    """
    table, jitted = known_memory(config, plan, parts), cast(Any, parts.train_step)
    try:
        batch = largest_batch(config, plan, parts.mesh)
        step = jitted.lower(parts.abstract_state, batch).compile().memory_analysis()
        kept = kept_activations(parts, batch, config.pipeline.microbatches)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return table
    if step is None or kept is None:
        return table  # not every backend tells
    inputs = step.argument_size_in_bytes - table.parameters - table.moments
    outputs = max(step.output_size_in_bytes - step.alias_size_in_bytes, 0)
    left = step.temp_size_in_bytes + outputs - table.gradients - table.logits
    # The compiler shares memory between what does not live at the same time, so that parts may be over the whole.
    activations = max(min(kept, left), 0)
    return MemoryTable(
        parameters=table.parameters,
        moments=table.moments,
        gradients=table.gradients,
        activations=activations,
        logits=table.logits,
        batch=max(inputs, 0),
        temporary=max(left - activations, 0),
        capacity=table.capacity,
    )


def memory_report(config: Config, plan: BatchPlan) -> str:
    """The table of a checked config as text, with its largest cure; neither data nor arrays are needed."""
    domains = {name for stage in plan.stages for name in stage.mixture}
    parts = build_parts(config, plan, len(domains))
    table = measure_memory(config, plan, parts)
    shape = ", ".join(f"{axis} {size}" for axis, size in parts.mesh.shape.items() if size > 1) or "one device"
    kind = parts.mesh.devices.flat[0].device_kind
    head = f"memory of one device ({kind}; mesh: {shape}; mesh.zero {config.mesh.zero})"
    return "\n".join([head, *(f"  {line}" for line in table.lines()), largest_cure(config, table, parts.mesh)])


def known_memory(config: Config, plan: BatchPlan, parts: Parts) -> MemoryTable:
    """What the parameter table and the config tell, without compiling anything."""
    model, state = parts.model, parts.abstract_state
    gradients = model.shardings() if config.mesh.zero == 1 else model.update_shardings()
    num_micro = largest_batch(config, plan, parts.mesh)["tokens"].shape[0]
    taken = 1 if model.pipeline is None else config.pipeline.microbatches or num_micro
    one_pass = num_micro == taken  # without a sum, gradients stay in the format of their parameters
    length = max(stage.sequence_length for stage in plan.stages)
    logits = logits_at_once(
        config.batch.micro_batch * length // parts.mesh.shape["context"],
        config.model.vocab_size // parts.mesh.shape["tensor"],
        config.train.kernels,
        parts.mesh.devices.flat[0].platform,
    )
    return MemoryTable(
        parameters=_bytes_on_a_device(state.params),
        moments=_bytes_on_a_device(state.opt_state),
        gradients=_bytes_on_a_device(
            jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype if one_pass else np.float32, sharding=sharding
                ),
                state.params,
                gradients,
            )
        ),
        activations=None,
        logits=4 * logits,
        batch=None,
        temporary=None,
        capacity=_capacity(),
    )


def _bytes_on_a_device(tree: Any) -> int:
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _capacity() -> int | None:
    stats = jax.local_devices()[0].memory_stats()
    return stats.get("bytes_limit") if stats else None


def kept_activations(parts: Parts, batch: Any, in_flight: int | None = None) -> int | None:
    """Bytes that a compiled forward pass keeps for the backward pass, parameters not counted.

    Args:
        parts: the step's parts.
        batch: an abstract batch, of which a pass takes one microbatch.
        in_flight: microbatches that a pipeline takes at once, None for all.
    """

    def forward(params: Any, rows: Any, expert_bias: Any) -> list[Any]:
        _, pull, _ = jax.vjp(lambda p: parts.model.loss(p, rows, expert_bias=expert_bias), params, has_aux=True)
        given = {id(leaf) for leaf in jax.tree.leaves((params, rows, expert_bias))}
        return [leaf for leaf in jax.tree.leaves(pull) if id(leaf) not in given]

    def taken(leaf: Any) -> Any:
        if parts.model.pipeline is not None:
            return jax.ShapeDtypeStruct(
                (in_flight or leaf.shape[0], *leaf.shape[1:]), leaf.dtype, sharding=leaf.sharding
            )
        sharding = jax.sharding.NamedSharding(parts.mesh, jax.sharding.PartitionSpec(*leaf.sharding.spec[1:]))
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=sharding)

    rows = {name: taken(leaf) for name, leaf in batch.items()}
    state = parts.abstract_state
    memory = jax.jit(forward).lower(state.params, rows, state.expert_bias).compile().memory_analysis()
    return None if memory is None else memory.output_size_in_bytes


def largest_cure(config: Config, table: MemoryTable, mesh: Any) -> str:
    """The change of the config that saves most, and about how much."""
    cures: dict[str, float] = {}
    activations, states = table.activations or 0, table.parameters + table.moments + table.gradients
    micro, layers = config.batch.micro_batch, range(config.model.num_layers)
    length = max([stage.sequence_length or 0 for stage in config.data.stages] or [config.data.sequence_length])
    if any(config.remat.policy_of(layer) != "full" for layer in layers):
        width = 2 if config.precision.activations == "bfloat16" else 4
        inputs = len(layers) * micro * length // mesh.shape["context"] * config.model.d_model * width
        cures["remat.policy=full"] = activations - inputs
    if micro > 1:
        fewer = next(size for size in range(micro // 2, 0, -1) if micro % size == 0)
        cures[f"batch.micro_batch={fewer}"] = activations * (1 - fewer / micro)
    if config.precision.activations == "float32":
        cures["precision.activations=bfloat16"] = activations / 2
    if config.train.kernels == "reference":
        cures["train.kernels=auto (the loss in chunks)"] = table.logits
    fsdp, data = mesh.shape["fsdp"], mesh.shape["data"]
    if fsdp > 1 and config.mesh.zero < 3:
        whole = table.parameters + (table.gradients if config.mesh.zero == 1 else 0)
        cures["mesh.zero=3"] = whole * (1 - 1 / fsdp)
    elif data > 1:
        cures[f"mesh.fsdp={fsdp * data} with mesh.data=1"] = states * (1 - 1 / data)
    else:
        cures[f"twice the devices with mesh.fsdp={2 * fsdp}"] = states / 2
    cure, saved = max(cures.items(), key=lambda item: item[1])
    return f"largest cure: {cure}, which saves about {human_bytes(saved)} a device"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left."""
    return "RESOURCE_EXHAUSTED" in str(error)


@contextmanager
def out_of_memory_explained(config: Config, plan: BatchPlan, parts: Parts) -> Iterator[None]:
    """Turn a device's lack of memory into the table and its largest cure.

    Raises:
        OutOfMemoryError: instead of JAX's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        table = measure_memory(config, plan, parts)
        reason = str(error).splitlines()[0]
        text = [f"a device is out of memory ({reason}); it would hold:", *table.lines()]
        raise OutOfMemoryError("\n  ".join([*text, largest_cure(config, table, parts.mesh)])) from error
