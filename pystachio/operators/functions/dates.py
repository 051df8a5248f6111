"""Parts of dates and timestamps, and truncation to a unit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.column import Bounds, Column, FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions import exact
from pystachio.operators.functions.function import Function, Invocation, Operand, always
from pystachio.operators.functions.operands import column, integers, narrowest_dtype
from pystachio.operators.functions.time_values import convert_time, split_days
from pystachio.operators.functions.units import step_of, ticks
from pystachio.operators.kernels import dates as kernels
from pystachio.operators.kernels.bounds import bounds_of
from pystachio.operators.kernels.selection import plain
from pystachio.operators.placement import on_device
from pystachio.runtime.devices import device_place

_DAY_UNITS: Final = frozenset({"day", "week", "month", "quarter", "year", "decade", "century", "millennium"})
_TICKS: Final = {
    "hour": Fraction(3600),
    "minute": Fraction(60),
    "second": Fraction(1),
    "millisecond": Fraction(1, 1_000),
    "microsecond": Fraction(1, 1_000_000),
    "nanosecond": Fraction(1, 1_000_000_000),
}
_SYNONYMS: Final = {
    "dayofweek": "dow",
    "day_of_week": "dow",
    "weekday": "dow",
    "dayofyear": "doy",
    "day_of_year": "doy",
    "isoweek": "week",
    "iso_week": "week",
    "iso_year": "isoyear",
    "iso_dow": "isodow",
}

# A part of a date needs one table lookup per row when the column's range has at most this many days.
_TABLE_DAYS: Final = 65_536


def unit_name(unit: Operand) -> str:
    """The canonical singular name of a literal unit."""
    if not isinstance(unit, Literal) or not isinstance(unit.value, str):
        raise Unsupported("a unit of time that is not a constant")
    name = unit.value.strip().strip("'").lower()
    name = _SYNONYMS.get(name, name)
    singular = {"centuries": "century", "millenniums": "millennium", "millennia": "millennium"}.get(name)
    return singular or (name[:-1] if name.endswith("s") else name)


_DAY_PARTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "year": lambda days: kernels.civil_from_days(days).year,
    "month": lambda days: kernels.civil_from_days(days).month,
    "day": lambda days: kernels.civil_from_days(days).day,
    "quarter": lambda days: kernels.floor_divide(kernels.civil_from_days(days).month + 2, 3),
    "week": lambda days: kernels.iso_week(days)[1],
    "isoyear": lambda days: kernels.iso_week(days)[0],
    "dow": lambda days: torch.remainder(kernels.weekday(days) + 1, 7),
    "isodow": lambda days: kernels.weekday(days) + 1,
    "doy": kernels.day_of_year,
    "decade": lambda days: kernels.floor_divide(kernels.civil_from_days(days).year, 10),
    "century": lambda days: kernels.floor_divide(kernels.civil_from_days(days).year - 1, 100) + 1,
    "millennium": lambda days: kernels.floor_divide(kernels.civil_from_days(days).year - 1, 1000) + 1,
}


def _last_day_of_month(days: torch.Tensor) -> torch.Tensor:
    year, month, _ = kernels.civil_from_days(days)
    return kernels.truncate_days("month", days) + kernels.days_in_month(year, month) - 1


_OF_DAYS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    **_DAY_PARTS,
    **{f"start of {unit}": partial(kernels.truncate_days, unit) for unit in _DAY_UNITS},
    "last day": _last_day_of_month,
}


def _of_days(name: str, days: torch.Tensor, valid: torch.Tensor | None) -> FixedColumn:
    """A function of days, through a table over their range when that is small. Bounds are the table's."""
    low, high = bounds_of(FixedColumn(pa.date32(), days, valid)) or (0, 0)
    if high - low >= _TABLE_DAYS:
        return FixedColumn(pa.int64(), _OF_DAYS[name](days))
    # Starting on multiples of a year or so lets batches whose ranges differ a little share a table.
    low, high = low // 512 * 512, high // 512 * 512 + 511
    table, bounds = _table(name, low, high, days.device, device_place(days.device))
    kept = days if valid is None else torch.where(valid, days, low)
    positions = kept.to(torch.int32) - low
    return FixedColumn(pa.int64(), table.index_select(0, positions), None, bounds)


@lru_cache(maxsize=256)
def _table(name: str, low: int, high: int, device: torch.device, place: object) -> tuple[torch.Tensor, Bounds]:
    values = _OF_DAYS[name](torch.arange(low, high + 1))
    bounds = (int(values.min()), int(values.max()))
    return on_device(values.to(narrowest_dtype(bounds)), device), bounds


