"""Base class and scalar types that every section of the config shares."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_COUNT = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(\.[0-9]+)?\s*([kKmMbBtT]|[kKmMgG]i)?")

MAX_INT = 2**31 - 1
"""Greatest plain whole number: what an int32 holds."""
MAX_REAL = 3.4028234663852886e38
"""Greatest real number: what a float32 holds."""
MAX_COUNT = 2**63 - 1
"""Greatest count: what an int64 holds."""
MAX_SIZE = 2**20
"""Greatest width, and greatest number of layers, heads, experts or devices."""
MAX_IDS = 2**24
"""Most ids of a vocabulary."""
MAX_BATCH_TOKENS = 2**40
"""Most tokens of a batch."""


class Section(BaseModel):
    """A frozen section: unknown keys and lossy coercions are errors; field docstrings are the help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def parse_count(value: Any) -> Any:
    """Read a human size (`10T`, `1.5M`, `4Ki`, `65,536`) as an exact integer.

    Suffixes are decimal (K, M, B, T) or binary (Ki, Mi, Gi). A comma separates groups of three digits, so that a
    decimal comma is refused. Other types pass through for pydantic to judge.

    Raises:
        ValueError: the text is no count, or the count is not a whole number or over an int64.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if match is None:
            raise ValueError("should be a count such as 65536, 64Ki, 1.5M or 10T")
        digits, fraction = match[1].replace("_", "").replace(",", ""), (match[2] or ".")[1:]
        scaled = int(digits + fraction) * _SUFFIX[(match[3] or "").lower()]
        value, rest = divmod(scaled, 10 ** len(fraction))
        if rest:
            raise ValueError(f"is not a whole number ({scaled / 10 ** len(fraction)})")
    if isinstance(value, int) and value > MAX_COUNT:
        raise ValueError(f"should be at most {MAX_COUNT:,} (a signed 64-bit integer)")
    return value


def as_float(value: Any) -> Any:
    """Let a YAML integer fill a float field, which strict mode would refuse."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_COUNT_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_COUNT.pattern}$"}]}
_POSITIVE_COUNT_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1}, _COUNT_SCHEMA["anyOf"][1]]}

Count = Annotated[int, BeforeValidator(parse_count), Field(ge=0), WithJsonSchema(_COUNT_SCHEMA)]
"""A whole number >= 0 that may be written with a suffix."""
PositiveCount = Annotated[int, BeforeValidator(parse_count), Field(gt=0), WithJsonSchema(_POSITIVE_COUNT_SCHEMA)]
"""A whole number > 0 that may be written with a suffix."""
Real = Annotated[float, BeforeValidator(as_float), Field(allow_inf_nan=False)]
PositiveReal = Annotated[float, BeforeValidator(as_float), Field(gt=0, le=MAX_REAL, allow_inf_nan=False)]
NonNegativeReal = Annotated[float, BeforeValidator(as_float), Field(ge=0, le=MAX_REAL, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(as_float), Field(ge=0, le=1, allow_inf_nan=False)]
Factor = Annotated[float, BeforeValidator(as_float), Field(gt=0, le=1000, allow_inf_nan=False)]
"""A factor or rate > 0 that a run can bear."""
Weight = Annotated[float, BeforeValidator(as_float), Field(ge=0, le=1000, allow_inf_nan=False)]
"""A factor or rate that may be 0, for none."""
Epsilon = Annotated[float, BeforeValidator(as_float), Field(ge=1e-20, le=1, allow_inf_nan=False)]
"""What keeps a division finite: its powers, and what a parametrization makes of it, are float32 numbers over 0."""
Threshold = Annotated[float, BeforeValidator(as_float), Field(ge=1e-8, le=MAX_REAL, allow_inf_nan=False)]
"""A bound on a norm."""
Frequency = Annotated[float, BeforeValidator(as_float), Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
"""A ratio of lengths, or of wavelengths to a length."""
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
NonNegativeSize = Annotated[int, Field(ge=0, le=MAX_SIZE)]
BatchTokens = Annotated[PositiveCount, Field(le=MAX_BATCH_TOKENS)]
PositiveInt = Annotated[int, Field(gt=0, le=MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INT)]
AsTuple = BeforeValidator(_as_tuple)
"""Lets a YAML list fill a tuple field, which strict mode would refuse."""
