"""From a column to the bytes of its file (`format`)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
import xxhash

from pystachio.operators.chunks.format import Array, ChunkKey, padded
from pystachio.operators.chunks.header import PAGE_BYTES, header_page
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import packing
from pystachio.operators.kernels.selection import take
from pystachio.operators.narrowing import narrowest_dtype

_SMALL_SHARE: Final = 8
"""To find the used values takes as long as all the rest of encoding."""


class _Part(NamedTuple):
    """What becomes a segment: its values, and what is known of them if they are integers. Those that are not valid
    need not be kept (None: all are); the others are within a range of so many bits."""

    values: Array
    validity: Array | None = None
    bits: int | None = None

    @property
    def most_bytes(self) -> int:
        """What it takes at most."""
        if self.bits is not None:
            packed = packing.most_packed_bytes(len(self.values), self.bits)
            if packed <= self.packed_capacity:
                return packed
        return self.values.nbytes

    @property
    def packed_capacity(self) -> int:
        """The most that it may take packed, else it stays as it is; 0 for what is never packed."""
        packable = self.values.dtype.kind in "ib"
        return padded(self.values.nbytes) * 7 // 8 // PAGE_BYTES * PAGE_BYTES if packable else 0

    def write(self, out: Array) -> tuple[int, int | None]:
        """The bytes that it takes there, and the divisor if they are packed."""
        if self.packed_capacity:
            values = self.values.view(np.int8) if self.values.dtype.kind == "b" else self.values
            packed = packing.pack(values, self.validity, out[: self.packed_capacity])
            if packed is not None:
                return packed
        nbytes = self.values.nbytes
        out[:nbytes] = self.values.view(np.uint8)
        return nbytes, None


def stored_bytes(column: Column) -> int:
    """The most that the column takes in a file."""
    return PAGE_BYTES + sum(padded(part.most_bytes) for part in _parts(column))


def encode(column: Column, key: ChunkKey) -> memoryview | None:
    """The file's bytes, at an address that is a multiple of 4 KiB. None for a form that has no place in the format.

    What lies under a NULL is not kept. Of a dictionary that is not small beside the codes, only the values are kept
    that they refer to.
    """
    if isinstance(column, DictionaryColumn):
        if not isinstance(column.dictionary.values, BytesColumn):
            return None
        column = _with_used_values(column)
    kind, dtype, bounds = _described(column)
    whole = _aligned(stored_bytes(column))
    place = PAGE_BYTES
    segments = []
    for part in _parts(column):
        nbytes, divisor = part.write(whole[place:])
        end, after = place + nbytes, place + padded(nbytes)
        whole[end:after] = 0
        segments.append([place, nbytes, xxhash.xxh3_64_hexdigest(whole[place:end].data), divisor])
        place = after
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
    return whole[:place].data


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


def _parts(column: Column) -> list[_Part]:
    """What is stored, in order."""
    validity = None if column.validity is None else np.ascontiguousarray(column.validity.numpy())
    match column:
        case FixedColumn(values=values, bounds=bounds):
            bits = None if bounds is None else (bounds[1] - bounds[0]).bit_length()
            parts = [_part(values, validity, bits)]
        case WideDecimalColumn(high=high, low=low):
            parts = [_part(high, validity), _part(low, validity)]
        case BytesColumn():
            parts = _text(column)
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            texts = _text(dictionary.values) if isinstance(dictionary.values, BytesColumn) else []
            parts = [_part(codes, validity, max(0, len(dictionary) - 1).bit_length()), *texts]
        case ViewColumn():
            raise AssertionError("no scan makes views")
    return parts if validity is None else [*parts, _Part(validity, bits=1)]


def _part(values: torch.Tensor, validity: Array | None = None, bits: int | None = None) -> _Part:
    return _Part(np.ascontiguousarray(values.numpy()), validity, bits)


def _text(column: BytesColumn) -> list[_Part]:
    """Offsets from 0 on, and the texts."""
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    offsets = column.offsets - start if start else column.offsets
    return [_part(offsets, bits=(end - start).bit_length()), _part(column.data[start:end])]


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


def _aligned(length: int) -> Array:
    """The disk takes direct writes from such addresses only."""
    spacious = np.empty(length + PAGE_BYTES, np.uint8)
    start = -spacious.ctypes.data % PAGE_BYTES
    return spacious[start : start + length]
