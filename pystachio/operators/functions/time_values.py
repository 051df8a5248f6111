"""Points in time, times of day and spans as numbers: days and ticks, and conversions between units."""

from __future__ import annotations

import pyarrow as pa
import torch

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.column import Column, FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions import exact
from pystachio.operators.functions.units import SECONDS_PER_DAY, is_point_in_time, step_of, ticks
from pystachio.operators.kernels.dates import floor_divide


def split_days(values: FixedColumn) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Days since 1970-01-01, ticks since midnight (None for dates) and ticks per second."""
    type_ = values.type
    if pa.types.is_date32(type_):
        return values.values, None, 1
    if pa.types.is_time(type_):
        return torch.zeros_like(values.values), values.values.to(torch.int64), ticks(type_)
    if not is_point_in_time(type_):
        raise InvalidRequest(f"a part of a {type_}")
    moments = values.values.to(torch.int64)
    per_day = ticks(type_) * SECONDS_PER_DAY
    days = floor_divide(moments, per_day)
    return days, moments - days * per_day, ticks(type_)


def convert_time(values: Column, type_: pa.DataType, valid: torch.Tensor | None) -> Column:
    """A point in time, time of day or span in another unit: finer exactly, coarser rounded down."""
    assert isinstance(values, FixedColumn)
    source, target = step_of(values.type), step_of(type_)
    if source is None or target is None:
        raise Unsupported(f"a conversion of {values.type} to {type_}")
    ratio = source / target
    if ratio == 1:
        return FixedColumn(type_, values.values, valid, values.bounds)
    if ratio > 1:
        return exact.combine("multiply", values, Literal(int(ratio), pa.int64()), type_, valid)
    coarser = floor_divide(values.values.to(torch.int64), int(1 / ratio))
    return exact.checked(FixedColumn(type_, coarser), type_, valid)
