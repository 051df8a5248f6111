"""Substrait's literals in the encoding of `expressions.Literal`."""

from __future__ import annotations

import math
from typing import Any, Final

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.expressions import Literal
from pystachio.planner.substrait.types import (
    DURATION_VARIATION,
    UNSIGNED_VARIATION,
    decimal_type,
    read_type,
    time_type,
    time_unit,
)

_SIGNED: Final = {"i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64()}
_UNSIGNED: Final = {"i8": pa.uint8(), "i16": pa.uint16(), "i32": pa.uint32(), "i64": pa.uint64()}

_AS_IS: Final = {
    "boolean": pa.bool_(),
    "fp32": pa.float32(),
    "fp64": pa.float64(),
    "string": pa.string(),
    "fixed_char": pa.string(),
    "binary": pa.binary(),
    "fixed_binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
}

# DataFusion writes a NULL without a type as a user-defined type; any type does for it.
_UNTYPED_NULL: Final = pa.int32()

_SECONDS_PER_DAY: Final = 86_400
_MONTHS_PER_YEAR: Final = 12
_NANOSECOND_DIGITS: Final = 9


def read_literal(message: algebra_pb2.Expression.Literal) -> Literal:
    """The constant; Unsupported for nested types, InvalidRequest for a value that its type cannot hold."""
    kind = message.WhichOneof("literal_type")
    if kind is None:
        raise InvalidRequest("a Substrait literal without a value")
    if kind == "null":
        untyped = message.null.HasField("user_defined")
        return Literal(None, _UNTYPED_NULL if untyped else read_type(message.null)[0])
    value = getattr(message, kind)
    if kind in _SIGNED:
        return _integer(kind, value, message.type_variation_reference)
    if kind in _AS_IS:
        # One NaN for all: it does not equal another, and expressions with it are to equal each other.
        return Literal(math.nan if value != value else value, _AS_IS[kind])
    match kind:
        case "var_char":
            return Literal(value.value, pa.string())
        case "decimal":
            return _decimal(value)
        case "precision_timestamp":
            return Literal(value.value, pa.timestamp(time_unit(value.precision)))
        case "precision_timestamp_tz":
            return Literal(value.value, pa.timestamp(time_unit(value.precision), "UTC"))
        case "precision_time":
            return Literal(value.value, time_type(value.precision))
        case "interval_year_to_month":
            return _interval(months=_months(value))
        case "interval_day_to_second":
            if message.type_variation_reference == DURATION_VARIATION:
                return _duration(value)
            return _interval(days=value.days, nanoseconds=_nanoseconds(value))
        case "interval_compound":
            days = value.interval_day_to_second
            return _interval(_months(value.interval_year_to_month), days.days, _nanoseconds(days))
        case _:
            raise Unsupported(f"a literal of the type {kind}")


def _integer(kind: str, value: int, variation: int) -> Literal:
    if variation == UNSIGNED_VARIATION:
        type_ = _UNSIGNED[kind]
        return Literal(value & ((1 << type_.bit_width) - 1), type_)
    type_ = _SIGNED[kind]
    limit = 1 << (type_.bit_width - 1)
    if not -limit <= value < limit:
        raise InvalidRequest(f"a literal that its type {kind} cannot hold: {value}")
    return Literal(value, type_)


def _decimal(value: Any) -> Literal:
    type_ = decimal_type(value.precision, value.scale)
    if len(value.value) != 16:
        raise InvalidRequest(f"a decimal literal of {len(value.value)} bytes instead of 16")
    scaled = int.from_bytes(value.value, "little", signed=True)
    if abs(scaled) >= 10**type_.precision:
        raise InvalidRequest(f"a decimal literal that its type {type_} cannot hold: {scaled}")
    return Literal(scaled, type_)


def _interval(months: int = 0, days: int = 0, nanoseconds: int = 0) -> Literal:
    return Literal((months, days, nanoseconds), pa.month_day_nano_interval())


def _months(value: Any) -> int:
    return int(value.years) * _MONTHS_PER_YEAR + int(value.months)


def _nanoseconds(value: Any) -> int:
    """Seconds and the part below, without the days."""
    seconds = int(value.seconds) * 10**_NANOSECOND_DIGITS
    if value.WhichOneof("precision_mode") == "microseconds":
        return seconds + int(value.microseconds) * 1000
    time_unit(value.precision)
    return seconds + int(value.subseconds) * int(10 ** (_NANOSECOND_DIGITS - value.precision))


def _duration(value: Any) -> Literal:
    unit = time_unit(value.precision)
    whole = int(value.days) * _SECONDS_PER_DAY + int(value.seconds)
    return Literal(whole * int(10**value.precision) + int(value.subseconds), pa.duration(unit))