def _date_part(invocation: Invocation) -> Operand:
    unit, operand = unit_name(invocation.arguments[0]), invocation.arguments[1]
    values = plain(column(operand, invocation.rows, invocation.device))
    assert isinstance(values, FixedColumn)
    if unit == "epoch":
        return _epoch(values, invocation.type)
    days, rest, per_second = split_days(values)
    if unit in _DAY_PARTS:
        part = _of_days(unit, days, invocation.valid)
        return _as_type(part, invocation)
    if unit not in _TICKS:
        raise InvalidRequest(f"an unknown part of a date: {unit}")
    if rest is None:
        rest = torch.zeros_like(days, dtype=torch.int64)
    return _as_type(_time_part(unit, rest, per_second, invocation.type), invocation)


def _time_part(unit: str, rest: torch.Tensor, per_second: int, type_: pa.DataType) -> FixedColumn:
    """Hour, minute, second of the day; smaller units count from the start of the minute, as in PostgreSQL."""
    if unit in ("hour", "minute"):
        step = int(_TICKS[unit] * per_second)
        return FixedColumn(pa.int64(), torch.remainder(kernels.floor_divide(rest, step), 24 if unit == "hour" else 60))
    in_minute = torch.remainder(rest, 60 * per_second)
    factor = 1 / (_TICKS[unit] * per_second)
    if pa.types.is_floating(type_):
        return FixedColumn(pa.float64(), in_minute.to(torch.float64) * float(factor))
    if factor >= 1:
        return FixedColumn(pa.int64(), in_minute * int(factor))
    return FixedColumn(pa.int64(), kernels.floor_divide(in_minute, int(1 / factor)))


def _epoch(values: FixedColumn, type_: pa.DataType) -> FixedColumn:
    step = step_of(values.type)
    assert step is not None
    if pa.types.is_floating(type_):
        seconds = values.values.to(torch.float64)
        return FixedColumn(type_, seconds * step.numerator / step.denominator)
    whole = values.values.to(torch.int64) * step.numerator
    return FixedColumn(type_, kernels.floor_divide(whole, step.denominator))


def _as_type(part: FixedColumn, invocation: Invocation) -> Column:
    if pa.types.is_floating(invocation.type):
        dtype = torch.float64 if invocation.type == pa.float64() else torch.float32
        return FixedColumn(invocation.type, part.values.to(dtype))
    return FixedColumn(invocation.type, part.values, None, part.bounds)


def _date_trunc(invocation: Invocation) -> Operand:
    unit, operand = unit_name(invocation.arguments[0]), invocation.arguments[1]
    values = plain(column(operand, invocation.rows, invocation.device))
    assert isinstance(values, FixedColumn)
    if unit in _DAY_UNITS:
        days, _, _ = split_days(values)
        first = _of_days(f"start of {unit}", days, invocation.valid)
        return convert_time(FixedColumn(pa.date32(), first.values), invocation.type, invocation.valid)
    if unit not in _TICKS:
        raise InvalidRequest(f"an unknown unit of time: {unit}")
    if pa.types.is_date(values.type):
        return convert_time(values, invocation.type, invocation.valid)
    step = _TICKS[unit] * ticks(values.type)
    if step <= 1:
        return convert_time(values, invocation.type, invocation.valid)
    wide = values.values.to(torch.int64)
    floored_ticks = wide - torch.remainder(wide, int(step))
    return convert_time(FixedColumn(values.type, floored_ticks), invocation.type, invocation.valid)


def _make_date(invocation: Invocation) -> Operand:
    year, month, day = (
        integers(column(operand, invocation.rows, invocation.device)) for operand in invocation.arguments
    )
    assert isinstance(year, torch.Tensor)
    assert isinstance(month, torch.Tensor)
    assert isinstance(day, torch.Tensor)
    wanted = kernels.Civil(year.to(torch.int64), month.to(torch.int64), day.to(torch.int64))
    days = kernels.days_from_civil(wanted)
    found = kernels.civil_from_days(days)
    exists = (found.year == wanted.year) & (found.month == wanted.month) & (found.day == wanted.day)
    if not bool((exists if invocation.valid is None else exists | ~invocation.valid).all()):
        raise exact.overflow(invocation.type)
    return exact.checked(FixedColumn(invocation.type, days), invocation.type, invocation.valid)


def _last_day(invocation: Invocation) -> Operand:
    values = plain(column(invocation.arguments[0], invocation.rows, invocation.device))
    assert isinstance(values, FixedColumn)
    days, _, _ = split_days(values)
    found = _of_days("last day", days, invocation.valid)
    return convert_time(FixedColumn(pa.date32(), found.values), invocation.type, invocation.valid)


FUNCTIONS: Final = (
    Function("date_part", always(pa.int64()), _date_part, subject=1),
    Function("date_trunc", lambda types: types[1], _date_trunc, subject=1),
    Function("make_date", always(pa.date32()), _make_date),
    Function("last_day", always(pa.date32()), _last_day),
)
