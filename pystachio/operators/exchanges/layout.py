"""What a block of an exchange is: a header that says what follows, then the columns' buffers.

    magic (4 bytes) | length of the header (4 bytes, little-endian) | header (msgpack) | buffers at multiples of 64

Offsets are not in the header: they follow from the lengths. Booleans and validity are bits, least significant first:
packing a row takes 0.03 ns and unpacking it 0.05 ns, which is less than to send the rest of its byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import torch

MAGIC: Final = b"PXB1"
PREFIX: Final = struct.Struct("<4sI")
ALIGNMENT: Final = 64
MOST_HEADER_BYTES: Final = 4 << 20

MOST_DICTIONARY_BYTES: Final = 64 << 20
"""Of the dictionaries that a reader keeps for later blocks of the same writer; the writer says which to forget."""

DTYPES: Final = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64"})
FLOATS: Final = frozenset({"float32", "float64"})

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class PlainHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0, tag_field="kind"):
    """A column of numbers (`dtype`), of wide decimals ("wide") or of texts ("bytes", `text_bytes` of them)."""

    type: list[Any]
    dtype: str
    rows: _Count
    has_validity: bool
    bounded: bool
    """The values' range is known. It is not sent but measured by the reader, who must not trust it."""
    text_bytes: _Count


class CodedHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1, tag_field="kind"):
    """A column of codes. `values` come with it, or came with an earlier block under the number `dictionary`; they are
    kept for later blocks when they have a number."""

    type: list[Any]
    dtype: str
    rows: _Count
    has_validity: bool
    dictionary: int | None
    values: PlainHeader | None


class BlockHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Of a whole block: its rows, the dictionaries that no later block refers to, its columns."""

    rows: _Count
    forget: tuple[int, ...]
    columns: tuple[PlainHeader | CodedHeader, ...]


WIDE: Final = "wide"
TEXTS: Final = "bytes"


def aligned(position: int) -> int:
    """The next multiple of the alignment."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def packed_bytes(rows: int) -> int:
    """Of so many bits."""
    return -(-rows // 8)


def buffers_of(header: PlainHeader | CodedHeader) -> Iterator[int]:
    """The lengths of the column's buffers in their order: a dictionary's values first, the validity last."""
    rows = header.rows
    if isinstance(header, CodedHeader) and header.values is not None:
        yield from buffers_of(header.values)
    if header.dtype == TEXTS and isinstance(header, PlainHeader):
        yield 8 * (rows + 1)
        yield header.text_bytes
    elif header.dtype == WIDE:
        yield 8 * rows
        yield 8 * rows
    elif header.dtype == "bool":
        yield packed_bytes(rows)
    else:
        yield rows * DTYPES[header.dtype].itemsize
    if header.has_validity:
        yield packed_bytes(rows)


@lru_cache(maxsize=256)
def dtypes_for(type_: pa.DataType) -> frozenset[str]:
    """What stores a column of the type without codes."""
    if pa.types.is_boolean(type_):
        return frozenset({"bool"})
    if pa.types.is_floating(type_):
        return FLOATS
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return frozenset({TEXTS})
    if pa.types.is_decimal(type_):
        return INTEGERS | {WIDE}
    if pa.types.is_integer(type_) or pa.types.is_temporal(type_):
        return INTEGERS
    return frozenset({"bool", *INTEGERS, *FLOATS}) if pa.types.is_null(type_) else frozenset()


def stands_for(type_: pa.DataType, field: pa.DataType) -> bool:
    """Whether a column of the type may be one of the field: operators leave widths and precisions as they are."""
    if type_ == field or pa.types.is_null(type_):
        return True
    if pa.types.is_decimal(type_) and pa.types.is_decimal(field):
        return bool(type_.scale == field.scale)
    families = (pa.types.is_integer, pa.types.is_floating)
    return any(family(type_) and family(field) for family in families)
