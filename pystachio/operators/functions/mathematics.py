"""Rounding, absolute values, powers, logarithms and trigonometry.

Floating-point functions follow IEEE 754: a value outside a function's domain gives NaN, not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import Unsupported
from pystachio.operators import decimals
from pystachio.operators.column import BytesColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.decimals import Limbs
from pystachio.operators.expressions import Literal
from pystachio.operators.functions import exact
from pystachio.operators.functions.arithmetic import float_column
from pystachio.operators.functions.function import Function, Invocation, Kernel, Operand, always, same_as_first
from pystachio.operators.functions.operands import any_valid, boolean_column, column, floats, integers
from pystachio.operators.functions.types import common_type, scale_of
from pystachio.operators.kernels.arithmetic import INT64, round_half_away
from pystachio.operators.kernels.dates import floor_divide
from pystachio.operators.kernels.selection import plain


def _numbers(invocation: Invocation) -> FixedColumn | WideDecimalColumn:
    values = plain(column(invocation.arguments[0], invocation.rows, invocation.device))
    assert not isinstance(values, BytesColumn)
    return values


def _is_float(values: FixedColumn | WideDecimalColumn) -> bool:
    return isinstance(values, FixedColumn) and values.values.dtype.is_floating_point


def _of_floats(function: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        values = floats(_numbers(invocation))
        assert isinstance(values, torch.Tensor)
        return float_column(function(values), invocation.type)

    return kernel


def _of_two_floats(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(invocation: Invocation) -> Operand:
        left, right = (
            floats(plain(column(operand, invocation.rows, invocation.device))) for operand in invocation.arguments
        )
        assert isinstance(left, torch.Tensor)
        assert isinstance(right, torch.Tensor)
        return float_column(function(left, right), invocation.type)

    return kernel


def _absolute(invocation: Invocation) -> Operand:
    values = _numbers(invocation)
    if isinstance(values, WideDecimalColumn):
        limbs = decimals.absolute(Limbs(values.high, values.low))
        return exact.from_limbs(limbs, invocation.type, invocation.valid)
    if _is_float(values):
        return float_column(values.values.abs(), invocation.type)
    # The smallest value of a dtype has no positive twin: one step wider it has, and int64 has no wider step.
    wide = values.values.to(torch.int64)
    if any_valid(wide == INT64[0], invocation.valid):
        raise exact.overflow(invocation.type)
    return exact.checked(FixedColumn(invocation.type, wide.abs()), invocation.type, invocation.valid)


def _sign(invocation: Invocation) -> Operand:
    values = floats(_numbers(invocation))
    assert isinstance(values, torch.Tensor)
    sign = torch.where(values.isnan(), values, torch.sign(values))
    if pa.types.is_floating(invocation.type):
        return float_column(sign, invocation.type)
    whole = torch.sign(values).to(torch.int64) * 10 ** scale_of(invocation.type)
    return exact.checked(FixedColumn(invocation.type, whole), invocation.type, invocation.valid)


def _whole(direction: str) -> Kernel:
    """floor, ceil or trunc."""
    of_floats = {"floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc}[direction]

    def kernel(invocation: Invocation) -> Operand:
        values = _numbers(invocation)
        if _is_float(values):
            assert isinstance(values, FixedColumn)
            return float_column(of_floats(values.values), invocation.type)
        if pa.types.is_floating(invocation.type):
            numbers = floats(values)
            assert isinstance(numbers, torch.Tensor)
            return float_column(of_floats(numbers), invocation.type)
        scale = scale_of(values.type)
        whole = _whole_limbs(values, scale, direction)
        digits = scale_of(invocation.type)
        return exact.from_limbs(decimals.rescale(whole, digits, invocation.valid), invocation.type, invocation.valid)

    return kernel


def _whole_limbs(values: FixedColumn | WideDecimalColumn, scale: int, direction: str) -> Limbs:
    if isinstance(values, FixedColumn) and scale <= 18:
        wide = values.values.to(torch.int64)
        power = 10**scale
        match direction:
            case "floor":
                return decimals.widen(floor_divide(wide, power))
            case "ceil":
                return decimals.widen(-floor_divide(-wide, power))
            case _:
                return decimals.widen(torch.div(wide, power, rounding_mode="trunc"))
    limbs = exact.limbs(values, values.validity.device if values.validity is not None else _device(values))
    quotient, rest = decimals.divide(limbs, decimals.constant(10**scale, limbs.high.device))
    one = decimals.constant(1, limbs.high.device)
    nonzero = (rest.high != 0) | (rest.low != 0)
    match direction:
        case "floor":
            return decimals.where(nonzero & (limbs.high < 0), decimals.subtract(quotient, one), quotient)
        case "ceil":
            return decimals.where(nonzero & (limbs.high >= 0), decimals.add(quotient, one), quotient)
        case _:
            return quotient


def _device(values: FixedColumn | WideDecimalColumn) -> torch.device:
    return values.values.device if isinstance(values, FixedColumn) else values.high.device


def _round(invocation: Invocation) -> Operand:
    """Halves away from zero; the second argument is the number of digits kept behind the point, or zeroed before it."""
    digits = invocation.arguments[1] if len(invocation.arguments) > 1 else Literal(0, pa.int64())
    if not isinstance(digits, Literal):
        raise Unsupported("round to a number of digits that is not a constant")
    kept = int(digits.value)
    values = _numbers(invocation)
    if _is_float(values) or pa.types.is_floating(invocation.type):
        numbers = floats(values)
        assert isinstance(numbers, torch.Tensor)
        return float_column(_round_floats(numbers, kept), invocation.type)
    scale = scale_of(values.type)
    drop = max(scale - kept, 0)
    limbs = exact.limbs(values, _device(values))
    rounded = decimals.rescale(limbs, -drop, invocation.valid)
    result = decimals.rescale(rounded, scale_of(invocation.type) - (scale - drop), invocation.valid)
    return exact.from_limbs(result, invocation.type, invocation.valid)


def _round_floats(values: torch.Tensor, digits: int) -> torch.Tensor:
    if digits == 0:
        return round_half_away(values)
    power = 10.0 ** abs(digits)
    if digits < 0:
        return round_half_away(values / power) * power
    rounded = round_half_away(values * power) / power
    # Beyond 2**53 there is nothing behind the point, and the product may be infinite.
    return torch.where(rounded.isfinite(), rounded, values)


def _rounded_type(types: Sequence[pa.DataType]) -> pa.DataType:
    return types[0] if pa.types.is_decimal(types[0]) or pa.types.is_floating(types[0]) else pa.float64()


def _is_nan(invocation: Invocation) -> Operand:
    values = floats(_numbers(invocation))
    assert isinstance(values, torch.Tensor)
    return boolean_column(values.isnan())


def _common_divisor(invocation: Invocation) -> Operand:
    """gcd(0, 0) is 0; the sign of the arguments does not matter."""
    left, right = (integers(column(operand, invocation.rows, invocation.device)) for operand in invocation.arguments)
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    divisor = torch.gcd(left.to(torch.int64), right.to(torch.int64)).abs()
    return exact.checked(FixedColumn(invocation.type, divisor), invocation.type, invocation.valid)


def _log(invocation: Invocation) -> Operand:
    """log(base, value), or the logarithm to base 10 of one argument."""
    *base, value = (
        floats(plain(column(operand, invocation.rows, invocation.device))) for operand in invocation.arguments
    )
    assert isinstance(value, torch.Tensor)
    if not base:
        return float_column(torch.log10(value), invocation.type)
    assert isinstance(base[0], torch.Tensor)
    return float_column(torch.log(value) / torch.log(base[0]), invocation.type)


_FLOAT: Final = always(pa.float64())

FUNCTIONS: Final = (
    Function("abs", same_as_first, _absolute),
    Function("sign", same_as_first, _sign),
    Function("round", _rounded_type, _round),
    Function("floor", same_as_first, _whole("floor")),
    Function("ceil", same_as_first, _whole("ceil")),
    Function("trunc", same_as_first, _whole("trunc")),
    Function("power", _FLOAT, _of_two_floats(torch.pow)),
    Function("atan2", _FLOAT, _of_two_floats(torch.atan2)),
    Function("log", _FLOAT, _log),
    Function("isnan", always(pa.bool_()), _is_nan),
    Function("gcd", common_type, _common_divisor),
    *(
        Function(name, _FLOAT, _of_floats(function))
        for name, function in (
            ("sqrt", torch.sqrt),
            ("cot", lambda values: 1 / torch.tan(values)),
            ("cbrt", lambda values: torch.sign(values) * torch.pow(values.abs(), 1 / 3)),
            ("exp", torch.exp),
            ("ln", torch.log),
            ("log10", torch.log10),
            ("log2", torch.log2),
            ("sin", torch.sin),
            ("cos", torch.cos),
            ("tan", torch.tan),
            ("asin", torch.asin),
            ("acos", torch.acos),
            ("atan", torch.atan),
            ("sinh", torch.sinh),
            ("cosh", torch.cosh),
            ("tanh", torch.tanh),
            ("asinh", torch.asinh),
            ("acosh", torch.acosh),
            ("atanh", torch.atanh),
            ("degrees", torch.rad2deg),
            ("radians", torch.deg2rad),
        )
    ),
)
