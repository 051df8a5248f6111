"""The values of a statement's parameters on their way to a node, each with its type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from msgspec import Meta, Struct

from pystachio.errors import InvalidRequest
from pystachio.parameter_values import no_parameter, plain

_LONGEST = 100
_Short = Annotated[str, Meta(max_length=_LONGEST)]


class BytesValue(Struct, frozen=True, forbid_unknown_fields=True, tag="bytes"):
    content: bytes


class DecimalValue(Struct, frozen=True, forbid_unknown_fields=True, tag="decimal"):
    digits: _Short


class DateValue(Struct, frozen=True, forbid_unknown_fields=True, tag="date"):
    iso: _Short


class TimeValue(Struct, frozen=True, forbid_unknown_fields=True, tag="time"):
    iso: _Short


class TimestampValue(Struct, frozen=True, forbid_unknown_fields=True, tag="timestamp"):
    iso: _Short


class DurationValue(Struct, frozen=True, forbid_unknown_fields=True, tag="duration"):
    days: int
    seconds: int
    microseconds: int


Value = (
    None | bool | int | float | str | BytesValue | DecimalValue | DateValue | TimeValue | TimestampValue | DurationValue
)


def values_of(parameters: Sequence[Any]) -> tuple[Value, ...]:
    """Raises InvalidRequest for a value that has no type in SQL."""
    if not isinstance(parameters, Sequence) or isinstance(parameters, str | bytes):
        raise InvalidRequest(f"parameters must be a list or a tuple, not {type(parameters).__name__}")
    return tuple(map(_value, parameters))


def _value(parameter: Any) -> Value:
    parameter = plain(parameter)
    match parameter:
        case None | bool() | float() | str():
            return parameter
        case bytes():
            return BytesValue(parameter)
        case int() if not -(2**63) <= parameter < 2**63:
            raise InvalidRequest("an integer parameter beyond 64 bits")
        case int():
            return parameter
        case Decimal():
            return DecimalValue(str(parameter))
        case dt.datetime():
            return TimestampValue(parameter.isoformat())
        case dt.date():
            return DateValue(parameter.isoformat())
        case dt.time():
            return TimeValue(parameter.isoformat())
        case dt.timedelta():
            return DurationValue(parameter.days, parameter.seconds, parameter.microseconds)
        case _:
            raise no_parameter(parameter)


def parameters_of(values: Sequence[Value]) -> tuple[Any, ...]:
    """Raises InvalidRequest for a text that is no such value."""
    try:
        return tuple(map(_parameter, values))
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise InvalidRequest(f"a parameter that has not the form of its type: {error}") from None


def _parameter(value: Value) -> Any:
    match value:
        case BytesValue(content):
            return content
        case DecimalValue(digits):
            return Decimal(digits)
        case DateValue(iso):
            return dt.date.fromisoformat(iso)
        case TimeValue(iso):
            return dt.time.fromisoformat(iso)
        case TimestampValue(iso):
            return dt.datetime.fromisoformat(iso)
        case DurationValue(days, seconds, microseconds):
            return dt.timedelta(days, seconds, microseconds)
        case _:
            return value
