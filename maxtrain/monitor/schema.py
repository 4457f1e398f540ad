"""The pinned schema of a line of metrics.jsonl: one table, from which writing, checking and reading follow.

A line describes the step that made the counter `step` reach its value: the first line of a run has step 1, and
`tokens_seen` counts that step's tokens. Lists by layer hold the mixture-of-experts layers only, in order; they are
empty for a dense model.

Non-finite floats have no form in strict JSON, so they are written as the strings "nan", "inf" and "-inf" and read
back as floats. `null` always means "not known" or "nothing to measure". Finite floats are written by `repr`, the
shortest text that reads back as the same bits.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from maxtrain.monitor.jsonl import MOST

Kind = Literal[
    "int", "float", "bool", "text", "int list", "float list", "int rows", "int by name", "float by name"
]  # fmt: skip

GRADIENT_GROUPS = ("embedding", "attention", "feed_forward", "experts", "router", "norms", "output")
"""Names of `grad_norm_by_group`; a group that the model does not have is absent."""


@dataclass(frozen=True)
class Field:
    """One field of a line.

    Attributes:
        name: Key in the JSON object.
        kind: Form of the value; `int rows` is a list of equally long lists.
        unit: Unit, for people and axes; empty for a plain number.
        deterministic: Bit-equal when the same step is computed again after a resume on the same mesh.
        description: One sentence.
        nullable: The value, or an item of it, may be null.
        names: The only names that a value by name may use; empty for any.
    """

    name: str
    kind: Kind
    unit: str
    deterministic: bool
    description: str
    nullable: bool = False
    names: tuple[str, ...] = ()


_D = True  # deterministic
_M = False  # measured: differs between attempts

FIELDS: tuple[Field, ...] = (
    Field("attempt", "int", "", _M, "Number of the start of the run that wrote the line, from 1."),
    Field("time", "text", "UTC", _M, "When the line was written, ISO 8601."),
    Field("step", "int", "steps", _D, "Batches consumed, this one included."),
    Field("updates", "int", "updates", _D, "Updates applied, this one included; skipped steps do not count."),
    Field("tokens_seen", "int", "tokens", _D, "Tokens consumed, padding included."),
    Field("batch_digest", "int", "", _D, "Digest of the batch's tokens in order; the same on every mesh."),
    Field("target_tokens", "int", "tokens", _D, "Target tokens of the batch: what the loss is divided by."),
    Field("loss", "float", "nats/token", _D, "What is minimised: cross-entropy and every auxiliary loss."),
    Field("cross_entropy", "float", "nats/token", _D, "Mean negative log-likelihood of the target tokens."),
    Field("balance_loss", "float", "nats/token", _D, "Weighted auxiliary loss that balances the experts."),
    Field("router_z_loss", "float", "nats/token", _D, "Weighted z-loss on the router's logits."),
    Field("z_loss", "float", "nats/token", _D, "Weighted z-loss on the output logits."),
    Field(
        "loss_by_domain", "float by name", "nats/token", _D, "Cross-entropy by domain; null if it has no target.", True
    ),
    Field("tokens_by_domain", "int by name", "tokens", _D, "Target tokens of the batch by domain."),
    Field("epochs", "float by name", "epochs", _D, "How often each domain was read so far."),
    Field("padding_fraction", "float", "", _D, "Share of the batch's positions that hold no token."),
    Field("grad_norm", "float", "", _D, "Global gradient norm before clipping."),
    Field("grad_norm_by_group", "float by name", "", _D, "Gradient norm by kind of parameter.", names=GRADIENT_GROUPS),
    Field("update_norm", "float", "", _D, "Norm of the change that the step made to the parameters."),
    Field("param_norm", "float", "", _D, "Norm of the parameters after the step."),
    Field("lr", "float", "", _D, "Learning rate of the step."),
    Field(
        "max_attention_logit",
        "float",
        "",
        _D,
        "Greatest attention logit of all heads, as QK-clip found it before the update; null without optimizer.qk_clip.",
        True,
    ),
    Field("skipped", "bool", "", _D, "The step changed nothing: loss or gradient not finite, or over the bound."),
    Field("skipped_target_tokens", "int", "tokens", _D, "Target tokens of the batch if the step was skipped, else 0."),
    Field("skips_in_a_row", "int", "steps", _D, "Skipped steps that end with this one."),
    Field("expert_load", "int rows", "tokens", _D, "Tokens sent to each expert, layer by layer.", True),
    Field("expert_load_max_over_mean", "float list", "", _D, "Greatest load divided by the mean load, by layer."),
    Field("expert_entropy", "float list", "", _D, "Entropy of the load, 1 for even, by layer."),
    Field("router_entropy", "float list", "nats", _D, "Mean entropy of the router's scores of a token, by layer."),
    Field("dropped_tokens", "int list", "tokens", _D, "Assignments to experts that exceeded capacity, by layer."),
    Field("flops_per_token", "float", "FLOP/token", _D, "Model FLOPs of forward and backward; no recomputation."),
    Field("num_devices", "int", "devices", _M, "Devices in the mesh."),
    Field("tokens_per_second", "float", "tokens/s", _M, "Tokens of the step, padding included, by step_seconds."),
    Field("tokens_per_second_per_device", "float", "tokens/s", _M, "The same for one device."),
    Field("mfu", "float", "", _M, "Model FLOP/s over the devices' peak; null if the peak is not known.", True),
    Field("step_seconds", "float", "s", _M, "Wall time of the step; saves and evaluations are left out."),
    Field("data_wait_seconds", "float", "s", _M, "Waiting for the batch."),
    Field("device_seconds", "float", "s", _M, "Waiting for the devices."),
    Field("host_seconds", "float", "s", _M, "The rest of the step: dispatch, logging."),
    Field("save_stall_seconds", "float", "s", _M, "Held up by a save before the step ended."),
    Field(
        "communication_fraction",
        "float",
        "",
        _M,
        "Time in collectives as a share of the profiled steps; null where the step was not profiled.",
        True,
    ),
    Field(
        "memory_bytes",
        "int",
        "bytes",
        _M,
        "Memory in use on the fullest device (on CPU: of the process); null if not known.",
        True,
    ),
    Field("memory_peak_bytes", "int", "bytes", _M, "Its peak so far; null if not known.", True),
)

BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
DETERMINISTIC: tuple[str, ...] = tuple(field.name for field in FIELDS if field.deterministic)

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Texts that stand for the floats JSON cannot hold."""


