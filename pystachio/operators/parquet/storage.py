"""How a column's values are stored in a Parquet file, for those columns that the compiled library can decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pystachio.operators.column import Bounds
from pystachio.operators.kernels.native import HIGHEST, LOWEST, Conversion
from pystachio.operators.parquet.chunks import PHYSICAL_TYPES
from pystachio.operators.table import ParquetFile

_MOST_SHORT_DIGITS = 18
"""Decimals of so many digits fit 64 bits."""

_INT32_RANGE: Final = (-(2**31), 2**31 - 1)
_INT64_RANGE: Final = (LOWEST, HIGHEST)

_INTEGERS: Final[dict[tuple[str, pa.DataType], tuple[Conversion, int, Bounds]]] = {
    ("INT32", pa.int8()): (Conversion.SIGNED, 1, (-(2**7), 2**7 - 1)),
    ("INT32", pa.int16()): (Conversion.SIGNED, 2, (-(2**15), 2**15 - 1)),
    ("INT32", pa.int32()): (Conversion.SIGNED, 4, _INT32_RANGE),
    ("INT32", pa.uint8()): (Conversion.SIGNED, 2, (0, 2**8 - 1)),
    ("INT32", pa.uint16()): (Conversion.SIGNED, 4, (0, 2**16 - 1)),
    ("INT32", pa.uint32()): (Conversion.UNSIGNED, 8, (0, 2**32 - 1)),
    ("INT32", pa.date32()): (Conversion.SIGNED, 4, _INT32_RANGE),
    ("INT64", pa.int64()): (Conversion.SIGNED, 8, _INT64_RANGE),
    ("INT64", pa.uint64()): (Conversion.SIGNED, 8, (0, HIGHEST)),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """`width` is that of the values when nothing narrower is wanted; `range` that of the type, None for floats and
    booleans. `optional`: there may be NULLs."""

    physical_type: int
    type_length: int
    optional: bool
    conversion: Conversion
    width: int
    range: Bounds | None
    is_text: bool = False


def storage_of(file: ParquetFile, column: int) -> Storage | None:
    """None for a column that the library cannot decode. Found out once per file: pyarrow takes its time to answer."""
    key = Storage, column
    if key not in file.derived:
        file.derived[key] = _storage_of(file, column)
    found: Storage | None = file.derived[key]
    return found


def _storage_of(file: ParquetFile, column: int) -> Storage | None:
    field = file.fields[column]
    if field.leaf is None:
        return None
    described = file.metadata.schema.column(field.leaf)
    if described.max_repetition_level or described.max_definition_level > 1:
        return None
    physical, type_ = described.physical_type, field.type
    rule = _rule(physical, type_)
    is_text = physical == "BYTE_ARRAY" and (pa.types.is_string(type_) or pa.types.is_binary(type_))
    if rule is None and not is_text:
        return None
    conversion, width, range_ = rule or (Conversion.CODES, 4, None)
    number = PHYSICAL_TYPES.index(physical)
    return Storage(number, described.length, described.max_definition_level > 0, conversion, width, range_, is_text)


def _rule(physical: str, type_: pa.DataType) -> tuple[Conversion, int, Bounds | None] | None:
    known = _INTEGERS.get((physical, type_))
    if known is not None:
        return known
    match physical:
        case "BOOLEAN" if pa.types.is_boolean(type_):
            return Conversion.BOOLEAN, 1, None
        case "FLOAT" if pa.types.is_float32(type_):
            return Conversion.RAW, 4, None
        case "DOUBLE" if pa.types.is_float64(type_):
            return Conversion.RAW, 8, None
        case "INT32" if pa.types.is_time32(type_):
            return Conversion.SIGNED, 4, _INT32_RANGE
        case "INT64" if pa.types.is_time64(type_) or pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
            return Conversion.SIGNED, 8, _INT64_RANGE
        case "INT32" | "INT64" | "FIXED_LEN_BYTE_ARRAY" if (
            pa.types.is_decimal128(type_) and type_.precision <= _MOST_SHORT_DIGITS
        ):
            fixed = physical == "FIXED_LEN_BYTE_ARRAY"
            return Conversion.DECIMAL if fixed else Conversion.SIGNED, 8, _INT64_RANGE
        case _:
            return None
