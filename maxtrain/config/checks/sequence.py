"""The sequence: lengths that divide over the ranks that share a row."""

from collections.abc import Iterator, Mapping
from math import lcm

from maxtrain.config.checks.numbers import multiples_near, say_either
from maxtrain.config.schema import Config
from maxtrain.config.violations import Violation


def check_sequence(config: Config, sizes: Mapping[str, int] | None) -> Iterator[Violation]:
    """Two chunks of every row for each rank of `context`, and as many tokens for each of `tensor` that shares them."""
    context, tensor = (sizes[axis] if sizes else max(getattr(config.mesh, axis), 1) for axis in ("context", "tensor"))
    parallel = config.mesh.sequence_parallel
    if parallel and tensor == 1 and config.mesh.tensor == 1:
        yield Violation(
            "mesh.sequence_parallel", "true", "has no effect with mesh.tensor = 1", "set mesh.tensor, or remove it"
        )
    chunks = 2 * context if context > 1 else 1
    tokens = context * tensor if parallel else 1
    unit = lcm(chunks, tokens)
    parts = [f"2 × mesh.context {context}"] if context > 1 else []
    if parallel and tensor > 1:
        parts.append(f"mesh.context {context} × mesh.tensor {tensor} of mesh.sequence_parallel")
    lengths: dict[str, int] = {"data.sequence_length": config.data.sequence_length}
    for index, stage in enumerate(config.data.stages):
        if stage.sequence_length is not None:
            lengths[f"data.stages.{index}.sequence_length"] = stage.sequence_length
    for key, length in lengths.items():
        if length % unit:
            near = say_either(multiples_near(length, unit))
            yield Violation(key, length, f"must be a multiple of {' and of '.join(parts)}", f"set {near}")
