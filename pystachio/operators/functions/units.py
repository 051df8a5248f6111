"""The size of one step of an integer-like type: what makes decimals, integers, dates and timestamps comparable."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

import pyarrow as pa

TICKS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
SECONDS_PER_DAY: Final = 86_400

_ONE: Final = Fraction(1)


def step_of(type_: pa.DataType) -> Fraction | None:
    """One stored step: of a number in ones, of a point or span of time in seconds; None for other types."""
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return Fraction(1)
    if pa.types.is_decimal(type_):
        scale: int = type_.scale
        return Fraction(1, 10**scale) if scale >= 0 else Fraction(10**-scale)
    if pa.types.is_date32(type_):
        return Fraction(SECONDS_PER_DAY)
    if pa.types.is_date64(type_):
        return Fraction(1, TICKS_PER_SECOND["ms"])
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_) or pa.types.is_duration(type_):
        return Fraction(1, TICKS_PER_SECOND[type_.unit])
    return None


def ratio(left: pa.DataType, right: pa.DataType) -> Fraction | None:
    """Steps of `right` in one step of `left`; None when the types cannot be compared."""
    return _ONE if left == right and step_of(left) is not None else _ratio(left, right)


@lru_cache(maxsize=4096)
def _ratio(left: pa.DataType, right: pa.DataType) -> Fraction | None:
    first, second = step_of(left), step_of(right)
    if first is None or second is None:
        return None
    if is_number(left) or is_number(right):
        comparable = is_number(left) and is_number(right)
    elif is_point_in_time(left) or is_point_in_time(right):
        comparable = is_point_in_time(left) and is_point_in_time(right)
    else:
        comparable = pa.types.is_time(left) == pa.types.is_time(right)
    return first / second if comparable else None


def is_number(type_: pa.DataType) -> bool:
    """Integers, decimals and booleans (which count as 0 and 1), but not floats."""
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_) or pa.types.is_boolean(type_))


def is_point_in_time(type_: pa.DataType) -> bool:
    """Dates and timestamps."""
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def ticks(type_: pa.DataType) -> int:
    """Steps of a time, timestamp or duration in a second; of a date64 too."""
    return TICKS_PER_SECOND["ms"] if pa.types.is_date64(type_) else TICKS_PER_SECOND[type_.unit]
