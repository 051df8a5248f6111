"""What a Parquet footer says about column chunks, read without pyarrow: it aborts the process on lying statistics.

Field numbers are those of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pystachio.errors import DataError, Unsupported
from pystachio.operators.thrift_compact import Struct, ThriftError, read_struct

PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")

_DATA_PAGES = (0, 3)
_CODED = (2, 8)


@dataclass(frozen=True, slots=True)
class ChunkDescription:
    """One column chunk in the footer's own words: the numbers are numbers, but need not make sense.

    `codec` is Parquet's number of the compression. `coded`: whether all its data pages hold dictionary codes (None: not
    said). `text_bytes`: bytes of all its strings.
    `low` and `high` are in Parquet's plain encoding, `exact_low` and `exact_high` whether they are values of the chunk
    (None: not said); `legacy_low` and `legacy_high` are the deprecated ones, which only make sense for types with the
    order of signed numbers.
    """

    physical_type: str
    codec: int
    data_offset: int
    dictionary_offset: int | None
    length: int
    decoded: int
    values: int
    coded: bool | None
    text_bytes: int | None
    nulls: int | None
    low: bytes | None
    high: bytes | None
    legacy_low: bytes | None
    legacy_high: bytes | None
    exact_low: bool | None
    exact_high: bool | None


def describe_chunks(path: str, footer: bytes, leaves: int) -> list[list[ChunkDescription]]:
    """The chunks of each primitive column, by row group. DataError when the footer is not well-formed."""
    try:
        metadata = read_struct(footer)
        orders = metadata.get(7) or []
        ordered = [bool(orders[leaf]) if leaf < len(orders) else False for leaf in range(leaves)]
        groups = [group[1] for group in metadata[4]]
        if any(len(group) != leaves for group in groups):
            raise DataError(f"a row group of the Parquet footer lacks columns: {path}")
        return [[_description(path, group[leaf], ordered[leaf]) for group in groups] for leaf in range(leaves)]
    except (ThriftError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"cannot read the Parquet footer: {path}: {type(error).__name__}: {error}") from error


def _description(path: str, chunk: Struct, ordered: bool) -> ChunkDescription:
    if chunk.get(1):
        raise Unsupported(f"column chunks in other files: {path}")
    described: Struct = chunk[3]
    statistics: Struct = described.get(12) or {}
    sizes: Struct = described.get(16) or {}
    return ChunkDescription(
        physical_type=PHYSICAL_TYPES[_number(described[1])],
        codec=_number(described[4]),
        data_offset=_number(described[9]),
        dictionary_offset=_optional_number(described.get(11)),
        length=_number(described[7]),
        decoded=_number(described[6]),
        values=_number(described[5]),
        coded=_coded(described.get(13)),
        text_bytes=_optional_number(sizes.get(1)),
        nulls=_optional_number(statistics.get(3)),
        low=_optional_bytes(statistics.get(6)) if ordered else None,
        high=_optional_bytes(statistics.get(5)) if ordered else None,
        legacy_low=_optional_bytes(statistics.get(2)),
        legacy_high=_optional_bytes(statistics.get(1)),
        exact_low=_optional_truth(statistics.get(8)),
        exact_high=_optional_truth(statistics.get(7)),
    )


def _coded(pages: list[Struct] | None) -> bool | None:
    if not pages:
        return None
    return all(page[2] in _CODED for page in pages if page[1] in _DATA_PAGES)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("a field has the wrong type")
    return value


def _optional_number(value: Any) -> int | None:
    return None if value is None else _number(value)


def _optional_bytes(value: Any) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError("a field has the wrong type")
    return value


def _optional_truth(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError("a field has the wrong type")
    return value
