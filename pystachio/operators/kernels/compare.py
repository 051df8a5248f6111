"""Comparisons of numbers: against a constant without widening the column, of columns of different units, of floats.

Functions are named as in the registry: equal, not_equal, lt, lte, gt, gte. Floats are ordered as in DuckDB and
PostgreSQL: NaN equals NaN and is greater than every other value.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import torch

from pystachio.operators import decimals
from pystachio.operators.column import FixedColumn, WideDecimalColumn
from pystachio.operators.decimals import Limbs
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import cheap_bounds, measured_bounds

MIRRORED: Final = {"equal": "equal", "not_equal": "not_equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}
"""left f right is right MIRRORED[f] left."""


def compare_constant(
    function: str, column: FixedColumn | WideDecimalColumn, constant: int | Fraction
) -> torch.Tensor | bool:
    """Integer-like values against a rational constant in the column's unit; a bool where the range decides for all."""
    value = constant.numerator
    if constant.denominator != 1:
        if function in ("equal", "not_equal"):
            return function == "not_equal"
        # Between two whole numbers: what is below it is at most the lower one.
        function, value = "lte" if function in ("lt", "lte") else "gt", value // constant.denominator
    if isinstance(column, WideDecimalColumn):
        return _compare_limbs(function, Limbs(column.high, column.low), _clamped(value, column.high.device))
    bounds = cheap_bounds(column)
    if bounds is not None:
        decided = _decide(function, bounds, value)
        if decided is not None:
            return decided
    return primitives(column.values.device).compare(function, column.values, value)


def compare_columns(
    function: str, left: FixedColumn | WideDecimalColumn, right: FixedColumn | WideDecimalColumn, ratio: Fraction
) -> torch.Tensor:
    """Integer-like values, where one unit of `left` is `ratio` units of `right` (or the inverse; one is an integer)."""
    if ratio < 1:
        return compare_columns(MIRRORED[function], right, left, 1 / ratio)
    factor = ratio.numerator
    if isinstance(left, FixedColumn) and isinstance(right, FixedColumn):
        if factor == 1:
            return primitives(left.values.device).compare(function, left.values, right.values)
        if _stays_in_int64(left, factor):
            scaled = primitives(left.values.device).arithmetic("multiply", left.values, factor, torch.int64)
            return primitives(left.values.device).compare(function, scaled, right.values)
    wide = limbs_of(left)
    if factor != 1:
        wide = decimals.multiply_or_fail(wide, decimals.constant(factor, wide.high.device), left.validity)
    return _compare_limbs(function, wide, limbs_of(right))


def compare_floats(function: str, left: torch.Tensor | float, right: torch.Tensor | float) -> torch.Tensor:
    """Floats in the total order with NaN last. At least one operand is a tensor."""
    if not isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        return compare_floats(MIRRORED[function], right, left)
    kernel = primitives(left.device)
    if not isinstance(right, torch.Tensor):
        if right != right:
            return _compare_with_nan(function, left)
        # Against an ordinary number only "greater" must be told about NaN.
        if function in ("gt", "gte"):
            return ~kernel.compare("lte" if function == "gt" else "lt", left, right)
        return kernel.compare(function, left, right)
    match function:
        case "equal":
            return kernel.compare("equal", left, right) | (left.isnan() & right.isnan())
        case "lt":
            return kernel.compare("lt", left, right) | (right.isnan() & ~left.isnan())
        case "gt":
            return kernel.compare("gt", left, right) | (left.isnan() & ~right.isnan())
        case _:
            opposite = {"not_equal": "equal", "lte": "gt", "gte": "lt"}[function]
            return ~compare_floats(opposite, left, right)


def limbs_of(column: FixedColumn | WideDecimalColumn) -> Limbs:
    """The column's scaled values in two limbs."""
    return Limbs(column.high, column.low) if isinstance(column, WideDecimalColumn) else decimals.widen(column.values)


def _compare_with_nan(function: str, values: torch.Tensor) -> torch.Tensor:
    nan = values.isnan()
    match function:
        case "equal" | "gte":
            return nan
        case "not_equal" | "lt":
            return ~nan
        case "lte":
            return torch.ones_like(nan)
        case _:
            return torch.zeros_like(nan)


def _compare_limbs(function: str, left: Limbs, right: Limbs) -> torch.Tensor:
    match function:
        case "equal":
            return decimals.equal(left, right)
        case "not_equal":
            return ~decimals.equal(left, right)
        case "lt":
            return decimals.less(left, right)
        case "gt":
            return decimals.less(right, left)
        case "lte":
            return ~decimals.less(right, left)
        case _:
            return ~decimals.less(left, right)


def _clamped(value: int, device: torch.device) -> Limbs:
    """A constant beyond 38 digits compares like the first number beyond them."""
    limit = 10**decimals.MAXIMUM_PRECISION
    return decimals.constant(max(-limit, min(limit, value)), device)


def _decide(function: str, bounds: tuple[int, int], value: int) -> bool | None:
    low, high = bounds
    match function:
        case "lt":
            return True if high < value else False if low >= value else None
        case "lte":
            return True if high <= value else False if low > value else None
        case "gt":
            return True if low > value else False if high <= value else None
        case "gte":
            return True if low >= value else False if high < value else None
        case _:
            outside = value < low or value > high
            return (function == "not_equal") if outside else None


def _stays_in_int64(column: FixedColumn, factor: int) -> bool:
    for bounds in (cheap_bounds(column), measured_bounds(column)):
        if bounds is not None and bounds[0] * factor >= -(2**63) and bounds[1] * factor < 2**63:
            return True
    return False
