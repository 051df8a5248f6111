"""Texts where they lie: rows of text columns that move without their bytes, on a CPU in C where that is built.

A join multiplies rows, and a group-by or a limit behind it leaves few: bytes that are not copied before that are not
copied in vain. `materialised` copies them, once, for whoever must read them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from pystachio.operators.column import BytesColumn, Column, ViewColumn
from pystachio.operators.kernels import native, primitives
from pystachio.operators.kernels.host_memory import empty

_MOST_KEPT: Final = 2
_MOST_WAITING: Final = 8
"""So many times the bytes of its texts a column may keep alive: for long, and until a few more rows have come."""


def can_view(column: BytesColumn) -> bool:
    """Whether rows of the column can be views."""
    return column.data.device.type == "cpu" and native.library() is not None


def view_texts(column: BytesColumn, indices: torch.Tensor | None) -> ViewColumn:
    """Rows `indices` (int32 or int64; None: all) without their validity, for a column that `can_view`."""
    library, places, data = _library(), column.places, column.data.contiguous()
    rows = len(column) if indices is None else indices.shape[0]
    views = torch.empty((rows, 2), dtype=torch.int64)
    wanted = data.data_ptr(), len(column), *_positions(indices, rows), views.data_ptr()
    if isinstance(places, torch.Tensor):
        offsets = places.contiguous()
        total = library.pystachio_view_texts(offsets.data_ptr(), *wanted)
    else:
        total = library.pystachio_view_blocks(places.bases.data_ptr(), places.within.data_ptr(), *wanted)
    if total < 0:
        raise IndexError("a position outside the strings")
    return ViewColumn(column.type, views, (data,), total)


def all_in_place(column: BytesColumn) -> ViewColumn:
    """All rows, with their validity, of a column that `can_view`."""
    return replace(view_texts(column, None), validity=column.validity)


def take_views(column: ViewColumn, indices: torch.Tensor) -> ViewColumn:
    """Rows `indices` (int32 or int64) without their validity."""
    views = torch.empty((indices.shape[0], 2), dtype=torch.int64)
    total = _library().pystachio_take_views(
        column.views.data_ptr(), len(column), *_positions(indices, indices.shape[0]), views.data_ptr()
    )
    if total < 0:
        raise IndexError("a position outside the strings")
    return ViewColumn(column.type, views, column.held, total)


def slice_views(column: ViewColumn, start: int, stop: int) -> ViewColumn:
    """Rows [start, stop) without their validity."""
    views = column.views[start:stop]
    hashes = None if column.hashes is None else column.hashes[start:stop]
    return ViewColumn(column.type, views, column.held, int(views[:, 1].sum()), hashes=hashes)


def concat_views(columns: Sequence[ViewColumn | BytesColumn], validity: torch.Tensor | None) -> ViewColumn:
    """The rows of all columns (at least one), one after the other."""
    parts = [all_in_place(column) if isinstance(column, BytesColumn) else column for column in columns]
    held = {tensor.untyped_storage().data_ptr(): tensor for part in parts for tensor in part.held}
    views = torch.cat([part.views for part in parts])
    total = sum(part.text_bytes for part in parts)
    known = [part.hashes for part in parts if part.hashes is not None]
    hashes = torch.cat(known) if len(known) == len(parts) else None
    return ViewColumn(parts[0].type, views, tuple(held.values()), total, validity, hashes)


def materialised(column: ViewColumn) -> BytesColumn:
    """The same rows with bytes of their own."""
    offsets = empty(len(column) + 1, torch.int64)
    data = empty(column.text_bytes, torch.uint8)
    copy_views(column.views, offsets, data)
    return BytesColumn(column.type, offsets, data, column.validity)


def copy_views(views: torch.Tensor, offsets: torch.Tensor, data: torch.Tensor) -> None:
    """The bytes of a ViewColumn's rows and where they then begin and end, into `data` (uint8, as many as there are) and
    `offsets` (int64, rows + 1)."""
    assert views.is_contiguous()
    assert offsets.shape[0] == views.shape[0] + 1
    _library().pystachio_copy_views(views.data_ptr(), views.shape[0], offsets.data_ptr(), data.data_ptr())


def settled(column: Column, *, waits: bool = False) -> Column:
    """The column with bytes of its own where its texts are too little of what it keeps alive.

    It is to be kept for long, or `waits`: a few rows, for more of their kind.
    """
    most = _MOST_WAITING if waits else _MOST_KEPT
    if isinstance(column, ViewColumn) and column.held_bytes > most * column.text_bytes:
        return materialised(column)
    return column


def texts_equal(column: BytesColumn | ViewColumn, models: torch.Tensor) -> bool:
    """Whether each row i has the text of row models[i] (int32 or int64), or both are NULL. Bytes are read in place."""
    if isinstance(column, BytesColumn) and not can_view(column):
        return _equal_anywhere(column, models)
    views = view_texts(column, None) if isinstance(column, BytesColumn) else column
    validity = None if column.validity is None else column.validity.contiguous()
    assert models.is_contiguous()
    found = _library().pystachio_same_views(
        views.views.data_ptr(),
        None if validity is None else validity.data_ptr(),
        len(column),
        models.data_ptr(),
        models.itemsize,
    )
    if found < 0:
        raise IndexError("a position outside the strings")
    return bool(found)


def _equal_anywhere(column: BytesColumn, models: torch.Tensor) -> bool:
    differs = models != torch.arange(len(column), device=models.device)
    if column.validity is not None:
        if not torch.equal(column.validity, column.validity.index_select(0, models)):
            return False
        differs &= column.validity
    rows = primitives(models.device).indices_of_true(differs)
    models = models.index_select(0, rows)
    starts, ends = column.offsets[:-1], column.offsets[1:]
    lengths = (ends - starts).index_select(0, rows)
    if not torch.equal(lengths, (ends - starts).index_select(0, models)):
        return False
    total = int(lengths.sum())
    within = torch.arange(total, device=models.device)
    before = lengths.cumsum(0) - lengths
    mine, others = (
        column.data.index_select(
            0, torch.repeat_interleave(starts.index_select(0, which) - before, lengths, output_size=total) + within
        )
        for which in (rows, models)
    )
    return torch.equal(mine, others)


def _positions(indices: torch.Tensor | None, rows: int) -> tuple[int | None, int, int]:
    if indices is None:
        return None, 0, rows
    assert indices.is_contiguous()
    return indices.data_ptr(), indices.itemsize, rows


def _library() -> ctypes.CDLL:
    library = native.library()
    assert library is not None
    return library
