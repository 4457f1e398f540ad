"""Where a step's device time goes: traced operations joined with the compiled program that they belong to.

Pure functions of texts and numbers: no JAX. `train.profile` takes the trace, `maxtrain.profile` prints the table again.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from maxtrain.core.errors import DataError
from maxtrain.core.files import write_atomic

SCOPES = ("attention", "cross_entropy", "experts", "feed_forward", "optimizer")
"""Names that the model and the step give to parts of the program (`jax.named_scope`), each a row of the table."""
REST = "other"
"""The row of operations in no such part: projections, norms, embedding, router, sums."""

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_CONTROL_FLOW = {"while", "conditional", "call", "async-start", "async-update", "async-done"}
"""Their time is that of the operations inside, which are traced themselves."""
_PRODUCTS = {"dot", "convolution", "ragged-dot"}
_PRODUCT_TARGET = re.compile(r'custom_call_target="[^"]*(gemm|matmul|dot|conv|triton|mosaic|tpu_custom_call)', re.I)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_SCOPE = re.compile(rf"(?<!\w)({'|'.join(SCOPES)})(?!\w)")
_GROUP_LIST = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_GROUP_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")

_GROUP_MESH = re.compile(
    r"replica_groups=mesh\[(['\w=,]+)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(['\w,]+)\}"
)


class Operation(NamedTuple):
    """What the table needs of one instruction of a compiled program."""

    row: str
    """A part of the program, or a collective with its mesh axes."""
    is_product: bool
    is_collective: bool
    is_control_flow: bool


class Event(NamedTuple):
    """One traced execution of an instruction."""

    name: str
    device: int
    start: float
    """Seconds, on a clock that the events of a device share."""
    seconds: float


@dataclass(frozen=True)
class Row:
    """Seconds a step and device, of products of matrices and in all."""

    name: str
    product_seconds: float
    seconds: float


@dataclass(frozen=True)
class StepProfile:
    """The table of some traced steps; seconds are a step and device.

    Time is that of unions of intervals: where operations of a row run at once, on several threads or streams, the row
    counts that time once. Rows may overlap each other, as a collective that other work hides.

    `host_seconds` is what the host took while the device had no operation, `idle_seconds` what is left of the step:
    waiting for other devices' data, launches, and on CPU threads that another program held up. Both add up with the
    time of any operation to the step.
    """

    first_step: int
    last_step: int
    num_devices: int
    step_seconds: float
    rows: tuple[Row, ...]
    host_seconds: float
    idle_seconds: float
    communication_fraction: float
    """Time in collectives as a share of the step, whether or not other work hides it."""


def parse_program(text: str, mesh: Mapping[str, int]) -> dict[str, Operation]:
    """Operations of a compiled program by instruction name.

    Args:
        text: the optimised HLO module.
        mesh: size of every mesh axis, in device order.
    """
    bodies: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    body: list[str] = []
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            body = bodies.setdefault(found[1], [])
        elif found := _INSTRUCTION.match(line):
            lines[found[1]] = found[2]
            body.append(found[2])
    return {name: _operation(line, bodies, mesh) for name, line in lines.items()}


def _opcode(line: str) -> str:
    found = _OPCODE.search(re.sub(r"/\*.*?\*/", "", line))
    return found[1] if found else ""


def _operation(line: str, bodies: Mapping[str, Sequence[str]], mesh: Mapping[str, int]) -> Operation:
    opcode = _opcode(line)
    kind = next((name for name in _COLLECTIVES if re.fullmatch(rf"{name}(-start|-done)?", opcode)), None)
    if kind is not None:
        axes = "×".join(axes_of(line, mesh)) or "unknown axis"
        return Operation(f"{kind} ({axes})", False, True, False)
    called = re.search(r"calls=%?([\w.-]+)", line)
    inside = bodies.get(called[1], ()) if called else ()
    parts = (line, *inside)
    is_product = any(_opcode(part) in _PRODUCTS or _PRODUCT_TARGET.search(part) for part in parts)
    return Operation(_row_of(parts), is_product, False, opcode in _CONTROL_FLOW)


def _row_of(lines: Sequence[str]) -> str:
    """The innermost scope of the instruction, or of the first part of a fusion that has one."""
    for line in lines:
        name = re.search(r'op_name="([^"]*)"', line)
        if name and (scopes := _SCOPE.findall(name[1])):
            return scopes[-1]
    return REST


def axes_of(line: str, mesh: Mapping[str, int]) -> list[str]:
    """Mesh axes along which a collective's devices differ; none where the text does not tell."""
    sizes = list(mesh.values())
    count = math.prod(sizes)
    groups = _groups_of(line, count)
    if any(device >= count for group in groups for device in group):
        return []
    moved = set()
    for group in groups:
        places = [_coordinates(device, sizes) for device in group]
        moved |= {dim for dim in range(len(sizes)) if len({place[dim] for place in places}) > 1}
    return [name for dim, name in enumerate(mesh) if dim in moved]


