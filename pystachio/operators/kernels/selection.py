"""Rows in and out of columns: take, slice, concatenate."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import (
    BlockOffsets,
    Bounds,
    BytesColumn,
    Column,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.block_offsets import sliced
from pystachio.operators.kernels.host_memory import is_shared, joined, ones, taken
from pystachio.operators.kernels.strings import index, newest, unify
from pystachio.operators.kernels.texts import take_texts
from pystachio.operators.kernels.views import (
    can_view,
    concat_views,
    materialised,
    settled,
    slice_views,
    take_views,
    view_texts,
)
from pystachio.operators.placement import rebuilt, tensors_of, values_on


def take(column: Column, indices: torch.Tensor) -> Column:
    """Rows `indices` (int32 or int64, in range) of the column, in that order."""
    validity = None if column.validity is None else taken(column.validity, indices)
    match column:
        case FixedColumn(type=type_, values=values, bounds=bounds):
            if _is_part_of(column, len(indices)):
                return FixedColumn(type_, values[: len(indices)], None, bounds)
            return FixedColumn(type_, taken(values, indices), validity, bounds)
        case WideDecimalColumn(type=type_, high=high, low=low):
            return WideDecimalColumn(type_, taken(high, indices), taken(low, indices), validity)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            return DictionaryColumn(type_, taken(codes, indices), dictionary, validity)
        case BytesColumn():
            texts = take_texts(column, indices)
            return texts if validity is None else with_validity(texts, validity)
        case ViewColumn():
            seen = take_views(column, indices.contiguous())
            return seen if validity is None else with_validity(seen, validity)


def has_one_value(column: FixedColumn) -> bool:
    """Whether all rows are known to have the same, and none is NULL."""
    return column.bounds is not None and column.bounds[0] == column.bounds[1] and column.validity is None


def _is_part_of(column: FixedColumn, rows: int) -> bool:
    """Whether so many of the rows, whichever, may be a view of the first ones, on the host: all have one value, as the
    counts of single rows have, and no much larger memory is kept by it, unless all share that anyway."""
    if not has_one_value(column) or column.values.device.type != "cpu":
        return False
    held = column.values.untyped_storage().nbytes() // column.values.itemsize
    return rows <= len(column) and (4 * rows >= 3 * held or is_shared(column.values))


def take_late(column: Column, indices: torch.Tensor) -> Column:
    """`take` that leaves the bytes of texts where they lie: for rows that something behind may drop or put together."""
    if not isinstance(column, BytesColumn) or not can_view(column):
        return take(column, indices)
    seen = view_texts(column, indices.contiguous())
    return seen if column.validity is None else with_validity(seen, column.validity.index_select(0, indices))


def take_batch(batch: Batch, indices: torch.Tensor) -> Batch:
    """`take` of every column."""
    return Batch(tuple(take(column, indices) for column in batch.columns), indices.shape[0], batch.ready)


def take_where(batch: Batch, mask: torch.Tensor) -> Batch:
    """The rows in which `mask` (bool [rows]) is true; one wait for a device."""
    if not batch.columns or any(isinstance(column, BytesColumn | ViewColumn) for column in batch.columns):
        return take_batch(batch, primitives(mask.device).indices_of_true(mask))
    parts = [tensor for column in batch.columns for tensor in tensors_of(column)]
    kept = primitives(mask.device).compact(mask, parts)
    waiting = iter(kept)
    columns = tuple(rebuilt(column, [next(waiting) for _ in tensors_of(column)]) for column in batch.columns)
    return Batch(columns, kept[0].shape[0], batch.ready)


def take_or_null(column: Column, indices: torch.Tensor) -> Column:
    """Like `take_late`, with NULL where an index is -1 (the unmatched side of an outer join)."""
    present = indices >= 0
    if device_of(column).type == "cpu" and primitives(indices.device).all_true(present):
        return take_late(column, indices)
    if len(column) == 0:
        return all_null(column.type, indices.shape[0], device_of(column), like=column)
    taken = take_late(column, indices.clamp(min=0))
    return with_validity(taken, present if taken.validity is None else taken.validity & present)


def slice_column(column: Column, start: int, stop: int) -> Column:
    """Rows [start, stop), sharing the memory (offsets of strings are rebased, so that nbytes is the slice's own)."""
    validity = None if column.validity is None else column.validity[start:stop]
    match column:
        case FixedColumn(type=type_, values=values, bounds=bounds):
            return FixedColumn(type_, values[start:stop], validity, bounds)
        case WideDecimalColumn(type=type_, high=high, low=low):
            return WideDecimalColumn(type_, high[start:stop], low[start:stop], validity)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            return DictionaryColumn(type_, codes[start:stop], dictionary, validity)
        case BytesColumn(type=type_, places=places, data=data):
            if isinstance(places, BlockOffsets):
                offsets, first, last = sliced(places, start, stop)
            else:
                first, last = ends(places, start, stop)
                offsets = places[start : stop + 1] - first
            return BytesColumn(type_, offsets, data[first:last], validity)
        case ViewColumn():
            return with_validity(slice_views(column, start, stop), validity)


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Rows [start, stop) of every column."""
    return Batch(tuple(slice_column(column, start, stop) for column in batch.columns), stop - start, batch.ready)


def concat(columns: Sequence[Column]) -> Column:
    """The rows of all columns (at least one, of one logical type), one after the other.

    Texts of which some are views are all views. Dictionary columns end up on one dictionary, unless a plain column is
    among them or the dictionaries hold more values than the columns have rows: then the result is plain.
    """
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, DictionaryColumn) for column in columns):
        coded = [column for column in columns if isinstance(column, DictionaryColumn)]
        dictionaries = newest(coded)
        if len(dictionaries) == 1 or sum(map(len, dictionaries)) <= max(1024, sum(map(len, coded))):
            return _concat_codes(unify(coded))
    plain = [decode(column) if isinstance(column, DictionaryColumn) else column for column in columns]
    if all(isinstance(column, BytesColumn) for column in plain):
        return _concat_bytes([column for column in plain if isinstance(column, BytesColumn)])
    if any(isinstance(column, ViewColumn) for column in plain):
        texts = [column for column in plain if isinstance(column, BytesColumn | ViewColumn)]
        return concat_views(texts, _concat_validity(texts))
    if any(isinstance(column, WideDecimalColumn) for column in plain):
        return _concat_wide([widen(column) for column in plain])
    return _concat_fixed([column for column in plain if isinstance(column, FixedColumn)])


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """The rows of all batches (at least one, of one schema). `ready` is the last one's."""
    if len(batches) == 1:
        return batches[0]
    columns = tuple(concat(parts) for parts in zip(*(batch.columns for batch in batches), strict=True))
    return Batch(columns, sum(batch.length for batch in batches), batches[-1].ready)


def settled_batch(batch: Batch, *, waits: bool = False) -> Batch:
    """`views.settled` of every column."""
    columns = tuple(settled(column, waits=waits) for column in batch.columns)
    return batch if columns == batch.columns else Batch(columns, batch.length, batch.ready)


def own_texts(batch: Batch, positions: Collection[int]) -> Batch:
    """The batch with copies of the texts that lie elsewhere, in the columns at `positions`."""
    if not any(isinstance(batch.columns[position], ViewColumn) for position in positions):
        return batch
    columns = [
        materialised(column) if isinstance(column, ViewColumn) and position in positions else column
        for position, column in enumerate(batch.columns)
    ]
    return Batch(tuple(columns), batch.length, batch.ready)


def decode(column: DictionaryColumn) -> Column:
    """The plain column behind the codes."""
    if len(column.dictionary) == 0:
        return all_null(column.type, len(column), column.codes.device, like=column.dictionary.values)
    values = take(values_on(column.dictionary, column.codes.device), index(column.codes))
    return values if column.validity is None else with_validity(values, column.validity)


def plain(column: Column) -> FixedColumn | WideDecimalColumn | BytesColumn:
    """The column itself, the values behind its codes, or the texts behind its views."""
    if isinstance(column, ViewColumn):
        return materialised(column)
    if not isinstance(column, DictionaryColumn):
        return column
    decoded = decode(column)
    assert not isinstance(decoded, DictionaryColumn | ViewColumn)
    return decoded


def widen(column: Column) -> WideDecimalColumn:
    """A decimal column in two limbs."""
    if isinstance(column, WideDecimalColumn):
        return column
    assert isinstance(column, FixedColumn)
    low = column.values.to(torch.int64)
    return WideDecimalColumn(column.type, low >> 63, low, column.validity)


def with_validity(column: Column, validity: torch.Tensor | None) -> Column:
    """The column's values with another validity. Without one (None) no row may have been NULL: bounds are those of the
    valid values, and what lay under a NULL is none of them."""
    match column:
        case FixedColumn(type=type_, values=values, bounds=bounds):
            return FixedColumn(type_, values, validity, bounds)
        case WideDecimalColumn(type=type_, high=high, low=low):
            return WideDecimalColumn(type_, high, low, validity)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            return DictionaryColumn(type_, codes, dictionary, validity)
        case BytesColumn(type=type_, places=places, data=data):
            return BytesColumn(type_, places, data, validity)
        case ViewColumn():
            return replace(column, validity=validity)


def all_null(type_: pa.DataType, rows: int, device: torch.device, *, like: Column | None = None) -> Column:
    """`rows` NULLs, in the representation of `like` where that is given."""
    validity = torch.zeros(rows, dtype=torch.bool, device=device)
    match like:
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            return DictionaryColumn(type_, torch.zeros(rows, dtype=codes.dtype, device=device), dictionary, validity)
        case FixedColumn(values=values):
            return FixedColumn(type_, torch.zeros(rows, dtype=values.dtype, device=device), validity, (0, 0))
        case _:
            pass
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        offsets = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        return BytesColumn(type_, offsets, torch.empty(0, dtype=torch.uint8, device=device), validity)
    return FixedColumn(type_, torch.zeros(rows, dtype=null_dtype(type_), device=device), validity)


def null_dtype(type_: pa.DataType) -> torch.dtype:
    """A dtype for a column of `type_` without any value."""
    if pa.types.is_boolean(type_):
        return torch.bool
    if pa.types.is_floating(type_):
        return torch.float64 if type_ == pa.float64() else torch.float32
    return torch.int8


def device_of(column: Column) -> torch.device:
    """Where the column's tensors are."""
    match column:
        case FixedColumn(values=tensor) | WideDecimalColumn(high=tensor) | BytesColumn(data=tensor):
            return tensor.device
        case ViewColumn(views=views):
            return views.device
        case DictionaryColumn(codes=codes):
            return codes.device


def ends(offsets: torch.Tensor, start: int, stop: int) -> tuple[int, int]:
    """Where the bytes of the rows [start, stop) begin and end; one wait for a device instead of two."""
    if stop == start or offsets.device.type == "cpu":
        return int(offsets[start]), int(offsets[stop])
    first, last = offsets[start : stop + 1 : stop - start].tolist()
    return first, last


def union_bounds(known: Sequence[Bounds | None]) -> Bounds | None:
    """The smallest range around all of them; None when one is not known."""
    ranges = [bounds for bounds in known if bounds is not None]
    if len(ranges) < len(known) or not ranges:
        return None
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _concat_validity(columns: Sequence[Column]) -> torch.Tensor | None:
    if all(column.validity is None for column in columns):
        return None
    device = device_of(columns[0])
    present = [
        torch.ones(len(column), dtype=torch.bool, device=device) if column.validity is None else column.validity
        for column in columns
    ]
    return torch.cat(present)


def _concat_fixed(columns: Sequence[FixedColumn]) -> FixedColumn:
    # A column of type NULL, or of NULLs only, must not decide the dtype; integers promote to the widest.
    dtype = reduce(torch.promote_types, (column.values.dtype for column in columns))
    bounds = union_bounds([column.bounds for column in columns])
    if bounds == (1, 1) and dtype == torch.int8 and all(is_shared(column.values) for column in columns):
        return FixedColumn(columns[0].type, ones(sum(map(len, columns))), _concat_validity(columns), bounds)
    values = joined([column.values for column in columns], dtype)
    return FixedColumn(columns[0].type, values, _concat_validity(columns), bounds)


def _concat_wide(columns: Sequence[WideDecimalColumn]) -> WideDecimalColumn:
    high = torch.cat([column.high for column in columns])
    low = torch.cat([column.low for column in columns])
    return WideDecimalColumn(columns[0].type, high, low, _concat_validity(columns))


def _concat_codes(columns: Sequence[DictionaryColumn]) -> DictionaryColumn:
    dtype = reduce(torch.promote_types, (column.codes.dtype for column in columns))
    codes = joined([column.codes for column in columns], dtype)
    first = columns[0]
    return DictionaryColumn(first.type, codes, first.dictionary, _concat_validity(columns))


def _concat_bytes(columns: Sequence[BytesColumn]) -> BytesColumn:
    """Bytes are copied once; a column's bytes outside its offsets are left behind."""
    offsets, data, total = [columns[0].offsets.new_zeros(1)], [], 0
    for column in columns:
        first, last = ends(column.offsets, 0, len(column))
        offsets.append(column.offsets[1:] + (total - first))
        data.append(column.data[first:last])
        total += last - first
    return BytesColumn(columns[0].type, torch.cat(offsets), torch.cat(data), _concat_validity(columns))
