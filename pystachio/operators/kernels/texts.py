"""Strings by position and by value, on a CPU in C where that is built, else in Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import codes_from_arrow, column_from_arrow, dictionary_from_arrow, large_array
from pystachio.operators.column import BlockOffsets, BytesColumn, Dictionary, FixedColumn, ViewColumn
from pystachio.operators.kernels import hash_compiled, native
from pystachio.operators.kernels.hash_compiled import MOST_ROWS, TextTable
from pystachio.operators.kernels.host_memory import empty
from pystachio.operators.kernels.views import materialised, view_texts


def take_texts(column: BytesColumn, indices: torch.Tensor) -> BytesColumn:
    """Rows `indices` (int32 or int64) without their validity."""
    if indices.device.type != "cpu":
        return _take_anywhere(column, indices)
    library = native.library()
    if library is None:
        taken = column_from_arrow(large_array(_valid(column)).take(pa.array(indices.numpy())))
        assert isinstance(taken, BytesColumn)
        return BytesColumn(column.type, taken.offsets, taken.data)
    if isinstance(column.places, BlockOffsets):
        return materialised(view_texts(column, indices.contiguous()))
    offsets, data, indices = column.places.contiguous(), column.data.contiguous(), indices.contiguous()
    to_offsets = empty(len(indices) + 1, torch.int64)
    positions = indices.data_ptr(), indices.itemsize, len(indices)
    status = library.pystachio_gather_offsets(offsets.data_ptr(), len(column), *positions, to_offsets.data_ptr())
    if status != native.Status.OK:
        raise IndexError("a position outside the strings")
    out = empty(int(to_offsets[-1]), torch.uint8)
    library.pystachio_gather_bytes(
        offsets.data_ptr(), data.data_ptr(), len(data), *positions, to_offsets.data_ptr(), out.data_ptr(), len(out)
    )
    return BytesColumn(column.type, to_offsets, out)


def number_texts(column: BytesColumn) -> tuple[torch.Tensor, int]:
    """Numbers (int32 [rows], 0 for NULL) of the distinct strings on a CPU by appearance, and how many there are."""
    library = native.library()
    if library is None or len(column) > MOST_ROWS:
        codes, dictionary = encode_texts(column)
        return codes, len(dictionary)
    numbering = hash_compiled.number_texts(library, column)
    return numbering.numbers, len(numbering.first)


def encode_texts(column: BytesColumn) -> tuple[torch.Tensor, Dictionary]:
    """The same numbers as codes, and what they mean."""
    library = native.library()
    if library is None or len(column) > MOST_ROWS:
        encoded = large_array(column).dictionary_encode()
        dictionary = dictionary_from_arrow(encoded.dictionary)
        return codes_from_arrow(encoded.indices, len(dictionary))[0], dictionary
    numbering = hash_compiled.number_texts(library, column)
    values = take_texts(column, numbering.first)
    dictionary = Dictionary(values)
    dictionary.derived["texts"] = TextTable(library, numbering.slots, values)
    return numbering.numbers, dictionary


def find_texts(column: BytesColumn, dictionary: Dictionary) -> torch.Tensor:
    """The code in `dictionary` (of strings) of each string on a CPU: int32 [rows], -1 where it has none or for NULL."""
    library = native.library()
    if library is None or len(dictionary) > MOST_ROWS:
        positions = pc.index_in(large_array(column), value_set=large_array(_texts(dictionary)), skip_nulls=True)
        found = column_from_arrow(positions.fill_null(-1))
        assert isinstance(found, FixedColumn)
        return found.values
    table = dictionary.derived.get("texts")
    if table is None:
        texts = _texts(dictionary)
        made = TextTable(library, hash_compiled.number_texts(library, texts).slots, texts)
        table = dictionary.derived.setdefault("texts", made)
    return cast(TextTable, table).lookup(column).sub_(1)


def text_lengths(column: BytesColumn) -> torch.Tensor | None:
    """int32 [rows]: the characters of each string on a CPU; None without the C library, or for giants."""
    library = native.library()
    if library is None:
        return None
    lengths = empty(len(column), torch.int32)
    offsets, data = column.offsets.contiguous(), column.data.contiguous()
    texts = offsets.data_ptr(), data.data_ptr(), len(data), len(column)
    status = library.pystachio_text_lengths(*texts, lengths.data_ptr())
    return lengths if status == native.Status.OK else None


def hashed(column: ViewColumn) -> ViewColumn:
    """The same with the hashes of its rows."""
    return column if column.hashes is not None else replace(column, hashes=hash_texts(column))


def hash_texts(column: BytesColumn | ViewColumn) -> torch.Tensor:
    """int64 [rows], equal where strings on a CPU are; the C library must be there."""
    if isinstance(column, ViewColumn) and column.hashes is not None:
        return column.hashes
    library = native.library()
    assert library is not None
    hashes = empty(len(column), torch.int64)
    if isinstance(column, ViewColumn):
        library.pystachio_hash_views(column.views.data_ptr(), len(column), hashes.data_ptr())
        return hashes
    offsets, data = column.offsets.contiguous(), column.data.contiguous()
    library.pystachio_hash_texts(offsets.data_ptr(), data.data_ptr(), len(column), hashes.data_ptr())
    return hashes


def _texts(dictionary: Dictionary) -> BytesColumn:
    assert isinstance(dictionary.values, BytesColumn)
    return dictionary.values


def _valid(column: BytesColumn) -> BytesColumn:
    return BytesColumn(column.type, column.places, column.data)


def _take_anywhere(column: BytesColumn, indices: torch.Tensor) -> BytesColumn:
    starts = column.offsets.index_select(0, indices)
    lengths = column.offsets.index_select(0, indices + 1) - starts
    offsets = torch.zeros(indices.shape[0] + 1, dtype=torch.int64, device=indices.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    shifts = torch.repeat_interleave(starts - offsets[:-1], lengths)
    positions = torch.arange(shifts.shape[0], device=indices.device) + shifts
    return BytesColumn(column.type, offsets, column.data.index_select(0, positions))


def extreme_rows(
    column: BytesColumn | ViewColumn, codes: torch.Tensor | None, slots: int, *, largest: bool
) -> torch.Tensor | None:
    """int64 [slots], on a CPU: of each of the integer `codes` in [0, slots) (None: all rows have 0) the first row with
    the smallest or largest text by its bytes, NULLs left out; -1 where there is none. None without the library."""
    library = native.library(len(column))
    if library is None:
        return None
    offsets = data = views = None
    if isinstance(column, ViewColumn):
        views = column.views.contiguous()
    else:
        offsets, data = column.offsets.contiguous(), column.data.contiguous()
    valid = None if column.validity is None else column.validity.contiguous()
    codes = None if codes is None else codes.contiguous()
    best = empty(slots, torch.int64)
    places = (None if each is None else each.data_ptr() for each in (offsets, data, views, valid, codes))
    width = 0 if codes is None else codes.itemsize
    status = library.pystachio_text_extremes(*places, width, len(column), slots, largest, best.data_ptr())
    return best if status == native.Status.OK else None
