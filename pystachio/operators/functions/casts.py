"""CAST between all types that have a sensible conversion.

Numbers round half away from zero when digits are lost (floats to integers: half to even, as in DuckDB). A value that
does not fit its new type is a DataError, or NULL where the cast says so.
"""

from __future__ import annotations

import pyarrow as pa
import torch

from pystachio.errors import DataError, Unsupported
from pystachio.operators import decimals
from pystachio.operators.arrow import column_to_arrow
from pystachio.operators.column import BytesColumn, Column, FixedColumn, WideDecimalColumn
from pystachio.operators.functions import exact
from pystachio.operators.functions.operands import float_dtype, is_text, unscaled
from pystachio.operators.functions.text_casts import from_text, to_text
from pystachio.operators.functions.time_values import convert_time, split_days
from pystachio.operators.functions.types import scale_of
from pystachio.operators.functions.units import is_number, step_of
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.arithmetic import round_half_away
from pystachio.operators.kernels.floats import whole_floats
from pystachio.operators.kernels.selection import all_null, concat, device_of, plain, slice_column
from pystachio.operators.placement import column_on


def cast(column: Column, type_: pa.DataType, *, null_on_failure: bool = False) -> Column:
    """The column's values as `type_`. Raises DataError for a value that does not fit, Unsupported for other types."""
    if column.type == type_:
        return column
    if pa.types.is_null(column.type):
        return all_null(type_, len(column), device_of(column))
    values = plain(column)
    try:
        return _cast(values, type_)
    except DataError:
        if not null_on_failure:
            raise
        return _cast_or_null(values, type_)


def _cast_or_null(values: Column, type_: pa.DataType) -> Column:
    """Halves the rows until those that fail stand alone: the price is paid by casts that do fail."""
    rows = len(values)
    if rows <= 1:
        return all_null(type_, rows, device_of(values))
    middle = rows // 2
    halves = [slice_column(values, 0, middle), slice_column(values, middle, rows)]
    return concat([cast(half, type_, null_on_failure=True) for half in halves])


def _cast(values: FixedColumn | WideDecimalColumn | BytesColumn, type_: pa.DataType) -> Column:
    source = values.type
    if isinstance(values, BytesColumn):
        return _retyped(values, type_) if is_text(type_) else column_on(from_text(values, type_), device_of(values))
    if is_text(type_):
        return column_on(to_text(values), device_of(values))
    if pa.types.is_floating(source):
        assert isinstance(values, FixedColumn)
        return _from_floats(values, type_)
    if pa.types.is_floating(type_):
        return FixedColumn(type_, _to_floats(values).to(float_dtype(type_)), values.validity)
    if is_number(source) and is_number(type_):
        return _between_numbers(values, type_)
    if not isinstance(values, FixedColumn):
        raise Unsupported(f"a cast of {source} to {type_}")
    if is_number(source) or is_number(type_):
        return _reinterpreted(values, type_)
    return _between_times(values, type_)


def _retyped(values: BytesColumn, type_: pa.DataType) -> BytesColumn:
    """Strings and bytes share their layout; bytes become strings only when they are UTF-8."""
    if pa.types.is_string(type_):
        array = column_to_arrow(values)
        try:
            array.cast(type_)
        except pa.ArrowInvalid as error:
            raise DataError(f"bytes that are no UTF-8 text: {error}") from error
    return BytesColumn(type_, values.places, values.data, values.validity)


def _to_floats(values: FixedColumn | WideDecimalColumn) -> torch.Tensor:
    if not is_number(values.type):
        raise Unsupported(f"a cast of {values.type} to a floating-point number")
    return unscaled(values)


def _from_floats(values: FixedColumn, type_: pa.DataType) -> Column:
    numbers, valid = values.values, values.validity
    if pa.types.is_floating(type_):
        return FixedColumn(type_, numbers.to(float_dtype(type_)), valid)
    if pa.types.is_boolean(type_):
        return FixedColumn(type_, numbers != 0, valid)
    if not is_number(type_):
        raise Unsupported(f"a cast of {values.type} to {type_}")
    if pa.types.is_integer(type_) and numbers.device.type == "cpu" and numbers.itemsize >= 4:
        found = whole_floats(numbers, valid)
        if found is not None:
            return exact.checked(FixedColumn(type_, found[0], valid, found[1]), type_, valid)
    wide = numbers.to(torch.float64)
    whole = round_half_away(wide * 10.0**type_.scale) if pa.types.is_decimal(type_) else torch.round(wide)
    # Written so that NaN is outside too.
    inside = whole.abs() < (2.0**63 if pa.types.is_integer(type_) else 1.7e38)
    if not primitives(inside.device).all_true(inside if valid is None else inside | ~valid):
        raise exact.overflow(type_)
    kept = torch.where(inside, whole, 0.0)
    if primitives(kept.device).all_true(kept.abs() < 2.0**63):
        return exact.checked(FixedColumn(type_, kept.to(torch.int64), valid), type_, valid)
    return exact.from_limbs(decimals.from_float(kept), type_, valid)


def _between_numbers(values: FixedColumn | WideDecimalColumn, type_: pa.DataType) -> Column:
    valid = values.validity
    if pa.types.is_boolean(type_):
        limbs = exact.limbs(values, device_of(values))
        return FixedColumn(type_, (limbs.low != 0) | (limbs.high != 0), valid)
    digits = scale_of(type_) - scale_of(values.type)
    if isinstance(values, WideDecimalColumn):
        rescaled = decimals.rescale(decimals.Limbs(values.high, values.low), digits, valid)
        return exact.from_limbs(rescaled, type_, valid)
    if values.values.dtype == torch.bool:
        values = FixedColumn(values.type, values.values.to(torch.int8), valid, (0, 1))
    return exact.rescale(values, digits, type_, valid)


def _reinterpreted(values: FixedColumn, type_: pa.DataType) -> FixedColumn:
    """Between integers and dates, times or spans: the integer counts the type's steps."""
    integer = pa.types.is_integer(values.type) or pa.types.is_integer(type_)
    if not integer or step_of(values.type) is None or step_of(type_) is None:
        raise Unsupported(f"a cast of {values.type} to {type_}")
    return exact.checked(values, type_, values.validity)


def _between_times(values: FixedColumn, type_: pa.DataType) -> Column:
    source, valid = values.type, values.validity
    if pa.types.is_time(type_) and pa.types.is_timestamp(source):
        _, rest, per_second = split_days(values)
        assert rest is not None
        return convert_time(
            FixedColumn(pa.time64("us" if per_second <= 10**6 else "ns"), _micro(rest, per_second)), type_, valid
        )
    if pa.types.is_duration(source) != pa.types.is_duration(type_) or pa.types.is_time(source) != pa.types.is_time(
        type_
    ):
        raise Unsupported(f"a cast of {source} to {type_}")
    return convert_time(values, type_, valid)


def _micro(rest: torch.Tensor, per_second: int) -> torch.Tensor:
    return rest * (10**6 // per_second) if per_second <= 10**6 else rest
