"""Sums of integers and decimals per group, exact in 128 bits, or in 64 where the range of the values allows it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.column import Column, FixedColumn, WideDecimalColumn
from pystachio.operators.decimals import Limbs, add, check_precision, fits_int64, widen
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import bounds_of, cheap_bounds
from pystachio.operators.kernels.grouping import Grouping
from pystachio.operators.kernels.selection import plain

_LOW_DIGIT: Final = 2**32 - 1
_INT64_LIMIT: Final = 2**63
_LARGEST_MAGNITUDE: Final = 1.5e38
"""Above every 38-digit number and below the limit of 128 bits."""


def exact_sums(column: Column, type_: pa.DataType, grouping: Grouping) -> Column:
    """The sum of each group's valid integers or decimals (DataError beyond 38 digits), NULL where there are none.

    `type_` is the type of the result; its values are two limbs only where int64 cannot hold them.
    """
    column = plain(column)
    validity = grouping.any_of(column.validity)
    if isinstance(column, FixedColumn):
        if _fits_int64(column):
            return FixedColumn(type_, grouping.sums(column.values, column.validity), validity)
        values = _zero_where_null(column.values, column.validity)
        return narrowed(_sum_of_int64(values.to(torch.int64), grouping), type_, validity)
    assert isinstance(column, WideDecimalColumn)
    high = _zero_where_null(column.high, column.validity)
    low = _zero_where_null(column.low, column.validity)
    return narrowed(_sum_of_limbs(Limbs(high, low), grouping), type_, validity)


def narrowed(value: Limbs, type_: pa.DataType, validity: torch.Tensor | None) -> Column:
    """A column of one limb where that holds all valid values."""
    fits = fits_int64(value)
    if primitives(fits.device).all_true(fits if validity is None else fits | ~validity):
        return FixedColumn(type_, value.low, validity)
    check_precision(value, 38, validity)
    return WideDecimalColumn(type_, value.high, value.low, validity)


def _fits_int64(column: FixedColumn) -> bool:
    for bounds in (cheap_bounds(column), bounds_of(column)):
        if bounds is not None and max(abs(bounds[0]), abs(bounds[1])) * len(column) < _INT64_LIMIT:
            return True
    return False


def _sum_of_int64(values: torch.Tensor, grouping: Grouping) -> Limbs:
    """32-bit digits cannot overflow: a tensor has fewer than 2**31 rows per group."""
    low, high = grouping.sums(values & _LOW_DIGIT), grouping.sums(values >> 32)
    return add(Limbs(high >> 32, high << 32), widen(low))


def _sum_of_limbs(values: Limbs, grouping: Grouping) -> Limbs:
    digits = (values.low & _LOW_DIGIT, (values.low >> 32) & _LOW_DIGIT, values.high & _LOW_DIGIT, values.high >> 32)
    lowest, second, third, top = (grouping.sums(digit) for digit in digits)
    magnitude = (top.to(torch.float64) * 2.0**32 + third.to(torch.float64)) * 2.0**64
    if bool((magnitude.abs() > _LARGEST_MAGNITUDE).any()):
        raise DataError("decimal overflow: a sum needs more than 38 digits")
    lower = add(Limbs(second >> 32, second << 32), widen(lowest))
    return add(Limbs((top << 32) + third, torch.zeros_like(top)), lower)


def _zero_where_null(values: torch.Tensor, validity: torch.Tensor | None) -> torch.Tensor:
    return values if validity is None else values * validity
