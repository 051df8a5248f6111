"""The stored side of a join: its rows, their index, and the flags of those that were matched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.collected import Collected, collect
from pystachio.operators.column import Column, DictionaryColumn, FixedColumn
from pystachio.operators.joins.inequalities import MAKING_BYTES, OrderedIndex, index_in_order
from pystachio.operators.joins.layout import JoinLayout
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import with_tight_bounds
from pystachio.operators.kernels.keys import KeyCodes, KeyEncoding, encode_build
from pystachio.operators.kernels.numbering import capacity_for
from pystachio.operators.kernels.row_index import (
    Members,
    RowIndex,
    index_members,
    index_rows,
    is_addressable,
    table_bytes,
)
from pystachio.operators.kernels.selection import concat, own_texts
from pystachio.operators.placement import column_on
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.operators.small import is_small
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause
from pystachio.runtime.memory import Reservation

Filters = tuple[RuntimeFilter | None, ...]
"""For each key of a join, if it is wanted and can be made."""

_SLOT_BYTES: Final = 24
"""A slot of a hash table, and half a slot of the table that it grew from."""

_ROW_BYTES: Final = 24
"""What an index, or building it, holds per row besides its table."""

_FEW_ROWS: Final = 1 << 16
"""Of more the filters, for which scans wait, and the index are made beside each other, and ranges are not measured."""


@dataclass(frozen=True, slots=True, eq=False)
class BuildSide:
    """`rows` has the layout's stored columns. `index` is None where all rows are compared.

    `null_keys` marks the rows whose key is NULL (null-aware joins only; None when there is none). `matched` (uint8
    [rows]) is written by every thread that probes, always with 1, which makes the race harmless.
    """

    rows: Batch
    encoding: KeyEncoding | None
    index: RowIndex | Members | OrderedIndex | None
    null_keys: torch.Tensor | None
    matched: torch.Tensor | None
    reservations: tuple[Reservation, ...]


async def build_side(
    ctx: Context,
    receiver: Receiver[Batch],
    layout: JoinLayout,
    *,
    schema: Schema,
    null_equal: tuple[bool, ...],
    filter_slots: tuple[int | None, ...],
    shares_filters: bool,
) -> tuple[BuildSide, Filters]:
    """Read the build side to the end, publish the wanted filters, index the keys. Returns the filters, too."""
    parts = len(ctx.peers.nodes) if shares_filters and ctx.peers is not None else 1
    columns = tuple(dict.fromkeys((*layout.stored, *layout.build_keys)))
    collected = await collect(ctx, receiver, schema, columns)
    reading = _Reading(ctx, layout, tuple(columns.index(key) for key in layout.build_keys), null_equal, parts)
    wanted = tuple(slot is not None for slot in filter_slots)
    run = ctx.stream.run_small if is_small(collected.batches) else ctx.stream.run

    async def publish_filters(keys: Sequence[Sequence[Column]]) -> Filters:
        filters = await ctx.stream.run(reading.filters, keys, wanted)
        publish(ctx, filter_slots, filters, shares_filters)
        return filters

    if collected.rows <= _FEW_ROWS or not any(wanted):
        read, filters = await run(reading.read_with_filters, collected, wanted)
        publish(ctx, filter_slots, filters, shares_filters)
    else:
        try:
            async with asyncio.TaskGroup() as group:
                publishing = group.create_task(publish_filters(reading.keys_of(collected.batches)))
                read = await ctx.stream.run(reading.read, collected)
        except BaseExceptionGroup as failures:
            raise root_cause(failures) from None
        filters = publishing.result()
    stored = Batch(read.rows.columns[: len(layout.stored)], read.rows.length, read.rows.ready)
    index: RowIndex | Members | OrderedIndex | None = read.index
    index_reservation = read.index_reservation
    if read.codes is not None and (index is None or index_reservation is None):
        index, index_reservation = await _indexed(ctx, read.codes, layout)
    elif layout.inequalities is not None and stored.length > 1:
        index_reservation = await ctx.memory.reserve(MAKING_BYTES * stored.length)
        index = await run(index_in_order, layout.inequalities, stored)
        await index_reservation.resize(0 if index is None else index.nbytes)
    encoding_bytes = 0 if read.encoding is None else read.encoding.nbytes
    flags_bytes = 0 if read.matched is None else read.matched.nbytes
    await collected.reservation.resize(read.rows.nbytes + encoding_bytes + flags_bytes)
    reservations = (collected.reservation,) if index_reservation is None else (collected.reservation, index_reservation)
    return BuildSide(stored, read.encoding, index, read.null_keys, read.matched, reservations), filters


def publish(ctx: Context, slots: Sequence[int | None], filters: Filters, is_part: bool = False) -> None:
    """Tell the scans that wait for the filters, or who makes filters of all nodes of their parts."""
    for slot, made in zip(slots, filters, strict=True):
        if slot is not None:
            ctx.slots["filter part" if is_part else "filter", slot].set(made)


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """What jobs make of the rows, without keys neither `encoding` nor `codes`; `index` with its reservation, when there
    was room for it."""

    rows: Batch
    null_keys: torch.Tensor | None
    matched: torch.Tensor | None
    encoding: KeyEncoding | None = None
    codes: KeyCodes | None = None
    index: RowIndex | Members | None = None
    index_reservation: Reservation | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """The jobs of a build side whose keys are the columns `keys`."""

    ctx: Context
    layout: JoinLayout
    keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    parts: int

    def keys_of(self, batches: Sequence[Batch]) -> list[list[Column]]:
        """Each key column, in pieces."""
        return [[batch.columns[key] for batch in batches] for key in self.keys]

    def filters(self, keys: Sequence[Sequence[Column]], wanted: tuple[bool, ...]) -> Filters:
        """Those that are wanted of the keys."""
        each = zip(keys, self.null_equal, wanted, strict=True)
        return tuple(_filter(pieces, equal, self.parts) if asked else None for pieces, equal, asked in each)

    def read_with_filters(self, collected: Collected, wanted: tuple[bool, ...]) -> tuple[_Read, Filters]:
        rows = self._rows(collected)
        filters = self.filters(self.keys_of((rows,)), wanted)
        return self._read(rows), filters

    def read(self, collected: Collected) -> _Read:
        return self._read(self._rows(collected))

    def _rows(self, collected: Collected) -> Batch:
        if self.keys:
            # Tables are mostly stored in the order of some key: an index of keys that ascend is the smallest.
            collected.batches.sort(key=partial(_first_number, key=self.keys[0]))
        rows = own_texts(collected.joined(), self.keys)
        if rows.length > _FEW_ROWS or self.ctx.stream.device.type != "cpu":
            return rows
        # What behind the join is grouped by a column of few rows may be addressed.
        return Batch(tuple(map(with_tight_bounds, rows.columns)), rows.length, rows.ready)

    def _read(self, rows: Batch) -> _Read:
        ctx, layout = self.ctx, self.layout
        flagged = (
            torch.zeros(rows.length, dtype=torch.uint8, device=ctx.stream.device) if layout.flags_matches else None
        )
        if not self.keys:
            return _Read(rows, None, flagged)
        columns = tuple(rows.columns[key] for key in self.keys)
        null_keys = _null_keys(columns[0]) if layout.null_aware else None
        encoding, codes = encode_build(columns, self.null_equal)
        nbytes, allow_direct = _index_bytes(ctx, codes)
        index: RowIndex | Members | None = None
        reservation = ctx.memory.reserve_nowait(nbytes)
        if reservation is not None:
            index = _made(codes, layout, allow_direct)
            reservation.shrink(index.nbytes)
        return _Read(rows, null_keys, flagged, encoding, codes, index, reservation)


async def _indexed(ctx: Context, codes: KeyCodes, layout: JoinLayout) -> tuple[RowIndex | Members, Reservation]:
    """The index and the reservation that covers it, which is waited for. A direct table may be large: only if there is
    room for it now."""
    nbytes, allow_direct = _index_bytes(ctx, codes)
    reservation = ctx.memory.reserve_nowait(nbytes) if allow_direct else None
    if reservation is None:
        allow_direct = False
        reservation = await ctx.memory.reserve(_hash_bytes(codes.values.shape[0]))
    index = await ctx.stream.run(_made, codes, layout, allow_direct)
    await reservation.resize(index.nbytes)
    return index, reservation


def _made(codes: KeyCodes, layout: JoinLayout, allow_direct: bool) -> RowIndex | Members:
    return (index_rows if layout.needs_pairs else index_members)(codes, allow_direct=allow_direct)


def _index_bytes(ctx: Context, codes: KeyCodes) -> tuple[int, bool]:
    """What it takes to make the index, and whether by direct addressing."""
    rows, device = codes.values.shape[0], codes.values.device
    if ctx.settings.direct_addressing and codes.span is not None and is_addressable(codes.span, rows, device):
        return table_bytes(codes.span, rows, device) + _ROW_BYTES * rows, True
    return _hash_bytes(rows), False


def _hash_bytes(rows: int) -> int:
    return _SLOT_BYTES * capacity_for(rows) + _ROW_BYTES * rows


def _first_number(batch: Batch, key: int) -> int:
    """Of the column `key`; 0 for what is none, or elsewhere than on the host."""
    column = batch.columns[key]
    if not isinstance(column, FixedColumn) or column.values.device.type != "cpu" or not batch.length:
        return 0
    return 0 if column.values.dtype.is_floating_point else int(column.values[0])


def _filter(key: Sequence[Column], null_equal: bool, parts: int) -> RuntimeFilter | None:
    """None when a probe row may match that the filter would drop. Scans filter on the host."""
    if null_equal and any(piece.validity is not None for piece in key):
        return None
    # Each piece with codes would be looked up in a dictionary of its own.
    pieces = (concat(key),) if any(isinstance(piece, DictionaryColumn) for piece in key) else key
    return filter_of_keys([column_on(piece, torch.device("cpu")) for piece in pieces], parts)


def _null_keys(key: Column) -> torch.Tensor | None:
    if key.validity is None or primitives(key.validity.device).all_true(key.validity):
        return None
    return ~key.validity
