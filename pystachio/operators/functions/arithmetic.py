"""Arithmetic operators on numbers; sums and differences with points in time go to `time_arithmetic`.

Integers and decimals are exact or a DataError (overflow, division by zero); floats follow IEEE 754, where x / 0 is
infinite or NaN. This is DataFusion's choice, except that it lets integers wrap around and truncates decimal quotients;
here those are errors and rounded half away from zero. Integer division truncates towards zero; the result of modulus
has the dividend's sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators import decimals
from pystachio.operators.column import BytesColumn, Column, FixedColumn, WideDecimalColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions import exact
from pystachio.operators.functions.function import Function, Invocation, Kernel, Operand, same_as_first
from pystachio.operators.functions.operands import (
    any_valid,
    column,
    fits,
    float_dtype,
    floats,
    integers,
    operand_bounds,
)
from pystachio.operators.functions.time_arithmetic import is_temporal, temporal_arithmetic, temporal_result_type
from pystachio.operators.functions.types import are_integers, common_number, decimal_parts, decimal_type, scale_of
from pystachio.operators.kernels.arithmetic import INT64, divide_rounded
from pystachio.operators.kernels.selection import plain


def float_column(values: torch.Tensor, type_: pa.DataType) -> FixedColumn:
    """A column of a floating type."""
    return FixedColumn(type_, values.to(float_dtype(type_)))


def _additive(function: str) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        left, right = invocation.arguments
        if are_integers(left.type, right.type, invocation.type):
            return exact.combine(function, left, right, invocation.type, invocation.valid)
        if is_temporal(left.type) or is_temporal(right.type):
            return temporal_arithmetic(function, invocation)
        if pa.types.is_floating(invocation.type):
            return _float_result(function, invocation)
        scale = max(scale_of(left.type), scale_of(right.type))
        first, second = _at_scale(left, scale, invocation), _at_scale(right, scale, invocation)
        digits = scale_of(invocation.type) - scale
        return exact.combine(function, first, second, invocation.type, invocation.valid, digits)

    return kernel


def _multiply(invocation: Invocation) -> Operand:
    left, right = invocation.arguments
    if are_integers(left.type, right.type, invocation.type):
        return exact.combine("multiply", left, right, invocation.type, invocation.valid)
    if is_temporal(left.type) or is_temporal(right.type):
        return temporal_arithmetic("multiply", invocation)
    if pa.types.is_floating(invocation.type):
        return _float_result("multiply", invocation)
    digits = scale_of(invocation.type) - scale_of(left.type) - scale_of(right.type)
    return exact.combine("multiply", left, right, invocation.type, invocation.valid, digits)


def _float_result(function: str, invocation: Invocation) -> FixedColumn:
    left, right = (floats(operand) for operand in invocation.arguments)
    match function:
        case "add":
            values = left + right
        case "subtract":
            values = left - right
        case _:
            values = left * right
    assert isinstance(values, torch.Tensor)
    return float_column(values, invocation.type)


def _divide(invocation: Invocation) -> Operand:
    left, right = (column(operand, invocation.rows, invocation.device) for operand in invocation.arguments)
    if is_temporal(left.type):
        return temporal_arithmetic("divide", invocation)
    if pa.types.is_floating(invocation.type):
        dividend, divisor = floats(left), floats(right)
        assert isinstance(dividend, torch.Tensor)
        return float_column(dividend / divisor, invocation.type)
    _refuse_zero(invocation.arguments[1], invocation.valid)
    if not pa.types.is_decimal(invocation.type):
        return _divide_integers(left, right, invocation)
    digits = scale_of(invocation.type) - scale_of(left.type) + scale_of(right.type)
    dividend_column, divisor_column = _scaled_up(left, digits, invocation), _scaled_up(right, -digits, invocation)
    if isinstance(dividend_column, FixedColumn) and isinstance(divisor_column, FixedColumn):
        ranges = [operand_bounds(part, measure=True) for part in (dividend_column, divisor_column)]
        if all(fits(bounds, (-(2**62), 2**62)) for bounds in ranges):
            divisor = _without_zero(divisor_column.values.to(torch.int64))
            values = divide_rounded(dividend_column.values.to(torch.int64), divisor)
            return exact.checked(FixedColumn(invocation.type, values), invocation.type, invocation.valid)
    quotient = decimals.divide_rounded(
        exact.limbs(dividend_column, invocation.device), exact.limbs(divisor_column, invocation.device)
    )
    return exact.from_limbs(quotient, invocation.type, invocation.valid)


def _divide_integers(left: Column, right: Column, invocation: Invocation) -> FixedColumn:
    dividend, divisor = integers(left), integers(right)
    assert isinstance(dividend, torch.Tensor)
    assert isinstance(divisor, torch.Tensor)
    wide, by = dividend.to(torch.int64), _without_zero(divisor.to(torch.int64))
    # The one quotient that int64 cannot hold.
    if any_valid((by == -1) & (wide == INT64[0]), invocation.valid):
        raise exact.overflow(invocation.type)
    values = torch.div(wide, by, rounding_mode="trunc")
    return exact.checked(FixedColumn(invocation.type, values), invocation.type, invocation.valid)


def _modulus(invocation: Invocation) -> Operand:
    left, right = (column(operand, invocation.rows, invocation.device) for operand in invocation.arguments)
    if pa.types.is_floating(invocation.type):
        dividend, divisor = floats(left), floats(right)
        assert isinstance(dividend, torch.Tensor)
        assert isinstance(divisor, torch.Tensor)
        return float_column(torch.fmod(dividend, divisor), invocation.type)
    _refuse_zero(invocation.arguments[1], invocation.valid)
    scale = max(scale_of(left.type), scale_of(right.type))
    first, second = _at_scale(left, scale, invocation), _at_scale(right, scale, invocation)
    digits = scale_of(invocation.type) - scale
    if isinstance(first, FixedColumn) and isinstance(second, FixedColumn):
        by = _without_zero(second.values.to(torch.int64))
        by = torch.where(by == -1, 1, by)
        rest = FixedColumn(invocation.type, torch.fmod(first.values.to(torch.int64), by), invocation.valid)
        return exact.rescale(rest, digits, invocation.type, invocation.valid)
    _, remainder = decimals.divide(exact.limbs(first, invocation.device), exact.limbs(second, invocation.device))
    return exact.from_limbs(decimals.rescale(remainder, digits, invocation.valid), invocation.type, invocation.valid)


def _negate(invocation: Invocation) -> Operand:
    (operand,) = invocation.arguments
    if pa.types.is_floating(invocation.type):
        values = floats(operand)
        assert isinstance(values, torch.Tensor)
        return float_column(-values, invocation.type)
    return exact.combine("subtract", Literal(0, operand.type), operand, invocation.type, invocation.valid)


def _at_scale(operand: Operand, scale: int, invocation: Invocation) -> Operand:
    """The operand's integers brought up to `scale` digits behind the point."""
    digits = scale - scale_of(operand.type)
    if digits == 0:
        return plain(operand) if not isinstance(operand, Literal) else operand
    type_ = pa.decimal128(decimals.MAXIMUM_PRECISION, scale)
    if isinstance(operand, Literal):
        return Literal(int(operand.value) * 10**digits, type_)
    return exact.combine("multiply", operand, Literal(10**digits, pa.int64()), type_, invocation.valid)


