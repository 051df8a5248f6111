"""Values of Arrow columns as text: how each type is written in JSON, CSV and tables.

Dates and times are ISO 8601, decimals keep every digit and never take an exponent.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")


def json_cells(column: pa.Array) -> list[str]:
    """One JSON value per row. Decimals, dates and times are strings, bytes base64, NULL null.

    JSON has no word for floats that are no numbers: they become "NaN", "Infinity" and "-Infinity".
    """
    column = _plain_layout(column)
    kind = column.type
    if pt.is_null(kind):
        return ["null"] * len(column)
    if pt.is_boolean(kind):
        return [_or_null(value, lambda v: "true" if v else "false") for value in column.to_pylist()]
    if pt.is_integer(kind):
        return [_or_null(value, str) for value in column.to_pylist()]
    if pt.is_floating(kind):
        return [_or_null(value, _json_float) for value in _floats(column)]
    if _has_text(kind):
        return [_or_null(value, _quoted) for value in text_cells(column)]
    return [_or_null(value, lambda v: _quoted(_json_value(v))) for value in column.to_pylist()]


def text_cells(column: pa.Array) -> list[str | None]:
    """One text per row, None for NULL; bytes as \\xDEADBEEF, nested values as JSON."""
    column = _plain_layout(column)
    kind = column.type
    if pt.is_null(kind):
        return [None] * len(column)
    if pt.is_string(kind):
        return _texts(column, str)
    if pt.is_boolean(kind):
        return _texts(column, lambda v: "true" if v else "false")
    if pt.is_integer(kind):
        return _texts(column, str)
    if pt.is_floating(kind):
        return [None if value is None else str(value) for value in _floats(column)]
    if pt.is_decimal(kind):
        return _texts(column, lambda v: format(v, "f"))
    if pt.is_timestamp(kind):
        return [None if text is None else _iso_timestamp(text) for text in column.cast(pa.string()).to_pylist()]
    if pt.is_date(kind) or pt.is_time(kind) or pt.is_duration(kind):
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return _texts(column, lambda v: "\\x" + v.hex().upper())
    if pt.is_nested(kind):
        return _texts(column, lambda v: _quoted(_json_value(v)))
    return _texts(column, str)


def csv_column(column: pa.Array) -> pa.Array:
    """The column as a type that Arrow's CSV writer writes right: it knows numbers, dates, times and strings itself."""
    column = _plain_layout(column)
    kind = column.type
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array(_texts(column, _base64), pa.string())
    if pt.is_decimal(kind) or pt.is_timestamp(kind) or pt.is_nested(kind) or pt.is_interval(kind):
        return pa.array(text_cells(column), pa.string())
    return column


def _plain_layout(column: pa.Array) -> pa.Array:
    """Without dictionary codes, views and 64-bit offsets, which not every Arrow function knows."""
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pt.is_string_view(column.type) or pt.is_large_string(column.type):
        return column.cast(pa.string())
    if pt.is_binary_view(column.type):
        return column.cast(pa.binary())
    return column


def _has_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_decimal(kind) or (pt.is_temporal(kind) and not pt.is_interval(kind)))


def _texts(column: pa.Array, write: Callable[[Any], str]) -> list[str | None]:
    return [None if value is None else write(value) for value in column.to_pylist()]


def _or_null(value: Any, write: Callable[[Any], str]) -> str:
    return "null" if value is None else write(value)


def _floats(column: pa.Array) -> list[Any]:
    """Python or numpy floats, whose `str` is the shortest text that reads back as the same value of the same width."""
    if pt.is_float64(column.type):
        values: list[Any] = column.to_pylist()
        return values
    valid = column.is_valid().to_pylist()
    numbers = column.to_numpy(zero_copy_only=False).astype(column.type.to_pandas_dtype())
    return [number if ok else None for number, ok in zip(numbers, valid, strict=True)]


def _json_float(value: Any) -> str:
    if math.isfinite(value):
        return str(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _json_value(value: Any) -> Any:
    """A Python value from inside a nested one, as what `json.dumps` takes."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else json.loads(_json_float(value))
        case Decimal():
            return format(value, "f")
        case bytes():
            return _base64(value)
        case dict():
            return {str(key): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _iso_timestamp(text: str) -> str:
    """Arrow writes `2020-01-31 12:00:00+0100`."""
    return _OFFSET.sub(r"\1:\2", text.replace(" ", "T", 1)) if text[-5:-4] in "+-" else text.replace(" ", "T", 1)
