from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxtrain.config.schema import parse_count
from maxtrain.config.schema.types import MAX_COUNT

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10T", 10**13),
        ("1.5M", 1_500_000),
        ("4Ki", 4096),
        ("65,536", 65_536),
        ("65_536", 65_536),
        (" 2 Gi ", 2**31),
        ("1.5Ki", 1536),
        ("0.5k", 500),
        (1e6, 1_000_000),
        (7, 7),
    ],
)
def test_human_sizes_are_exact(text: Any, count: int) -> None:
    assert parse_count(text) == count
    assert isinstance(parse_count(text), int)


@pytest.mark.parametrize(
    "text", ["", "ten", "1,5M", "1,5", "1.5", "0.0001K", "-4", "4 KiB", "1e3", "4Q", "1,0000", ".5M"]
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"count|whole number"):
        parse_count(text)


@pytest.mark.parametrize("value", [2**63, 1e30, "10000000T"])
def test_a_count_over_an_int64_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        parse_count(value)


def test_other_types_are_left_to_the_schema() -> None:
    assert parse_count(1.5) == 1.5
    assert parse_count(None) is None
    assert parse_count([1]) == [1]


@given(
    st.integers(0, 10**6), st.integers(0, 999_999), st.integers(0, 6), st.sampled_from(sorted(SUFFIXES)), st.booleans()
)
def test_a_count_is_the_decimal_times_its_suffix_or_refused(
    whole: int, part: int, places: int, suffix: str, lower: bool
) -> None:
    fraction = f".{part:06}"[: places + 1] if places else ""
    text = f"{whole}{fraction}{suffix.lower() if lower else suffix}"
    exact = Fraction(f"{whole}{fraction}") * SUFFIXES[suffix]
    if exact.denominator == 1 and exact <= MAX_COUNT:
        assert parse_count(text) == exact
    else:
        with pytest.raises(ValueError, match=r"whole number|64-bit"):
            parse_count(text)


@given(st.integers(0, MAX_COUNT))
def test_every_way_to_write_a_number_reads_the_same(count: int) -> None:
    for written in (str(count), f"{count:,}", f"{count:_}", f" {count} ", count):
        assert parse_count(written) == count
