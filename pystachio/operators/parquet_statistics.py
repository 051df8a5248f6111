"""Minimum, maximum and NULL count of a column chunk, as far as they can be trusted, in the encoding of `Literal`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Statistic = int | float | bytes
"""An integer-like value as in `expressions.Literal`, a float, or the bytes of a string (UTF-8 order is SQL's order)."""

Encode = Callable[[Any], Statistic | None]
"""From a footer's raw value to a statistic; None for a value that proves nothing."""

_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Inclusive limits of the non-NULL values, not necessarily tight (writers truncate strings), NaN left out.

    `low` and `high` are both None when unknown or when every value is NULL; `nulls` is None when unknown.
    """

    low: Any
    high: Any
    nulls: int | None


UNKNOWN = ChunkStatistics(None, None, None)


def chunk_statistics(chunk: pq.ColumnChunkMetaData, encode: Encode) -> ChunkStatistics:
    """What the footer says about a chunk. Arrow has already dropped statistics that their writer got wrong."""
    raw = chunk.statistics
    if raw is None:
        return UNKNOWN
    nulls = raw.null_count if raw.has_null_count and 0 <= raw.null_count <= chunk.num_values else None
    if not raw.has_min_max:
        return ChunkStatistics(None, None, nulls)
    low, high = encode(raw.min_raw), encode(raw.max_raw)
    if low is None or high is None or low > high:  # type: ignore[operator]
        return ChunkStatistics(None, None, nulls)
    return ChunkStatistics(low, high, nulls)


def statistics_encoder(type_: pa.DataType, column: pq.ColumnSchema) -> Encode:
    """How to read the statistics of a column of normalised `type_`; doubtful types have none."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _bytes if column.physical_type == "BYTE_ARRAY" else _nothing
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return _float
    if pa.types.is_unsigned_integer(type_):
        modulus = 1 << type_.bit_width
        return lambda raw: raw % modulus if isinstance(raw, int) else None
    if pa.types.is_boolean(type_) or pa.types.is_date32(type_) or pa.types.is_signed_integer(type_):
        return _integer
    logical = json.loads(column.logical_type.to_json())
    if pa.types.is_decimal(type_):
        return _scaled if logical.get("scale") == type_.scale else _nothing
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        return _integer if _TIME_UNITS.get(logical.get("timeUnit")) == type_.unit else _nothing
    return _nothing


def _nothing(raw: Any) -> None:
    return None


def _bytes(raw: Any) -> bytes | None:
    return raw if isinstance(raw, bytes) else None


def _float(raw: Any) -> float | None:
    return raw if isinstance(raw, float) and not math.isnan(raw) else None


def _integer(raw: Any) -> int | None:
    return int(raw) if isinstance(raw, int) else None


def _scaled(raw: Any) -> int | None:
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else _integer(raw)
