"""From the state of all of a group's rows to the value of an aggregate function."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch

from pystachio.errors import Unsupported
from pystachio.operators import decimals
from pystachio.operators.aggregation.states import StateKind, floats_of
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn, WideDecimalColumn
from pystachio.operators.functions.exact import checked, from_limbs, limbs
from pystachio.operators.functions.types import scale_of
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.arithmetic import divide_rounded
from pystachio.operators.kernels.bounds import bounds_of
from pystachio.operators.kernels.selection import device_of


def states_of(function: str, argument: pa.DataType | None) -> tuple[StateKind, ...]:
    """What has to be folded for an aggregate function over an argument of that type (None: count(*))."""
    exact = argument is not None and not pa.types.is_floating(argument)
    total = StateKind.SUM if exact else StateKind.FLOAT_SUM
    match function:
        case "count":
            return (StateKind.COUNT,)
        case "sum":
            return (total,)
        case "avg":
            return (total, StateKind.COUNT)
        case "min" | "bool_and":
            return (StateKind.MINIMUM,)
        case "max" | "bool_or":
            return (StateKind.MAXIMUM,)
        case "first_value" | "any_value":
            return (StateKind.FIRST,)
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return (StateKind.MOMENTS,)
        case _:
            raise Unsupported(f"the aggregate function {function}")


def result(function: str, type_: pa.DataType, columns: Sequence[Column]) -> Column:
    """The function's value per group from its state columns. DataError when an exact result is outside `type_`."""
    match function:
        case "sum":
            return _total(columns[0], type_)
        case "avg":
            return _average(columns[0], columns[1], type_)
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return _spread(function, columns)
        case _:
            return _typed(columns[0], type_)


def _total(column: Column, type_: pa.DataType) -> Column:
    match column:
        case FixedColumn() if pa.types.is_floating(type_):
            return FixedColumn(type_, floats_of(column).to(_float_dtype(type_)), column.validity)
        case FixedColumn():
            return checked(column, type_, column.validity)
        case _:
            return from_limbs(limbs(column, device_of(column)), type_, column.validity)


def _average(total: Column, count: Column, type_: pa.DataType) -> Column:
    counts = _counts(count)
    validity = _or_none(counts > 0)
    divisor = counts.clamp(min=1)
    if pa.types.is_floating(type_):
        return FixedColumn(type_, (floats_of(total) / divisor).to(_float_dtype(type_)), validity)
    digits = scale_of(type_) - scale_of(total.type)
    if isinstance(total, FixedColumn) and digits >= 0:
        bounds = bounds_of(total)
        if bounds is not None and max(abs(bounds[0]), abs(bounds[1])) * 10**digits < 2**62:
            # What stands under a NULL may wrap; nobody reads it.
            values = divide_rounded(total.values.to(torch.int64) * 10**digits, divisor)
            return checked(FixedColumn(type_, values, validity), type_, validity)
    quotient = _divide_scaled(limbs(total, divisor.device), divisor, digits, validity)
    return from_limbs(quotient, type_, validity)


def _divide_scaled(
    total: decimals.Limbs, divisor: torch.Tensor, digits: int, validity: torch.Tensor | None
) -> decimals.Limbs:
    """total * 10**digits / divisor rounded half away from zero; the product itself may be beyond 128 bits."""
    wide = decimals.widen(divisor)
    if digits < 0:
        return decimals.divide_rounded(total, decimals.multiply(wide, decimals.constant(10**-digits, divisor.device)))
    whole, rest = decimals.divide(total, wide)
    fraction = decimals.divide_rounded(decimals.rescale(rest, digits, validity), wide)
    return decimals.add(decimals.rescale(whole, digits, validity), fraction)


def _spread(function: str, columns: Sequence[Column]) -> FixedColumn:
    counts, squares = _counts(columns[0]), floats_of(columns[2]).clamp(min=0.0)
    free = counts - 1 if function.endswith("samp") else counts
    variance = squares / free.clamp(min=1)
    values = torch.sqrt(variance) if function.startswith("stddev") else variance
    return FixedColumn(pa.float64(), values, _or_none(free > 0))


def _typed(column: Column, type_: pa.DataType) -> Column:
    match column:
        case FixedColumn(values=values, validity=validity, bounds=bounds):
            return FixedColumn(type_, values, validity, bounds)
        case WideDecimalColumn(high=high, low=low, validity=validity):
            return WideDecimalColumn(type_, high, low, validity)
        case BytesColumn() | ViewColumn() | DictionaryColumn():
            return column


def _counts(column: Column) -> torch.Tensor:
    assert isinstance(column, FixedColumn)
    return column.values


def _or_none(validity: torch.Tensor) -> torch.Tensor | None:
    return None if primitives(validity.device).all_true(validity) else validity


def _float_dtype(type_: pa.DataType) -> torch.dtype:
    return torch.float64 if type_ == pa.float64() else torch.float32