def _groups_of(line: str, count: int) -> list[list[int]]:
    """Devices that exchange data with each other, in any of the forms that XLA writes."""
    if found := _GROUP_IOTA.search(line):
        shape, source, order = map(_numbers, found.groups())
        ids, size = _transposed(source, order), shape[-1]
        return [ids[start : start + size] for start in range(0, len(ids), size)]
    if found := _GROUP_MESH.search(line):
        axes = dict(part.split("=") for part in found[1].split(","))
        sizes, chosen = [int(size) for size in axes.values()], set(found[4].split(","))
        ids = _transposed(_numbers(found[2]), _numbers(found[3])) if found[2] else list(range(math.prod(sizes)))
        by_rest: dict[tuple[int, ...], list[int]] = {}
        for place, device in enumerate(ids):
            here = _coordinates(place, sizes)
            rest = tuple(here[dim] for dim, name in enumerate(axes) if name not in chosen)
            by_rest.setdefault(rest, []).append(device)
        return list(by_rest.values())
    if found := _GROUP_LIST.search(line):
        return [_numbers(part) for part in re.findall(r"\{([\d,]*)\}", found[1])]
    return [list(range(count))] if "replica_groups={}" in line else []


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in text.split(",") if number] if text else []


def _coordinates(device: int, sizes: Sequence[int]) -> list[int]:
    place = []
    for size in reversed(sizes):
        device, rest = divmod(device, size)
        place.append(rest)
    return place[::-1]


def _transposed(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Numbers 0, 1, … laid out in `sizes`, transposed, and read in order."""
    order = order or list(range(len(sizes)))
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    numbers = [0]
    for dim in order:
        numbers = [number + index * strides[dim] for number in numbers for index in range(sizes[dim])]
    return numbers


class _Spans:
    """Intervals by a name and device, and how much time they cover."""

    def __init__(self) -> None:
        self._spans: dict[str, dict[int, list[tuple[float, float]]]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._spans)

    def add(self, name: str, event: Event) -> None:
        """Take in one event."""
        of_device = self._spans.setdefault(name, {}).setdefault(event.device, [])
        of_device.append((event.start, event.start + event.seconds))

    def covered(self, name: str) -> float:
        """Seconds in which at least one event of a device went on, summed over devices."""
        return sum(map(union_seconds, self._spans.get(name, {}).values()))


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of a union of intervals (start, end)."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def summarise(
    events: Iterable[Event],
    program: Mapping[str, Operation],
    *,
    steps: tuple[int, int],
    num_devices: int,
    step_seconds: float,
    host_seconds: float,
) -> StepProfile:
    """The table of some steps.

    Args:
        events: operations of this process's devices, in any order.
        program: of the step; operations that are not in it count as `other`.
        steps: first and last step traced.
        num_devices: devices of this process.
        step_seconds: mean wall time of a step.
        host_seconds: mean time of a step that the host took for itself, the devices at work or not.
    """
    unknown = Operation(REST, False, False, False)
    rows, products, collectives, every = _Spans(), _Spans(), _Spans(), _Spans()
    for event in events:
        operation = program.get(event.name, unknown)
        if operation.is_control_flow:
            continue
        rows.add(operation.row, event)
        every.add("", event)
        if operation.is_product:
            products.add(operation.row, event)
        if operation.is_collective:
            collectives.add("", event)
    scale = 1.0 / (num_devices * (steps[1] - steps[0] + 1))
    table = [Row(name, products.covered(name) * scale, rows.covered(name) * scale) for name in rows.names]
    communication = collectives.covered("") * scale
    free = max(step_seconds - every.covered("") * scale, 0.0)
    host_seconds = min(host_seconds, free)
    return StepProfile(
        first_step=steps[0],
        last_step=steps[1],
        num_devices=num_devices,
        step_seconds=step_seconds,
        rows=tuple(sorted(table, key=lambda row: -row.seconds)),
        host_seconds=host_seconds,
        idle_seconds=free - host_seconds,
        communication_fraction=communication / step_seconds if step_seconds else 0.0,
    )


def to_markdown(profile: StepProfile) -> str:
    """The table as Markdown, which reads well on a terminal too."""
    whole = profile.step_seconds or 1.0
    products = sum(row.product_seconds for row in profile.rows)
    lines = [
        f"Steps {profile.first_step} to {profile.last_step}: {profile.step_seconds:.4g} s a step, "
        f"{profile.num_devices} device(s) of this process; seconds a step and device",
        "",
        f"| {'part':<34} | {'products':>9} | {'all':>9} | {'share':>6} |",
        f"|{'-' * 36}|{'-' * 10}:|{'-' * 10}:|{'-' * 7}:|",
    ]

    def add(name: str, product: float | None, seconds: float) -> None:
        shown = "" if product is None else f"{product:.4f}"
        lines.append(f"| {name:<34} | {shown:>9} | {seconds:>9.4f} | {seconds / whole:>6.1%} |")

    for row in profile.rows:
        add(row.name, row.product_seconds, row.seconds)
    add("host", None, profile.host_seconds)
    add("idle", None, profile.idle_seconds)
    lines += [
        "",
        f"Products of matrices {products / whole:.1%} of the step, collectives {profile.communication_fraction:.1%}.",
    ]
    return "\n".join(lines) + "\n"


def write_profile(directory: Path, profile: StepProfile) -> None:
    """Write `steps_FIRST_LAST.json` and `.md` into a run's `profile/`."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"steps_{profile.first_step}_{profile.last_step}"
    text = json.dumps(asdict(profile), indent=1, allow_nan=False) + "\n"
    write_atomic(directory / f"{stem}.json", text.encode())
    write_atomic(directory / f"{stem}.md", to_markdown(profile).encode())


def read_profiles(directory: Path) -> list[StepProfile]:
    """Every table of a run's `profile/`, in the order of steps.

    Raises:
        DataError: a file is damaged.
    """
    found = []
    for path in directory.glob("steps_*_*.json"):
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found.append(StepProfile(**{**values, "rows": tuple(Row(**row) for row in values["rows"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: no table of a profile ({error}); profile the steps again") from None
    return sorted(found, key=lambda profile: (profile.first_step, profile.last_step))
