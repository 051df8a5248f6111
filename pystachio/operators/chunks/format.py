"""The bytes of one decoded column in a file: a header page and segments, each at a multiple of 4 KiB, as they are in
memory. Reading one back is a check and no copy.

The header (`header`) says whose column it is, its logical type, rows, representation, dtype, bounds, and each
segment's offset, length and xxh3 checksum. The places of segments follow from their lengths, and their lengths from
rows and dtype, so every field is checked against another one or against the file. Numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
import xxhash

from pystachio.operators.chunks.header import PAGE_BYTES, BrokenChunk, header_page, read_header
from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import host
from pystachio.operators.kernels.bounds import is_within
from pystachio.operators.kernels.selection import take
from pystachio.operators.narrowing import narrowest_dtype

_INTEGERS: Final = ("int8", "int16", "int32", "int64")
_FLOATS: Final = ("float32", "float64")
_KIND_DTYPES: Final = {"fixed": ("bool", *_INTEGERS, *_FLOATS), "wide": ("int64",), "bytes": ("int64",)} | {
    "codes": _INTEGERS
}

_SMALL_SHARE: Final = 8
"""To find the used values takes as long as all the rest of encoding."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What a file must hold to be the right one. `identity` names the file version, place and form of the column."""

    identity: str
    type: pa.DataType
    rows: int


@dataclass(frozen=True, slots=True)
class NotUsable:
    """The bytes are not, or not all, what was stored under the key; `reason` is for logs."""

    reason: str


def stored_bytes(column: Column) -> int:
    """The most that the column takes in a file."""
    return PAGE_BYTES + sum(_padded(array.nbytes) for array in _arrays(column))


def encode(column: Column, key: ChunkKey) -> memoryview | None:
    """The file's bytes, at an address that is a multiple of 4 KiB. None for a form that has no place in the format.

    Of a dictionary that is not small beside the codes, only the values are kept that they refer to.
    """
    if isinstance(column, DictionaryColumn):
        if not isinstance(column.dictionary.values, BytesColumn):
            return None
        column = _with_used_values(column)
    kind, dtype, bounds = _described(column)
    arrays = _arrays(column)
    places, length = _layout([array.nbytes for array in arrays])
    whole = _aligned(length)
    segments = []
    for array, place in zip(arrays, places, strict=True):
        end = place + array.nbytes
        whole[place:end] = array.view(np.uint8)
        whole[end : place + _padded(array.nbytes)] = 0
        segments.append([place, array.nbytes, _checksum(whole[place:end])])
    page = header_page(
        {
            "identity": key.identity,
            "type": str(key.type),
            "rows": len(column),
            "kind": kind,
            "dtype": dtype,
            "bounds": bounds,
            "values": len(column.dictionary) if isinstance(column, DictionaryColumn) else None,
            "nulls": column.validity is not None,
            "segments": segments,
        }
    )
    if page is None:
        return None
    whole[:PAGE_BYTES] = np.frombuffer(page, np.uint8)
    return whole.data


def decode(data: memoryview, key: ChunkKey) -> Column | NotUsable:
    """The column, in the memory of `data`, which must be writable."""
    try:
        return _decoded(data, key)
    except BrokenChunk as broken:
        return NotUsable(str(broken))


def _decoded(data: memoryview, key: ChunkKey) -> Column:
    if len(data) < PAGE_BYTES or len(data) % PAGE_BYTES:
        raise BrokenChunk("not whole pages")
    header = read_header(bytes(data[:PAGE_BYTES]))
    if header.get("identity") != key.identity:
        raise BrokenChunk("of another column")
    if header.get("type") != str(key.type):
        raise BrokenChunk("of another type")
    if header.get("rows") != key.rows:
        raise BrokenChunk("of another number of rows")
    kind, dtype, values, nulls = (header.get(name) for name in ("kind", "dtype", "values", "nulls"))
    if not isinstance(kind, str) or dtype not in _KIND_DTYPES.get(kind, ()):
        raise BrokenChunk("an unknown representation")
    if not isinstance(nulls, bool):
        raise BrokenChunk("no word about NULLs")
    if not (_is_count(values) if kind == "codes" else values is None):
        raise BrokenChunk("no number of dictionary values")
    segments, ends = _segments(data, header.get("segments"), str(dtype) if kind in ("fixed", "codes") else None)
    validity = _flags(segments.pop(), key.rows) if nulls and segments else None
    if nulls != (validity is not None):
        raise BrokenChunk("no validity")
    match kind, segments:
        case "fixed", [values_segment]:
            return _fixed(key, values_segment, str(dtype), validity, header.get("bounds"), ends)
        case "wide", [high, low]:
            if not pa.types.is_decimal(key.type):
                raise BrokenChunk("a wide number of another type than decimal")
            high, low = (_typed(segment, "int64", key.rows) for segment in (high, low))
            return WideDecimalColumn(key.type, torch.from_numpy(high), torch.from_numpy(low), validity)
        case "bytes", [offsets, text]:
            return _bytes(key, offsets, text, key.rows, validity)
        case "codes", [codes, offsets, text]:
            return _codes(key, codes, str(dtype), _bytes(key, offsets, text, values or 0, None), validity, ends)
    raise BrokenChunk("another number of segments")


