"""A checksum of the values of each column, whatever pieces they come in and however they are stored.

In order: the bytes of the values, those under a NULL as zero. In any order: the sum of a hash of each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pystachio.rewrite.layout import plain_values, storage_type

Numbers: TypeAlias = np.ndarray[Any, Any]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_POWER = np.uint64(0x100000001B3)
_SHIFT = np.uint64(32)


class Checksums:
    """Of all columns of a table that is shown piece by piece."""

    def __init__(self, schema: pa.Schema, *, ordered: bool) -> None:
        self.rows = 0
        self.ordered = ordered
        self._streams: dict[str, dict[str, Any]] = {name: {} for name in schema.names}
        self._sums: dict[str, int] = dict.fromkeys(schema.names, 0)

    def add(self, table: pa.Table) -> None:
        self.rows += len(table)
        for name, column in zip(table.schema.names, table.columns, strict=True):
            for chunk in plain_values(column).chunks:
                if self.ordered:
                    for part, content in _parts(chunk, ""):
                        self._streams[name].setdefault(part, xxhash.xxh3_128()).update(content)
                else:
                    total = int(_hashes(chunk).sum(dtype=np.uint64)) if len(chunk) else 0
                    self._sums[name] = (self._sums[name] + total) % 2**64

    def differing(self, other: Checksums) -> list[str]:
        """The columns whose values are not the same."""
        return [name for name in self._sums if self._of(name) != other._of(name)]

    def _of(self, name: str) -> object:
        return self._sums[name], {part: stream.digest() for part, stream in self._streams[name].items()}


def _parts(array: pa.Array, place: str) -> Iterator[tuple[str, Any]]:
    """What the values consist of, each part by its place in a nested type."""
    yield f"{place}?", np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False))
    type_ = array.type
    if pa.types.is_null(type_):
        return
    if pa.types.is_struct(type_):
        for index, child in enumerate(array.flatten()):
            yield from _parts(_plain(child), f"{place}.{index}")
    elif pa.types.is_nested(type_):
        lists = _as_list(array) if pa.types.is_map(type_) else array
        lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
        yield f"{place}#", lengths.to_numpy()
        yield from _parts(_plain(lists.flatten()), f"{place}[]")
    elif _is_text(type_):
        lengths, data = _text(array)
        yield f"{place}#", lengths
        yield f"{place}=", data
    else:
        yield f"{place}=", _fixed(array)


def _as_list(array: pa.MapArray) -> pa.ListArray:
    """Of pairs: Arrow can take no map apart."""
    fields = [array.type.key_field, array.type.item_field]
    pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    buffers = array.buffers()[:2]
    return pa.ListArray.from_buffers(pa.list_(pairs.type), len(array), buffers, offset=array.offset, children=[pairs])


def _plain(array: pa.Array) -> pa.Array:
    return plain_values(pa.chunked_array([array], array.type)).combine_chunks()


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def _text(array: pa.Array) -> tuple[Numbers, Numbers]:
    """Lengths and bytes."""
    filled = pc.fill_null(array.cast(pa.large_binary()), b"") if array.null_count else array.cast(pa.large_binary())
    _, offsets_buffer, data = filled.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(filled) + 1, filled.offset * 8)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return np.diff(offsets), content[offsets[0] : offsets[-1]]


def _fixed(array: pa.Array) -> Numbers:
    """uint8 of shape (rows, width of a value); every NaN is the same one."""
    type_ = array.type
    if pa.types.is_boolean(type_):
        return np.asarray(pc.fill_null(array, False).cast(pa.uint8())).reshape(-1, 1)
    width = type_.bit_width // 8
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * width :][: len(array) * width]
    if pa.types.is_floating(type_):
        numbers = raw.view(f"f{width}").copy()
        numbers[np.isnan(numbers)] = np.nan
        raw = numbers.view(np.uint8)
    values: Numbers = raw.reshape(-1, width)
    return values * array.is_valid().to_numpy(zero_copy_only=False)[:, None] if array.null_count else values


def _hashes(array: pa.Array) -> Numbers:
    """uint64 for each value."""
    valid: Numbers = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64)
    type_ = storage_type(array.type)
    if pa.types.is_null(type_):
        return np.asarray(valid)
    if pa.types.is_nested(type_):
        hashed = (xxhash.xxh3_64_intdigest(repr(value).encode()) for value in array.to_pylist())
        return np.fromiter(hashed, np.uint64, len(array))
    total = valid + np.uint64(1)
    if _is_text(type_):
        return _mixed(_text_hashes(*_text(array)) + total)
    values = _fixed(array)
    padded = np.zeros((len(values), -(-values.shape[1] // 8) * 8), np.uint8)
    padded[:, : values.shape[1]] = values
    for word in padded.view(np.uint64).T:
        total = _mixed(total + word)
    return total


def _text_hashes(lengths: Numbers, data: Numbers) -> Numbers:
    """A polynomial of each text's bytes, beginning with its length."""
    hashes = lengths.astype(np.uint64)
    if not len(data):
        return hashes
    powers = np.multiply.accumulate(np.full(int(lengths.max()), _POWER, np.uint64))
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    terms = (data.astype(np.uint64) + np.uint64(1)) * powers[places]
    filled = lengths > 0
    hashes[filled] += np.add.reduceat(terms, starts[filled])
    return hashes


def _mixed(words: Numbers) -> Numbers:
    words = words * _MIX
    mixed: Numbers = (words ^ (words >> _SHIFT)) * _MIX
    return mixed
