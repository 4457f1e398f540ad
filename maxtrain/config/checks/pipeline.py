"""The pipeline: layers that divide over the stages, and microbatches that fill them."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from maxtrain.config.checks.batch import batch_phases
from maxtrain.config.checks.numbers import divisors, multiples_near, say_either
from maxtrain.config.schema import BATCH_AXES, Config, ModelConfig, PipelineConfig
from maxtrain.config.violations import Violation


def check_pipeline(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """What a mesh with stages asks of layers and batches; without stages the section must be untouched."""
    stages = sizes["pipeline"] if sizes else max(config.mesh.pipeline, 1)
    if stages > 1:
        layers = list(_check_layers(config.model, config.pipeline, stages))
        yield from layers or _check_slots(config, stages)
        yield from _check_microbatches(config, stages, sizes)
    elif config.mesh.pipeline == 1:
        for key in ("rounds", "microbatches", "uneven"):
            value, default = getattr(config.pipeline, key), PipelineConfig.model_fields[key].default
            if value != default:
                cure = f"give mesh.pipeline, or remove it (the default is {_SAID.get(default, default)})"
                yield Violation(f"pipeline.{key}", value, "has no effect with mesh.pipeline = 1", cure)


_SAID = {None: "null", False: "false"}


def _num_leading(model: ModelConfig) -> int:
    """Dense layers before the first stage."""
    return model.moe.first_dense if model.moe is not None and model.moe.first_dense < model.num_layers else 0


def _check_layers(model: ModelConfig, pipeline: PipelineConfig, stages: int) -> Iterator[Violation]:
    leading = _num_leading(model)
    slots = stages * pipeline.rounds
    if pipeline.uneven and (model.num_layers - leading) < slots:
        yield Violation(
            "model.num_layers",
            model.num_layers,
            f"leaves some of mesh.pipeline {stages} × pipeline.rounds {pipeline.rounds} slots without any layer",
            "lower mesh.pipeline or pipeline.rounds",
        )
    elif not pipeline.uneven and (model.num_layers - leading) % slots:
        after = f"{model.num_layers} less {leading} dense ones before the first stage" if leading else "in the stages"
        cures = [f"set {say_either(multiples_near(model.num_layers, slots, leading))}"]
        layers, rounds = model.num_layers - leading, pipeline.rounds
        fitting = [size for size in divisors(layers) if size > 1 and layers % (size * rounds) == 0]
        if fitting:
            nearest = sorted(fitting, key=lambda size: abs(size - stages))[:2]
            cures.append(f"mesh.pipeline to {say_either(nearest)}")
        fitting = [turns for turns in divisors(layers) if layers % (stages * turns) == 0]
        if fitting and rounds > 1:
            cures.append(f"pipeline.rounds to {say_either(fitting[-2:])}")
        yield Violation(
            "model.num_layers",
            model.num_layers,
            f"the layers ({after}) must be a multiple of mesh.pipeline {stages} × pipeline.rounds {pipeline.rounds}",
            ", or ".join([*cures, "pipeline.uneven to true"]),
        )


def _check_slots(config: Config, stages: int) -> Iterator[Violation]:
    """All slots are one program: they have the same windows and the same remat policies."""
    model, rounds = config.model, config.pipeline.rounds
    layers = range(_num_leading(model), model.num_layers)
    size = -(-len(layers) // (stages * rounds))

    def differ(of_layer: Callable[[int], Any]) -> bool:
        values = [of_layer(layer) for layer in layers]
        return any(value != values[place % size] for place, value in enumerate(values))

    if differ(model.window_of):
        yield Violation(
            "model.global_every",
            model.global_every,
            f"gives the {stages} × {rounds} slots of {size} layer(s) different windows",
            f"make mesh.pipeline × pipeline.rounds such that {model.global_every} divides the layers of a slot",
        )
    if differ(config.remat.policy_of):
        yield Violation(
            "remat.layers",
            [f"{part.first} to {part.last}" for part in config.remat.layers],
            f"gives the {stages} × {rounds} slots of {size} layer(s) different policies",
            "give the same layers of every slot the same policy, or none their own",
        )


def _check_microbatches(config: Config, stages: int, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    in_flight = config.pipeline.microbatches
    if in_flight is not None and in_flight % stages:
        yield Violation(
            "pipeline.microbatches",
            in_flight,
            f"must be a multiple of mesh.pipeline = {stages}",
            f"set {say_either(multiples_near(in_flight, stages))}",
        )
        return
    if sizes is None:
        return
    for phase in batch_phases(config):
        micro_tokens = config.batch.micro_batch * phase.sequence_length * prod(sizes[axis] for axis in BATCH_AXES)
        num_micro, rest = divmod(phase.batch_tokens, micro_tokens)
        unit, name = (in_flight, "pipeline.microbatches") if in_flight else (stages, "mesh.pipeline")
        if rest == 0 and num_micro % unit:
            near = say_either(multiples_near(phase.batch_tokens, micro_tokens * unit))
            yield Violation(
                phase.batch_key,
                phase.batch_tokens,
                f"is {num_micro} microbatch(es) of {micro_tokens:,} tokens, not a multiple of {name} = {unit}",
                f"set {near}, or batch.micro_batch lower",
            )