def _segments(data: memoryview, described: object, dtype: str | None) -> tuple[list[Array], Bounds | None]:
    """The bytes of each segment, whose places and checksums are right, and which fill the file; and the range of the
    first one's values, if they are integers by their `dtype` and it was found on the way."""
    if not (isinstance(described, list) and 0 < len(described) <= 4):
        raise BrokenChunk("an unlikely number of segments")
    for one in described:
        if not isinstance(one, list) or len(one) != 3:
            raise BrokenChunk("a segment without place, length and checksum")
        if not _is_count(one[1]) or one[1] > len(data):
            raise BrokenChunk("a segment outside the file")
    places, length = _layout([one[1] for one in described])
    if length != len(data):
        raise BrokenChunk("a file of another length")
    whole = np.frombuffer(data, np.uint8)
    found: list[Array] = []
    ends = None
    for (place, nbytes, checksum), expected in zip(described, places, strict=True):
        if place != expected:
            raise BrokenChunk("a segment at another place")
        segment = whole[expected : expected + nbytes]
        if found:
            computed = _checksum(segment)
        else:
            computed, ends = _checksum_and_range(segment, dtype)
        if computed != checksum:
            raise BrokenChunk("a segment with a wrong checksum")
        found.append(segment)
    return found, ends


def _checksum_and_range(segment: Array, dtype: str | None) -> tuple[str, Bounds | None]:
    if dtype in _INTEGERS and segment.nbytes % np.dtype(dtype).itemsize == 0:
        both = host.checksum_and_range(torch.from_numpy(segment.view(dtype)))
        if both is not None:
            return f"{both[0]:016x}", both[1]
    return _checksum(segment), None


def _fixed(
    key: ChunkKey, segment: Array, dtype: str, validity: torch.Tensor | None, bounds: object, ends: Bounds | None
) -> FixedColumn:
    allowed = _FLOATS if pa.types.is_floating(key.type) else ("bool",) if pa.types.is_boolean(key.type) else _INTEGERS
    if dtype not in allowed and not pa.types.is_null(key.type):
        raise BrokenChunk("a dtype that is not of the type")
    values = _flags(segment, key.rows) if dtype == "bool" else torch.from_numpy(_typed(segment, dtype, key.rows))
    if bounds is None:
        return FixedColumn(key.type, values, validity)
    if not (isinstance(bounds, list) and len(bounds) == 2 and all(type(end) is int for end in bounds)):
        raise BrokenChunk("no bounds")
    low, high = bounds
    if dtype not in _INTEGERS or low > high:
        raise BrokenChunk("impossible bounds")
    if ends is None or not is_within(ends, (low, high)):  # what lies under a NULL is anything
        valid = values if validity is None else torch.from_numpy(values.numpy()[validity.numpy()])
        if len(valid) and not is_within(host.minimum_and_maximum(valid), (low, high)):
            raise BrokenChunk("values outside the bounds")
    return FixedColumn(key.type, values, validity, (low, high))


def _bytes(key: ChunkKey, offsets: Array, text: Array, rows: int, validity: torch.Tensor | None) -> BytesColumn:
    if not pa.types.is_string(key.type) and not pa.types.is_binary(key.type):
        raise BrokenChunk("texts of another type")
    places = _typed(offsets, "int64", rows + 1)
    if places[0] != 0 or places[-1] != len(text):
        raise BrokenChunk("offsets that do not fit the text")
    if (places[1:] < places[:-1]).any():
        raise BrokenChunk("offsets that fall")
    return BytesColumn(key.type, torch.from_numpy(places), torch.from_numpy(text), validity)


