"""From the bytes of files (`format`) to columns. What is not, or not all, what was stored never becomes a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.chunks.format import Array, ChunkKey, padded
from pystachio.operators.chunks.header import PAGE_BYTES, BrokenChunk, read_header
from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import host, packing, segments
from pystachio.operators.kernels.bounds import is_within
from pystachio.operators.kernels.host_memory import Memory
from pystachio.operators.kernels.segments import Segment

_INTEGERS: Final = ("int8", "int16", "int32", "int64")
_FLOATS: Final = ("float32", "float64")
_DTYPES: Final = {
    "fixed": ("bool", *_INTEGERS, *_FLOATS),
    "wide": ("int64",),
    "bytes": ("int64",),
    "codes": _INTEGERS,
}


@dataclass(frozen=True, slots=True)
class NotUsable:
    """The bytes are not, or not all, what was stored under the key; `reason` is for logs."""

    reason: str


class _Shape(NamedTuple):
    """What a segment is of; `rows` is None where the file says it."""

    dtype: str
    rows: int | None


class _Part(NamedTuple):
    """A segment's bytes as they are in the file; `divisor` and `rows` are those of packed integers."""

    data: Array
    dtype: np.dtype[Any]
    checksum: object
    divisor: int | None
    rows: int

    @property
    def unpacked_bytes(self) -> int:
        return 0 if self.divisor is None else self.rows * self.dtype.itemsize


class _Opened(NamedTuple):
    """A file whose header makes sense. The last of its `parts` is the validity if there are `nulls`."""

    key: ChunkKey
    kind: str
    dtype: str
    bounds: object
    nulls: bool
    parts: list[_Part]


def decode(data: memoryview, key: ChunkKey) -> Column | NotUsable:
    """`decode_all` of one file."""
    return decode_all([(data, key)])[0]


def decode_all(
    files: Sequence[tuple[memoryview, ChunkKey]], memory: Memory = lambda lengths: [*map(_heap, lengths)]
) -> list[Column | NotUsable]:
    """The columns, in the memory of the files, which must be writable, or in other `memory` where they were packed."""
    opened = [_attempt(_open, data, key) for data, key in files]
    parts = [part for file in opened if isinstance(file, _Opened) for part in file.parts]
    found = _unpacked(parts, memory)
    segments.read(found)
    left = iter(found)
    return [
        file if isinstance(file, NotUsable) else _attempt(_column, file, [next(left) for _ in file.parts])
        for file in opened
    ]


def _unpacked(parts: Sequence[_Part], memory: Memory) -> list[Segment]:
    """With room for those that are packed."""
    lengths = [part.unpacked_bytes for part in parts if part.divisor is not None]
    room = iter(memory(lengths) if lengths else ())
    return [
        Segment(
            part.data,
            (part.data if part.divisor is None else np.frombuffer(next(room), np.uint8)).view(part.dtype),
            part.divisor,
        )
        for part in parts
    ]


def _heap(length: int) -> memoryview:
    return np.empty(length, np.uint8).data


