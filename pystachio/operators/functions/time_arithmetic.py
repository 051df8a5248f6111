"""Sums and differences with points in time, spans and intervals."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError, InvalidRequest, Unsupported
from pystachio.operators.column import Column, FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions import exact
from pystachio.operators.functions.function import Invocation, Operand
from pystachio.operators.functions.operands import any_valid, column, integers
from pystachio.operators.functions.time_values import convert_time, split_days
from pystachio.operators.functions.units import SECONDS_PER_DAY, is_point_in_time, step_of, ticks
from pystachio.operators.kernels import dates as kernels
from pystachio.operators.kernels.selection import plain

# By number, as in `types`.
_INTERVAL: Final = pa.month_day_nano_interval().id
_TEMPORAL: Final = frozenset(
    type_.id
    for type_ in (
        *(pa.date32(), pa.date64(), pa.timestamp("s"), pa.duration("s")),
        *(pa.time32("s"), pa.time64("us"), pa.month_day_nano_interval()),
    )
)


def is_interval(type_: pa.DataType) -> bool:
    return bool(type_.id == _INTERVAL)


def is_temporal(type_: pa.DataType) -> bool:
    """Points in time, times of day, spans and intervals."""
    return type_.id in _TEMPORAL


def temporal_arithmetic(function: str, invocation: Invocation) -> Operand:
    """Sums and differences with a point in time, time of day, span or interval; spans times or by integers.

    A plain integer beside a date counts days.
    """
    left, right = invocation.arguments
    if is_interval(left.type) and function == "add":
        left, right = right, left
    if is_interval(right.type):
        return _shift(left, right, -1 if function == "subtract" else 1, invocation)
    if function == "multiply":
        return exact.combine("multiply", left, right, invocation.type, invocation.valid)
    if function == "divide":
        return _divide_span(left, right, invocation)
    steps = [_step_in_seconds(operand.type) for operand in (left, right)]
    common = min(steps)
    first, second = (
        _scaled(operand, int(step / common), invocation) for operand, step in zip((left, right), steps, strict=True)
    )
    total = exact.combine(function, first, second, pa.int64(), invocation.valid)
    assert isinstance(total, FixedColumn)
    target = _step_in_seconds(invocation.type)
    if common >= target:
        factor = Literal(int(common / target), pa.int64())
        return exact.combine("multiply", total, factor, invocation.type, invocation.valid)
    coarser = kernels.floor_divide(total.values.to(torch.int64), int(target / common))
    return exact.checked(FixedColumn(invocation.type, coarser), invocation.type, invocation.valid)


def _divide_span(left: Operand, right: Operand, invocation: Invocation) -> Operand:
    dividend, divisor = (integers(column(part, invocation.rows, invocation.device)) for part in (left, right))
    assert isinstance(dividend, torch.Tensor)
    assert isinstance(divisor, torch.Tensor)
    zero = divisor == 0
    if any_valid(zero, invocation.valid):
        raise DataError("division by zero")
    by = torch.where(zero, 1, divisor)
    return FixedColumn(invocation.type, torch.div(dividend.to(torch.int64), by, rounding_mode="trunc"))


def _step_in_seconds(type_: pa.DataType) -> Fraction:
    step = step_of(type_)
    if step is None or pa.types.is_decimal(type_):
        raise InvalidRequest(f"arithmetic on time with {type_}")
    return Fraction(SECONDS_PER_DAY) if pa.types.is_integer(type_) else step


def _scaled(operand: Operand, factor: int, invocation: Invocation) -> Operand:
    if isinstance(operand, Literal):
        return Literal(int(operand.value) * factor, pa.int64())
    if factor == 1:
        return operand
    return exact.combine("multiply", operand, Literal(factor, pa.int64()), pa.int64(), invocation.valid)


def _shift(operand: Operand, interval: Operand, sign: int, invocation: Invocation) -> Operand:
    """A point in time moved by an interval: months first, then days, then the rest."""
    if not isinstance(interval, Literal):
        raise Unsupported("intervals in a column")
    months, days, nanoseconds = (sign * part for part in interval.value)
    values = plain(column(operand, invocation.rows, invocation.device))
    assert isinstance(values, FixedColumn)
    if pa.types.is_time(values.type):
        return _shift_time(values, nanoseconds, invocation)
    moved: Column = convert_time(values, invocation.type, invocation.valid)
    if months:
        moved = _shift_months(moved, months, invocation)
    step = _step_in_seconds(invocation.type)
    offset = int((days * SECONDS_PER_DAY + Fraction(nanoseconds, 1_000_000_000)) / step)
    return exact.combine("add", moved, Literal(offset, pa.int64()), invocation.type, invocation.valid)


def _shift_months(values: Column, months: int, invocation: Invocation) -> Column:
    assert isinstance(values, FixedColumn)
    days, rest, per_second = split_days(FixedColumn(_without_zone(values.type), values.values))
    moved = kernels.add_months(days, months)
    if rest is not None:
        moved = moved * (per_second * SECONDS_PER_DAY) + rest
    return exact.checked(FixedColumn(invocation.type, moved), invocation.type, invocation.valid)


def _without_zone(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp(type_.unit) if pa.types.is_timestamp(type_) else type_


def _shift_time(values: FixedColumn, nanoseconds: int, invocation: Invocation) -> Column:
    """Times of day wrap around at midnight."""
    per_second = ticks(values.type)
    offset = nanoseconds * per_second // 1_000_000_000
    moved = torch.remainder(values.values.to(torch.int64) + offset, per_second * SECONDS_PER_DAY)
    return FixedColumn(invocation.type, moved)


def temporal_result_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Of a sum or difference: a point and a span give a point, two points their distance."""
    if is_point_in_time(left) and is_point_in_time(right):
        if pa.types.is_date(left) and pa.types.is_date(right):
            return pa.int64()
        finest = max((type_ for type_ in (left, right) if pa.types.is_timestamp(type_)), key=ticks)
        return pa.duration(finest.unit)
    for type_ in (left, right):
        if is_point_in_time(type_) or pa.types.is_time(type_):
            return type_
    return left if pa.types.is_duration(left) else right