def _scaled_up(operand: Column, digits: int, invocation: Invocation) -> FixedColumn | WideDecimalColumn:
    values = plain(operand)
    assert not isinstance(values, BytesColumn)
    if digits <= 0:
        return values
    type_ = pa.decimal128(decimals.MAXIMUM_PRECISION, 0)
    scaled = exact.combine("multiply", values, Literal(10**digits, type_), type_, invocation.valid)
    assert isinstance(scaled, FixedColumn | WideDecimalColumn)
    return scaled


def _refuse_zero(divisor: Operand, valid: torch.Tensor | None) -> None:
    if isinstance(divisor, Literal):
        found = divisor.value == 0
    else:
        values = plain(divisor)
        match values:
            case FixedColumn(values=numbers):
                found = any_valid(numbers == 0, valid)
            case WideDecimalColumn(high=high, low=low):
                found = any_valid((high == 0) & (low == 0), valid)
            case _:
                found = False
    if found:
        raise DataError("division by zero")


def _without_zero(divisor: torch.Tensor) -> torch.Tensor:
    """Zeros that remain lie under NULLs."""
    return torch.where(divisor == 0, 1, divisor)


def _sum_type(types: Sequence[pa.DataType]) -> pa.DataType:
    left, right = types
    if is_temporal(left) or is_temporal(right):
        return temporal_result_type(left, right)
    if pa.types.is_decimal(common := common_number(left, right)):
        (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
        scale = max(s1, s2)
        return decimal_type(max(p1 - s1, p2 - s2) + scale + 1, scale)
    return common


def _product_type(types: Sequence[pa.DataType]) -> pa.DataType:
    left, right = types
    if pa.types.is_decimal(common := common_number(left, right)):
        (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
        return decimal_type(p1 + p2 + 1, s1 + s2)
    return common


def _quotient_type(types: Sequence[pa.DataType]) -> pa.DataType:
    left, right = types
    if pa.types.is_decimal(common := common_number(left, right)):
        (p1, s1), (_, s2) = decimal_parts(left), decimal_parts(right)
        scale = min(s1 + 4, decimals.MAXIMUM_PRECISION)
        return decimal_type(p1 - s1 + s2 + scale, scale)
    return common


def _remainder_type(types: Sequence[pa.DataType]) -> pa.DataType:
    left, right = types
    if pa.types.is_decimal(common := common_number(left, right)):
        (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
        scale = max(s1, s2)
        return decimal_type(min(p1 - s1, p2 - s2) + scale, scale)
    return common


FUNCTIONS: Final = (
    Function("add", _sum_type, _additive("add")),
    Function("subtract", _sum_type, _additive("subtract")),
    Function("multiply", _product_type, _multiply),
    Function("divide", _quotient_type, _divide),
    Function("modulus", _remainder_type, _modulus),
    Function("negate", same_as_first, _negate),
)
