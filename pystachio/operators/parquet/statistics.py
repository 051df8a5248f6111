"""Minimum, maximum and NULL count of a column chunk, as far as they can be trusted, in the encoding of `Literal`."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pystachio.operators.parquet.chunks import ChunkDescription

Statistic = int | float | bytes
"""An integer-like value as in `expressions.Literal`, a float, or the bytes of a string (UTF-8 order is SQL's order)."""

Encode = Callable[[bytes], Statistic | None]
"""From Parquet's plain encoding to a statistic; None for bytes that prove nothing."""

_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_INTEGER_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8}
_FLOATS = {"FLOAT": struct.Struct("<f"), "DOUBLE": struct.Struct("<d")}


class ChunkStatistics(NamedTuple):
    """Inclusive limits of the non-NULL values, not necessarily tight (writers truncate strings), NaN left out.

    `low` and `high` are both None when unknown or when every value is NULL; `nulls` is None when unknown.
    `exact`: both are the least and the greatest value, by what the writer says of types that it may have truncated.
    """

    low: Any
    high: Any
    nulls: int | None
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IntegerRanges:
    """The statistics of a column of integers in every row group: int64 and bool arrays.

    `low` and `high` mean something where `known`; `nulls` is -1 where it is unknown.
    """

    low: np.ndarray
    high: np.ndarray
    known: np.ndarray
    nulls: np.ndarray

    @staticmethod
    def of(statistics: Sequence[ChunkStatistics]) -> IntegerRanges | None:
        """None when a limit is no integer of 64 bits."""
        limits = [(0, 0) if known.low is None else (known.low, known.high) for known in statistics]
        if not all(type(low) is int and type(high) is int and -(2**63) <= low <= high < 2**63 for low, high in limits):
            return None
        pairs = np.array(limits, dtype=np.int64).reshape(-1, 2)
        known = np.array([known.low is not None for known in statistics], dtype=np.bool_)
        nulls = np.array([-1 if known.nulls is None else known.nulls for known in statistics], dtype=np.int64)
        return IntegerRanges(pairs[:, 0], pairs[:, 1], known, nulls)

    def can_be_multiplied(self, factor: int) -> bool:
        """Whether all limits times `factor` are integers of 64 bits."""
        if factor == 1 or not len(self.low):
            return True
        return max(abs(int(self.low.min())), abs(int(self.high.max()))) * factor < 2**63


@dataclass(frozen=True, slots=True)
class StatisticsReader:
    """How to read the statistics of one column; `signed` types may use the deprecated fields of old writers."""

    encode: Encode
    signed: bool

    def read(self, chunk: ChunkDescription) -> ChunkStatistics:
        """What the footer says about a chunk of the column, as far as it is credible."""
        nulls = chunk.nulls if chunk.nulls is not None and 0 <= chunk.nulls <= chunk.values else None
        raw_low, raw_high = chunk.low, chunk.high
        if raw_low is None and raw_high is None and self.signed:
            raw_low, raw_high = chunk.legacy_low, chunk.legacy_high
        if raw_low is None or raw_high is None:
            return ChunkStatistics(None, None, nulls)
        low, high = self.encode(raw_low), self.encode(raw_high)
        if low is None or high is None or low > high:  # type: ignore[operator]
            return ChunkStatistics(None, None, nulls)
        return ChunkStatistics(low, high, nulls, _is_exact(chunk))


def _is_exact(chunk: ChunkDescription) -> bool:
    """Numbers are, unless their writer denies it; bytes only when it says so; floats leave NaN out."""
    if chunk.low is None or chunk.high is None or chunk.exact_low is False or chunk.exact_high is False:
        return False
    if chunk.physical_type in ("INT32", "INT64"):
        return True
    return "BYTE_ARRAY" in chunk.physical_type and chunk.exact_low is True and chunk.exact_high is True


def statistics_reader(type_: pa.DataType, column: pq.ColumnSchema) -> StatisticsReader:
    """For a column of normalised `type_`; types whose order or unit is uncertain have no statistics."""
    physical = column.physical_type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return StatisticsReader(_same if physical == "BYTE_ARRAY" else _nothing, signed=False)
    if physical in _FLOATS and pa.types.is_floating(type_):
        return StatisticsReader(_float(_FLOATS[physical]), signed=True)
    if pa.types.is_decimal(type_) and physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        credible = json.loads(column.logical_type.to_json()).get("scale") == type_.scale
        return StatisticsReader(_big_endian if credible else _nothing, signed=False)
    width = _INTEGER_BYTES.get(physical)
    if width is None or not _is_stored_as_is(type_, column):
        return StatisticsReader(_nothing, signed=False)
    signed = not (pa.types.is_unsigned_integer(type_) or pa.types.is_boolean(type_))
    modulus = None if signed else 1 << type_.bit_width
    return StatisticsReader(_little_endian(width, modulus), signed=signed)


def _is_stored_as_is(type_: pa.DataType, column: pq.ColumnSchema) -> bool:
    """Whether the number in the file is the literal's: same unit, same scale."""
    if pa.types.is_boolean(type_) or pa.types.is_date32(type_) or pa.types.is_integer(type_):
        return True
    logical = json.loads(column.logical_type.to_json())
    if pa.types.is_decimal(type_):
        return bool(logical.get("scale") == type_.scale)
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        return bool(_TIME_UNITS.get(logical.get("timeUnit")) == type_.unit)
    return False


def _nothing(raw: bytes) -> None:
    return None


def _same(raw: bytes) -> bytes:
    return raw


def _float(layout: struct.Struct) -> Encode:
    def encode(raw: bytes) -> float | None:
        if len(raw) != layout.size:
            return None
        value: float = layout.unpack(raw)[0]
        return None if math.isnan(value) else value

    return encode


def _little_endian(width: int, modulus: int | None) -> Encode:
    """`modulus`: of unsigned types, which may be narrower than what they are stored in."""

    def encode(raw: bytes) -> int | None:
        if len(raw) != width:
            return None
        number = int.from_bytes(raw, "little", signed=True)
        return number if modulus is None else number % modulus

    return encode


def _big_endian(raw: bytes) -> int | None:
    return int.from_bytes(raw, "big", signed=True) if raw else None
