"""Substrait's types as Arrow types, normalised (`operators.column.normalise_type`).

The layouts that DataFusion tells apart by type variation (string, large string and string view; 32 and 64 bit offsets)
are one logical type here. Its unsigned integers are variation 1 of the signed ones.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from substrait import type_pb2

from pystachio.errors import InvalidRequest, Unsupported

UNSIGNED_VARIATION: Final = 1
DURATION_VARIATION: Final = 1
MAXIMUM_PRECISION: Final = 38

_INTEGERS: Final = {
    "i8": (pa.int8(), pa.uint8()),
    "i16": (pa.int16(), pa.uint16()),
    "i32": (pa.int32(), pa.uint32()),
    "i64": (pa.int64(), pa.uint64()),
}

# Layouts of one logical type: any variation that DataFusion writes.
_LAYOUTS: Final = {
    "string": (pa.string(), 3),
    "binary": (pa.binary(), 3),
    "varchar": (pa.string(), 1),
    "fixed_char": (pa.string(), 1),
    "fixed_binary": (pa.binary(), 1),
}

_PLAIN: Final = {
    "bool": pa.bool_(),
    "fp32": pa.float32(),
    "fp64": pa.float64(),
    "timestamp": pa.timestamp("us"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "interval_year": pa.month_day_nano_interval(),
    "interval_compound": pa.month_day_nano_interval(),
}

_UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}


def read_type(message: type_pb2.Type) -> tuple[pa.DataType, bool]:
    """The type and whether it admits NULL (unspecified nullability does)."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest("a Substrait type without a kind")
    body = getattr(message, kind)
    nullability = getattr(body, "nullability", type_pb2.Type.NULLABILITY_UNSPECIFIED)
    variation = getattr(body, "type_variation_reference", 0)
    return _arrow_type(kind, body, variation), nullability != type_pb2.Type.NULLABILITY_REQUIRED


def _arrow_type(kind: str, body: type_pb2.Type, variation: int) -> pa.DataType:
    if kind in _INTEGERS and variation <= UNSIGNED_VARIATION:
        return _INTEGERS[kind][variation]
    if kind in _LAYOUTS and variation < _LAYOUTS[kind][1]:
        return _LAYOUTS[kind][0]
    if kind == "date" and variation <= 1:
        return pa.date64() if variation else pa.date32()
    if kind == "decimal" and variation <= 1:
        return decimal_type(body.precision, body.scale)
    if kind == "interval_day" and variation == DURATION_VARIATION:
        return pa.duration(time_unit(body.precision))
    if kind == "interval_day" and variation == 0:
        return pa.month_day_nano_interval()
    if kind in ("interval_year", "interval_compound") or (kind in _PLAIN and variation == 0):
        return _PLAIN[kind]
    if kind == "precision_timestamp" and variation == 0:
        return pa.timestamp(time_unit(body.precision))
    if kind == "precision_timestamp_tz" and variation == 0:
        return pa.timestamp(time_unit(body.precision), "UTC")
    if kind == "precision_time" and variation <= 1:
        return time_type(body.precision)
    named = f"the type {kind}" if variation == 0 else f"variation {variation} of the type {kind}"
    raise Unsupported(named)


def is_plannable(type_: pa.DataType) -> bool:
    """Whether columns of the type can take part in queries: Substrait and the engine have it."""
    missing = pa.types.is_nested(type_) or pa.types.is_union(type_) or pa.types.is_null(type_)
    return not (missing or pa.types.is_float16(type_) or isinstance(type_, pa.BaseExtensionType))


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """A decimal of at most 38 digits; InvalidRequest for digits that cannot be."""
    if not 1 <= precision <= MAXIMUM_PRECISION or not 0 <= scale <= precision:
        raise InvalidRequest(f"a decimal of {precision} digits, {scale} of them behind the point")
    return pa.decimal128(precision, scale)


def time_unit(precision: int) -> str:
    """Arrow's unit for a number of digits behind the second."""
    if precision not in _UNITS:
        raise Unsupported(f"a time with {precision} digits behind the second")
    return _UNITS[precision]


def time_type(precision: int) -> pa.DataType:
    """The time of day with a number of digits behind the second."""
    unit = time_unit(precision)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