def _codes(
    key: ChunkKey,
    segment: Array,
    dtype: str,
    values: BytesColumn,
    validity: torch.Tensor | None,
    ends: Bounds | None,
) -> DictionaryColumn:
    codes = torch.from_numpy(_typed(segment, dtype, key.rows))
    if len(codes):
        allowed = 0, max(1, len(values)) - 1
        found = host.minimum_and_maximum(codes) if ends is None else ends
        if not is_within(found, allowed):
            raise BrokenChunk("a code outside the dictionary")
    if not len(values) and len(codes) and (validity is None or bool(validity.any())):
        raise BrokenChunk("codes without a dictionary")
    return DictionaryColumn(key.type, codes, Dictionary(values), validity)


def _typed(segment: Array, dtype: str, count: int) -> Array:
    wanted = np.dtype(dtype).newbyteorder("<")
    if segment.nbytes != count * wanted.itemsize:
        raise BrokenChunk("a segment of another length")
    return segment.view(wanted)


def _flags(segment: Array, rows: int) -> torch.Tensor:
    flags = _typed(segment, "uint8", rows)
    if rows and int(flags.max()) > 1:
        raise BrokenChunk("flags that are neither 0 nor 1")
    return torch.from_numpy(flags).view(torch.bool)


def _described(column: Column) -> tuple[str, str, list[int] | None]:
    """Kind, dtype and bounds."""
    match column:
        case FixedColumn(values=values, bounds=bounds):
            return "fixed", str(values.numpy().dtype), None if bounds is None else list(bounds)
        case WideDecimalColumn():
            return "wide", "int64", None
        case BytesColumn():
            return "bytes", "int64", None
        case DictionaryColumn(codes=codes):
            return "codes", str(codes.numpy().dtype), None
        case ViewColumn():
            raise AssertionError("no scan makes views")


def _arrays(column: Column) -> list[Array]:
    """What is stored, in order; offsets start at 0."""
    match column:
        case FixedColumn(values=values):
            tensors = [values]
        case WideDecimalColumn(high=high, low=low):
            tensors = [high, low]
        case BytesColumn():
            tensors = _text(column)
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            tensors = [codes, *(_text(dictionary.values) if isinstance(dictionary.values, BytesColumn) else ())]
        case ViewColumn():
            raise AssertionError("no scan makes views")
    if column.validity is not None:
        tensors.append(column.validity)
    return [np.ascontiguousarray(tensor.numpy()) for tensor in tensors]


def _text(column: BytesColumn) -> list[torch.Tensor]:
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    return [column.offsets - start if start else column.offsets, column.data[start:end]]


def _with_used_values(column: DictionaryColumn) -> DictionaryColumn:
    """The same rows over a dictionary of no other values, or of few."""
    values = column.dictionary.values
    assert isinstance(values, BytesColumn)
    if values.offsets.nbytes + values.data.nbytes <= column.codes.nbytes // _SMALL_SHARE or not len(values):
        return column
    codes = column.codes.numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=len(column.dictionary)))
    dtype = narrowest_dtype((0, len(used)))
    translation = np.zeros(len(column.dictionary), dtype)
    translation[used] = np.arange(len(used), dtype=dtype)
    needed = take(values, torch.from_numpy(used))
    assert isinstance(needed, BytesColumn)
    return DictionaryColumn(column.type, torch.from_numpy(translation[codes]), Dictionary(needed), column.validity)


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where segments of these lengths begin, and how long the file is."""
    places, end = [], PAGE_BYTES
    for length in lengths:
        places.append(end)
        end += _padded(length)
    return places, end


def _padded(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _aligned(length: int) -> Array:
    """The disk takes direct writes from such addresses only."""
    spacious = np.empty(length + PAGE_BYTES, np.uint8)
    start = -spacious.ctypes.data % PAGE_BYTES
    return spacious[start : start + length]


def _checksum(segment: Array) -> str:
    return xxhash.xxh3_64_hexdigest(segment.data)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