def _attempt(step: Any, *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except BrokenChunk as broken:
        return NotUsable(str(broken))


def _open(data: memoryview, key: ChunkKey) -> _Opened:
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
    if not isinstance(kind, str) or dtype not in _DTYPES.get(kind, ()):
        raise BrokenChunk("an unknown representation")
    if not isinstance(nulls, bool):
        raise BrokenChunk("no word about NULLs")
    if not (_is_count(values) if kind == "codes" else values is None):
        raise BrokenChunk("no number of dictionary values")
    shapes = _shapes(kind, str(dtype), key.rows, values or 0, nulls)
    parts = _parts(data, header.get("segments"), shapes)
    return _Opened(key, kind, str(dtype), header.get("bounds"), nulls, parts)


def _shapes(kind: str, dtype: str, rows: int, values: int, nulls: bool) -> list[_Shape]:
    """Of the segments, in order."""
    # Flags are read as integers, and looked at before they count as such.
    numbers = _Shape("int8" if dtype == "bool" else dtype, rows)
    match kind:
        case "fixed":
            shapes = [numbers]
        case "wide":
            shapes = [numbers, numbers]
        case "bytes":
            shapes = [_Shape("int64", rows + 1), _Shape("uint8", None)]
        case _:
            shapes = [numbers, _Shape("int64", values + 1), _Shape("uint8", None)]
    return [*shapes, _Shape("int8", rows)] if nulls else shapes


def _parts(data: memoryview, described: object, shapes: Sequence[_Shape]) -> list[_Part]:
    """Segments that are where they should be, as long as they should be, and fill the file."""
    if not isinstance(described, list) or len(described) != len(shapes):
        raise BrokenChunk("another number of segments")
    whole = np.frombuffer(data, np.uint8)
    found: list[_Part] = []
    expected = PAGE_BYTES
    for one, shape in zip(described, shapes, strict=True):
        if not isinstance(one, list) or len(one) != 4:
            raise BrokenChunk("a segment without place, length, checksum and divisor")
        place, nbytes, checksum, divisor = one
        if not _is_count(nbytes) or nbytes > len(data):
            raise BrokenChunk("a segment outside the file")
        if place != expected:
            raise BrokenChunk("a segment at another place")
        found.append(_part(whole[place : place + nbytes], shape, checksum, divisor))
        expected += padded(nbytes)
    if expected != len(data):
        raise BrokenChunk("a file of another length")
    return found


def _part(data: Array, shape: _Shape, checksum: object, divisor: object) -> _Part:
    wanted = np.dtype(shape.dtype).newbyteorder("<")
    if divisor is None:
        if data.nbytes != (data.nbytes if shape.rows is None else shape.rows * wanted.itemsize):
            raise BrokenChunk("a segment of another length")
        return _Part(data, wanted, checksum, None, 0)
    if not (type(divisor) is int and 0 < divisor < 1 << 64):
        raise BrokenChunk("a segment packed by no divisor")
    if not shape.rows or shape.dtype not in _INTEGERS:
        raise BrokenChunk("packed, and no integers")
    if packing.most_packed_bytes(shape.rows, 0) > data.nbytes:
        raise BrokenChunk("a packed segment of another length")
    return _Part(data, wanted, checksum, divisor, shape.rows)


def _column(file: _Opened, found: Sequence[Segment]) -> Column:
    key = file.key
    for part, segment in zip(file.parts, found, strict=True):
        if f"{segment.checksum:016x}" != part.checksum:
            raise BrokenChunk("a segment with a wrong checksum")
        if not segment.is_whole:
            raise BrokenChunk("a packed segment of another length")
    validity = _flags(found[-1]) if file.nulls else None
    match file.kind:
        case "fixed":
            return _fixed(key, file.dtype, found[0], validity, file.bounds)
        case "wide":
            if not pa.types.is_decimal(key.type):
                raise BrokenChunk("a wide number of another type than decimal")
            high, low = torch.from_numpy(found[0].values), torch.from_numpy(found[1].values)
            return WideDecimalColumn(key.type, high, low, validity)
        case "bytes":
            return _bytes(key, found[0], found[1], validity)
        case _:
            return _codes(key, found[0], _bytes(key, found[1], found[2], None), validity)


def _fixed(key: ChunkKey, dtype: str, segment: Segment, validity: torch.Tensor | None, bounds: object) -> FixedColumn:
    allowed = _FLOATS if pa.types.is_floating(key.type) else ("bool",) if pa.types.is_boolean(key.type) else _INTEGERS
    if dtype not in allowed and not pa.types.is_null(key.type):
        raise BrokenChunk("a dtype that is not of the type")
    values = _flags(segment) if dtype == "bool" else torch.from_numpy(segment.values)
    if bounds is None:
        return FixedColumn(key.type, values, validity)
    if not (isinstance(bounds, list) and len(bounds) == 2 and all(type(end) is int for end in bounds)):
        raise BrokenChunk("no bounds")
    low, high = bounds
    if dtype not in _INTEGERS or low > high:
        raise BrokenChunk("impossible bounds")
    if segment.ends is None or not is_within(segment.ends, (low, high)):  # what lies under a NULL is anything
        valid = values if validity is None else torch.from_numpy(values.numpy()[validity.numpy()])
        if len(valid) and not is_within(host.minimum_and_maximum(valid), (low, high)):
            raise BrokenChunk("values outside the bounds")
    return FixedColumn(key.type, values, validity, (low, high))


def _bytes(key: ChunkKey, offsets: Segment, text: Segment, validity: torch.Tensor | None) -> BytesColumn:
    if not pa.types.is_string(key.type) and not pa.types.is_binary(key.type):
        raise BrokenChunk("texts of another type")
    places = offsets.values
    if places[0] != 0 or places[-1] != len(text.values):
        raise BrokenChunk("offsets that do not fit the text")
    if (places[1:] < places[:-1]).any():
        raise BrokenChunk("offsets that fall")
    return BytesColumn(key.type, torch.from_numpy(places), torch.from_numpy(text.values), validity)


def _codes(key: ChunkKey, segment: Segment, values: BytesColumn, validity: torch.Tensor | None) -> DictionaryColumn:
    codes = torch.from_numpy(segment.values)
    if len(codes) and not is_within(_range(segment), (0, max(1, len(values)) - 1)):
        raise BrokenChunk("a code outside the dictionary")
    if not len(values) and len(codes) and (validity is None or bool(validity.any())):
        raise BrokenChunk("codes without a dictionary")
    return DictionaryColumn(key.type, codes, Dictionary(values), validity)


def _flags(segment: Segment) -> torch.Tensor:
    if len(segment.values) and not is_within(_range(segment), (0, 1)):
        raise BrokenChunk("flags that are neither 0 nor 1")
    return torch.from_numpy(segment.values).view(torch.bool)


def _range(segment: Segment) -> Bounds:
    """Of the values, of which there are some."""
    return segment.ends or host.minimum_and_maximum(torch.from_numpy(segment.values))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
