"""What a batch is a function of besides its step, as a record that a resumed run is compared with."""

from typing import Any

from maxtrain.config.batch_plan import BatchPlan, Stage
from maxtrain.config.schema import DataConfig
from maxtrain.loader.permutation import BIJECTION_VERSION
from maxtrain.loader.schedule import SCHEDULE_VERSION
from maxtrain.loader.stages import ResolvedStage, block_tokens_of
from maxtrain.loader.synthetic import SYNTHETIC_VERSION

Fingerprint = dict[str, Any]


def dataset_fingerprint(plan: BatchPlan, data: DataConfig, seed: int, stages: tuple[ResolvedStage, ...]) -> Fingerprint:
    """Fingerprint of a run that reads datasets; plain JSON."""
    return {
        "source": "dataset",
        "order_version": BIJECTION_VERSION,
        "schedule_version": SCHEDULE_VERSION,
        "seed": seed,
        "block_tokens": block_tokens_of(plan, data),
        "cross_document_attention": data.cross_document_attention,
        "stages": [
            {
                "manifest_hash": resolved.dataset.manifest_hash,
                "tokenizer_hash": resolved.dataset.tokenizer_hash,
                **_shape(plan, resolved.stage),
                "mixture": [
                    {
                        "domain": domain.name,
                        "units": domain.units,
                        "filter": domain.order.stream.filter,
                        "packing": domain.config.packing,
                        "packing_hash": domain.order.index_sha256,
                    }
                    for domain in resolved.domains
                ],
            }
            for resolved in stages
        ],
    }


def synthetic_fingerprint(plan: BatchPlan, seed: int, vocab_size: int) -> Fingerprint:
    """Fingerprint of a run on random tokens; plain JSON."""
    return {
        "source": "synthetic",
        "order_version": SYNTHETIC_VERSION,
        "seed": seed,
        "vocab_size": vocab_size,
        "stages": [_shape(plan, stage) for stage in plan.stages],
    }


def compare_fingerprints(saved: Fingerprint, current: Fingerprint, step: int) -> list[str]:
    """What changed of the batches before a step, one line each; empty where the saved run may go on from there.

    Only what was read by then binds. Stages that had not begun may change or go, others may follow, and the stage in
    which the step lies may become longer or shorter, down to the step itself.

    Args:
        saved: fingerprint in a checkpoint.
        current: that of the config now.
        step: batches that the checkpoint had consumed.
    """
    return _differences("", _before(saved, step), _before(current, step))


def _before(fingerprint: Fingerprint, step: int) -> Fingerprint:
    """The part of a fingerprint that the batches before a step are a function of."""
    stages, first = [], 0
    for stage in fingerprint["stages"]:
        if first >= step:
            break
        batches = []
        for batch in stage["batches"]:
            steps = min(batch["steps"], step - first)
            if steps > 0:
                batches.append({**batch, "steps": steps})
            first += batch["steps"]
        tokens = sum(batch["steps"] * batch["rows"] for batch in batches) * stage["sequence_length"]
        stages.append({**stage, "tokens": tokens, "batches": batches})
    return {**fingerprint, "stages": stages}


def _shape(plan: BatchPlan, stage: Stage) -> dict[str, Any]:
    return {
        "sequence_length": stage.sequence_length,
        "tokens": stage.num_rows * stage.sequence_length,
        "batches": [
            {"steps": segment.num_steps, "rows": segment.batch_rows}
            for segment in plan.segments
            if segment.stage.index == stage.index
        ],
    }


def _differences(path: str, saved: Any, current: Any) -> list[str]:
    if isinstance(saved, dict) and isinstance(current, dict):
        keys = [*saved, *(key for key in current if key not in saved)]
        return [
            line
            for key in keys
            for line in _differences(f"{path}.{key}" if path else key, saved.get(key), current.get(key))
        ]
    if isinstance(saved, list) and isinstance(current, list):
        lines = [
            line
            for index, (before, now) in enumerate(zip(saved, current, strict=False))
            for line in _differences(f"{path}[{_label(index, before)}]", before, now)
        ]
        if len(current) != len(saved):
            lines.append(f"{path}: {len(saved)} before, {len(current)} now")
        return lines
    return [] if saved == current else [f"{path}: {saved!r} before, {current!r} now"]


def _label(index: int, entry: Any) -> str:
    return str(entry.get("domain", index)) if isinstance(entry, dict) else str(index)
