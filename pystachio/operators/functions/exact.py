"""Exact arithmetic on integer-like operands (integers, decimals, spans of time), shared by the numeric functions.

Operands are reduced to scaled integers; results are checked against their type: the digits of a decimal, the range of
an integer. What fits is a FixedColumn of the narrowest dtype that the range proves, other decimals are wide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators import decimals
from pystachio.operators.column import Bounds, Column, FixedColumn, WideDecimalColumn
from pystachio.operators.decimals import Limbs
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import Operand
from pystachio.operators.functions.operands import fits, integers, narrowest_dtype, operand_bounds
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.arithmetic import INT64, divide_rounded, range_of
from pystachio.operators.kernels.bounds import measured_bounds
from pystachio.operators.kernels.compare import limbs_of
from pystachio.operators.kernels.selection import device_of, plain


def combine(
    function: str, left: Operand, right: Operand, type_: pa.DataType, valid: torch.Tensor | None, digits: int = 0
) -> Column:
    """add, subtract or multiply of stored integers, times 10**digits, as a column of `type_`.

    At least one operand is a column. Raises DataError where a valid row's result is outside the type.
    """
    bounds = None
    if digits == 0:
        bounds = _range(function, operand_bounds(left, measure=False), operand_bounds(right, measure=False))
    if bounds is None:
        bounds = _range(function, operand_bounds(left, measure=True), operand_bounds(right, measure=True))
    if bounds is not None:
        return _combine_fixed(function, left, right, bounds, type_, valid, digits)
    device = device_of(cast(Column, right if isinstance(left, Literal) else left))
    first, second = limbs(left, device), limbs(right, device)
    match function:
        case "add":
            result = decimals.add(first, second)
        case "subtract":
            result = decimals.subtract(first, second)
        case _:
            result = decimals.multiply_or_fail(first, second, valid)
    return from_limbs(decimals.rescale(result, digits, valid), type_, valid)


def _range(function: str, left: Bounds | None, right: Bounds | None) -> Bounds | None:
    """That of the results, if both operands' are known and nothing is beyond int64."""
    if left is None or right is None:
        return None
    low, high = range_of(function, left, right)
    if min(low, left[0], right[0]) < INT64[0] or max(high, left[1], right[1]) > INT64[1]:
        return None
    return low, high


def _combine_fixed(
    function: str,
    left: Operand,
    right: Operand,
    bounds: Bounds,
    type_: pa.DataType,
    valid: torch.Tensor | None,
    digits: int,
) -> Column:
    first, second = integers(left), integers(right)
    dtype = narrowest_dtype(bounds)
    for operand in (first, second):
        # Never narrow an operand: its values need not fit, only the result's do.
        if isinstance(operand, torch.Tensor):
            dtype = torch.promote_types(dtype, operand.dtype)
        else:
            dtype = torch.promote_types(dtype, narrowest_dtype((operand, operand)))
    device = first.device if isinstance(first, torch.Tensor) else cast(torch.Tensor, second).device
    values = primitives(device).arithmetic(function, first, second, dtype)
    return rescale(FixedColumn(type_, values, valid, bounds), digits, type_, valid)


def rescale(column: FixedColumn, digits: int, type_: pa.DataType, valid: torch.Tensor | None) -> Column:
    """The column's integers times 10**digits (rounded half away from zero) as a column of `type_`, checked."""
    if digits == 0:
        return checked(column, type_, valid)
    if digits > 0:
        return combine("multiply", column, Literal(10**digits, pa.int64()), type_, valid)
    if digits < -18:
        return from_limbs(decimals.rescale(limbs(column, column.values.device), digits, valid), type_, valid)
    power = 10**-digits
    bounds = operand_bounds(column, measure=column.values.dtype == torch.int64)
    if not fits(bounds, (-(2**62), 2**62)):
        return from_limbs(decimals.rescale(limbs(column, column.values.device), digits, valid), type_, valid)
    assert bounds is not None
    values = divide_rounded(column.values.to(torch.int64), power)
    low, high = (_divide_rounded(bound, power) for bound in bounds)
    return checked(FixedColumn(type_, values, valid, (low, high)), type_, valid)


def _divide_rounded(value: int, power: int) -> int:
    quotient, rest = divmod(abs(value), power)
    quotient += 2 * rest >= power
    return quotient if value >= 0 else -quotient


def limbs(operand: Operand, device: torch.device) -> Limbs:
    """The stored integers in two limbs."""
    if isinstance(operand, Literal):
        return decimals.constant(int(operand.value), device)
    values = plain(operand)
    if isinstance(values, WideDecimalColumn):
        return limbs_of(values)
    return decimals.widen(cast(torch.Tensor, integers(values)))


@lru_cache(maxsize=256)
def limits_of(type_: pa.DataType) -> Bounds:
    """The stored integers that a type allows."""
    if pa.types.is_decimal(type_):
        largest = 10**type_.precision - 1
        return -largest, largest
    if pa.types.is_unsigned_integer(type_):
        return 0, min(2**type_.bit_width - 1, INT64[1])
    width: int = type_.bit_width
    return -(2 ** (width - 1)), 2 ** (width - 1) - 1


def checked(column: FixedColumn, type_: pa.DataType, valid: torch.Tensor | None) -> FixedColumn:
    """The column as `type_`; DataError when a valid value is outside the type's range."""
    limits = limits_of(type_)
    bounds = operand_bounds(column, measure=False)
    if not fits(bounds, limits):
        bounds = measured_bounds(FixedColumn(type_, column.values, valid))
        if not fits(bounds, limits):
            raise overflow(type_)
    return FixedColumn(type_, column.values, valid, bounds)


def from_limbs(value: Limbs, type_: pa.DataType, valid: torch.Tensor | None) -> Column:
    """Limbs as a column of `type_`: in one limb when all valid values fit. DataError when one is outside the type."""
    small = decimals.fits_int64(value)
    if primitives(small.device).all_true(small if valid is None else small | ~valid):
        return checked(FixedColumn(type_, value.low, valid), type_, valid)
    if not pa.types.is_decimal(type_):
        raise overflow(type_)
    decimals.check_precision(value, type_.precision, valid)
    return WideDecimalColumn(type_, value.high, value.low, valid)


def overflow(type_: pa.DataType) -> DataError:
    """The error for a result outside its type."""
    return DataError(f"overflow: a result is out of range for {type_}")