def _matches(field: Field, value: Any) -> bool:
    plain: dict[str, type] = {"int": int, "float": float, "bool": bool, "text": str}
    if value is None:
        return field.nullable
    if field.kind in plain:
        return type(value) is plain[field.kind]
    if field.kind == "int rows":
        return (
            type(value) is list
            and all(type(row) is list for row in value)
            and len({len(row) for row in value}) <= 1
            and all(type(item) is int for row in value for item in row)
        )
    item_kind, container = field.kind.split(" ", 1)
    items: Collection[Any]
    if container == "list":
        if type(value) is not list:
            return False
        items = value
    else:
        if type(value) is not dict or not all(type(name) is str for name in value):
            return False
        if field.names and not set(value) <= set(field.names):
            return False
        items = value.values()
    return all(type(item) is plain[item_kind] or (item is None and field.nullable) for item in items)


def check_line(line: Mapping[str, Any]) -> None:
    """Hold one line against the table.

    Raises:
        ValueError: a field is absent, unknown or of another type (our own invariant, not the user's mistake).
    """
    missing = [name for name in BY_NAME if name not in line]
    unknown = [name for name in line if name not in BY_NAME]
    wrong = [
        f"{name} should be {field.kind}, is {line[name]!r:.60}"
        for name, field in BY_NAME.items()
        if name in line and not _matches(field, line[name])
    ]
    if missing or unknown or wrong:
        raise ValueError(f"metrics line: missing {missing}, unknown {unknown}, wrong type {wrong}")


def check_readable(line: Mapping[str, Any]) -> None:
    """Hold what was read of a file against the table, as far as a reader needs it: by kind, whoever wrote it.

    Fields may be absent, unknown or null, as other versions leave or add some.

    Raises:
        TypeError: a value is of another kind.
    """
    for name, value in line.items():
        field = BY_NAME.get(name)
        if field is not None and value is not None and not _is_readable(field.kind, value):
            raise TypeError(f"{name} = {value!r:.60} should be {field.kind}")


def _is_readable(kind: Kind, value: Any) -> bool:
    if kind == "int rows":
        if type(value) is not list or not all(type(row) is list and set(map(type, row)) <= {int} for row in value):
            return False
        same = len({len(row) for row in value}) <= 1
        return same and all(max(map(abs, row), default=0) <= MOST for row in value)
    if kind in ("text", "bool"):
        return type(value) is {"text": str, "bool": bool}[kind]
    # Whole numbers that do not become an int64, such as sums of damaged weights, only need a float's range.
    items: Collection[Any] = [value]
    if kind.endswith("list"):
        items = value if type(value) is list else [kind]
    elif kind.endswith("by name"):
        items = value.values() if type(value) is dict else [kind]
    return all(item is None or type(item) is float or (type(item) is int and abs(item) < 10**300) for item in items)


def _replace(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _replace(item, leaf) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace(item, leaf) for item in value]
    return leaf(value)


def _finite_or_text(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def encode(line: Mapping[str, Any]) -> str:
    """One line of strict JSON, without the line end."""
    return json.dumps(_replace(line, _finite_or_text), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def decode(line: dict[str, Any]) -> dict[str, Any]:
    """Turn the texts that stand for non-finite floats back into floats, in fields of floats only."""
    for name, value in line.items():
        field = BY_NAME.get(name)
        if field is not None and field.kind.startswith("float"):
            line[name] = _replace(value, lambda leaf: NON_FINITE.get(leaf, leaf) if isinstance(leaf, str) else leaf)
    return line


def deterministic_view(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line that are bit-equal after a resume, in the table's order."""
    return {name: line[name] for name in DETERMINISTIC if name in line}
