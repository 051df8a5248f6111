"""CAST from and to strings."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pystachio.errors import DataError, Unsupported
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, Column, FixedColumn, WideDecimalColumn
from pystachio.operators.kernels.strings import arrow_view
from pystachio.operators.placement import on_host

_TRUE: Final = pa.array(["true", "t", "yes", "y", "on", "1"], pa.large_string())
_FALSE: Final = pa.array(["false", "f", "no", "n", "off", "0"], pa.large_string())
_ZONE: Final = r":[0-9.]+(Z|[+-]\d\d(:?\d\d)?)\z"
_DIGITS: Final = Context(prec=100)


def from_text(column: BytesColumn, type_: pa.DataType) -> Column:
    """Strings parsed as `type_`, spaces around them ignored. DataError when one cannot be."""
    texts = pc.utf8_trim_whitespace(arrow_view(column))
    try:
        parsed = _parse(texts, type_)
    except (pa.ArrowInvalid, InvalidOperation) as error:
        raise DataError(f"a string is no {type_}: {error}") from error
    return column_from_arrow(parsed)


def _parse(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return _parse_booleans(texts)
    if pa.types.is_decimal(type_):
        return _parse_decimals(texts, type_)
    if pa.types.is_integer(type_):
        texts = pc.replace_substring_regex(texts, r"\A\+", "")
    if pa.types.is_time(type_):
        # Arrow parses no times of day by themselves.
        moments = pc.binary_join_element_wise(pa.scalar("1970-01-01 ", texts.type), texts, pa.scalar("", texts.type))
        return moments.cast(pa.timestamp(type_.unit)).cast(type_)
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)):
        raise Unsupported(f"a cast of a string to {type_}")
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid as error:
        if not (pa.types.is_date32(type_) or (pa.types.is_timestamp(type_) and type_.tz is None)):
            raise
        try:
            return _parse_moments(texts, type_)
        except pa.ArrowInvalid:
            raise error from None


def _parse_moments(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Dates with a time, which goes, and times with a zone, as UTC."""
    zoned = pc.or_kleene(pc.match_substring_regex(texts, _ZONE), texts.is_null())
    suffix = pc.if_else(zoned, "", "Z").cast(texts.type)
    in_utc = pc.binary_join_element_wise(texts, suffix, pa.scalar("", texts.type))
    unit = type_.unit if pa.types.is_timestamp(type_) else "us"
    return in_utc.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit)).cast(type_, safe=False)


def _parse_booleans(texts: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(texts)
    true, false = pc.is_in(lower, _TRUE), pc.is_in(lower, _FALSE)
    if not pc.all(pc.or_(pc.or_(true, false), texts.is_null()), min_count=0).as_py():
        raise DataError("a string is no bool: neither true nor false")
    return pc.if_else(texts.is_valid(), true, pa.scalar(None, pa.bool_()))


def _parse_decimals(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """In Python, once per distinct string: Arrow refuses to round."""
    encoded = texts.dictionary_encode()
    step = Decimal(1).scaleb(-type_.scale)
    values = [Decimal(text).quantize(step, ROUND_HALF_UP, _DIGITS) for text in encoded.dictionary.to_pylist()]
    if any(not value.is_finite() for value in values):
        raise DataError(f"a string is no {type_}")
    return pa.array(values, type_).take(encoded.indices)


def to_text(column: FixedColumn | WideDecimalColumn) -> Column:
    """Values as SQL prints them: dates in ISO 8601, decimals with all their digits, floats as short as can be."""
    return column_from_arrow(_formatter(column.type)(column))


def _formatter(type_: pa.DataType) -> Callable[[FixedColumn | WideDecimalColumn], pa.Array]:
    if pa.types.is_decimal(type_):
        return _format_decimals
    if pa.types.is_floating(type_):
        return _format_floats
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        return _format_times
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_date(type_):
        return lambda column: column_to_arrow(column).cast(pa.large_string())
    raise Unsupported(f"a cast of {type_} to a string")


def _format_decimals(column: FixedColumn | WideDecimalColumn) -> pa.Array:
    scale: int = column.type.scale
    unscaled = pa.decimal128(38, 0)
    whole: Column
    if isinstance(column, FixedColumn):
        whole = FixedColumn(unscaled, column.values, column.validity)
    else:
        whole = WideDecimalColumn(unscaled, column.high, column.low, column.validity)
    digits = column_to_arrow(whole).cast(pa.large_string())
    if scale <= 0:
        return digits
    negative = pc.starts_with(digits, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    before, behind = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    sign = pc.if_else(negative, "-", "").cast(pa.large_string())
    joined = pc.binary_join_element_wise(before, behind, pa.scalar(".", pa.large_string()))
    return pc.binary_join_element_wise(sign, joined, pa.scalar("", pa.large_string()))


def _format_floats(column: FixedColumn | WideDecimalColumn) -> pa.Array:
    """By numpy: the shortest digits that read back as the same number, with an exponent only beyond 16 digits."""
    assert isinstance(column, FixedColumn)
    texts = pa.array(on_host(column.values).numpy().astype(str), pa.large_string())
    if column.validity is None:
        return texts
    return pc.if_else(pa.array(on_host(column.validity).numpy()), texts, pa.scalar(None, pa.large_string()))


def _format_times(column: FixedColumn | WideDecimalColumn) -> pa.Array:
    """Without zeros at the end of the fraction."""
    texts = column_to_arrow(column).cast(pa.large_string())
    return pc.replace_substring_regex(
        pc.replace_substring_regex(texts, r"(\.\d*?)0+(Z?)\z", r"\1\2"), r"\.(Z?)\z", r"\1"
    )
