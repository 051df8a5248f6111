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
_MOST_DECIMAL_BYTES = 32
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
    """How to read the statistics of one column; `signed` types may use the deprecated fields of old writers.

    Of limits that are integers of 64 bits, `width` is their bytes, and `bits` what an unsigned type has of them (0: a
    signed one). 0 is the width of other limits, -1 where they prove nothing.
    """

    encode: Encode
    signed: bool
    width: int = 0
    bits: int = 0

    def said(self, chunk: ChunkDescription) -> tuple[bytes, bytes] | None:
        """The limits of a chunk in Parquet's plain encoding, where there are both."""
        low, high = chunk.low, chunk.high
        if low is None and high is None and self.signed:
            low, high = chunk.legacy_low, chunk.legacy_high
        return None if low is None or high is None else (low, high)

    def limits(self, raw_low: bytes, raw_high: bytes) -> tuple[Any, Any] | None:
        """What these mean, if it is credible."""
        low, high = self.encode(raw_low), self.encode(raw_high)
        if low is None or high is None or low > high:  # type: ignore[operator]
            return None
        return low, high


def statistics_reader(type_: pa.DataType, column: pq.ColumnSchema) -> StatisticsReader:
    """For a column of normalised `type_`; types whose order or unit is uncertain have no statistics."""
    physical = column.physical_type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return StatisticsReader(_same, signed=False) if physical == "BYTE_ARRAY" else _PROVES_NOTHING
    if physical in _FLOATS and pa.types.is_floating(type_):
        return StatisticsReader(_float(_FLOATS[physical]), signed=True)
    if pa.types.is_decimal(type_) and physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        credible = json.loads(column.logical_type.to_json()).get("scale") == type_.scale
        return StatisticsReader(_big_endian, signed=False) if credible else _PROVES_NOTHING
    width = _INTEGER_BYTES.get(physical)
    if width is None or not _is_stored_as_is(type_, column):
        return _PROVES_NOTHING
    signed = not (pa.types.is_unsigned_integer(type_) or pa.types.is_boolean(type_))
    modulus = None if signed else 1 << type_.bit_width
    encode = _little_endian(width, modulus)
    if modulus is None or modulus < 2**64:
        return StatisticsReader(encode, signed, width, 0 if signed else type_.bit_width)
    return StatisticsReader(encode, signed)


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


_PROVES_NOTHING = StatisticsReader(_nothing, signed=False, width=-1)


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
    return int.from_bytes(raw, "big", signed=True) if 0 < len(raw) <= _MOST_DECIMAL_BYTES else None
