"""The stored side of a join: its rows, their index, and the flags of those that were matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.collected import Collected, collect
from pystachio.operators.column import Column
from pystachio.operators.join_layout import JoinLayout
from pystachio.operators.kernels import direct, primitives
from pystachio.operators.kernels.keys import KeyCodes, KeyEncoding, encode_build
from pystachio.operators.kernels.numbering import capacity_for
from pystachio.operators.kernels.row_index import Members, RowIndex, index_members, index_rows
from pystachio.operators.placement import column_on
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation

_SLOT_BYTES: Final = 24
"""A slot of a hash table, and half a slot of the table that it grew from."""

_ROW_BYTES: Final = 24
"""What an index, or building it, holds per row besides its table."""


@dataclass(frozen=True, slots=True, eq=False)
class BuildSide:
    """`rows` has the layout's stored columns. `index` is None without keys.

    `null_keys` marks the rows whose key is NULL (null-aware joins only; None when there is none). `matched` (uint8
    [rows]) is written by every thread that probes, always with 1, which makes the race harmless.
    """

    rows: Batch
    encoding: KeyEncoding | None
    index: RowIndex | Members | None
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
) -> BuildSide:
    """Read the build side to the end, publish the wanted filters, index the keys."""
    columns = tuple(dict.fromkeys((*layout.stored, *layout.build_keys)))
    collected = await collect(ctx, receiver, schema, columns)
    keys = tuple(collected.rows.columns[columns.index(key)] for key in layout.build_keys)
    if not keys:
        return await _side(ctx, layout, collected, None, None, None, None)
    wanted = tuple(slot is not None for slot in filter_slots)
    filters, (encoding, codes) = await ctx.stream.run(_encoded, keys, null_equal, wanted)
    for slot, made in zip(filter_slots, filters, strict=True):
        if slot is not None:
            ctx.slots["filter", slot].set(made)
    index, index_reservation = await _indexed(ctx, codes, layout)
    null_keys = await ctx.stream.run(_null_keys, keys[0]) if layout.null_aware else None
    side = await _side(ctx, layout, collected, encoding, index, null_keys, index_reservation)
    flags = 0 if side.matched is None else side.matched.nbytes
    await collected.reservation.resize(side.rows.nbytes + encoding.nbytes + flags)
    return side


async def _indexed(ctx: Context, codes: KeyCodes, layout: JoinLayout) -> tuple[RowIndex | Members, Reservation]:
    """The index and the reservation that covers it. A direct table may be large: only if there is room for it now."""
    rows = codes.values.shape[0]
    reservation: Reservation | None = None
    if ctx.settings.direct_addressing and codes.span is not None and direct.is_addressable(codes.span, rows):
        reservation = ctx.memory.reserve_nowait(8 * (codes.span + 1) + _ROW_BYTES * rows)
    allow_direct = reservation is not None
    if reservation is None:
        reservation = await ctx.memory.reserve(_SLOT_BYTES * capacity_for(rows) + _ROW_BYTES * rows)
    make = index_rows if layout.needs_pairs else index_members
    index = await ctx.stream.run(make, codes, allow_direct=allow_direct)
    await reservation.resize(index.nbytes)
    return index, reservation


async def _side(
    ctx: Context,
    layout: JoinLayout,
    collected: Collected,
    encoding: KeyEncoding | None,
    index: RowIndex | Members | None,
    null_keys: torch.Tensor | None,
    index_reservation: Reservation | None,
) -> BuildSide:
    rows = collected.rows
    stored = Batch(rows.columns[: len(layout.stored)], rows.length, rows.ready)
    matched: torch.Tensor | None = None
    if layout.flags_matches:
        matched = await ctx.stream.run(_no_flags, rows.length, ctx.stream.device)
    reservations = (collected.reservation,) if index_reservation is None else (collected.reservation, index_reservation)
    return BuildSide(stored, encoding, index, null_keys, matched, reservations)


def _no_flags(rows: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.uint8, device=device)


def _encoded(
    keys: tuple[Column, ...], null_equal: tuple[bool, ...], wanted: tuple[bool, ...]
) -> tuple[list[RuntimeFilter | None], tuple[KeyEncoding, KeyCodes]]:
    """The runtime filters that are wanted, and the keys as codes."""
    filters = [
        _filter(key, equal) if asked else None for key, equal, asked in zip(keys, null_equal, wanted, strict=True)
    ]
    return filters, encode_build(keys, null_equal)


def _filter(key: Column, null_equal: bool) -> RuntimeFilter | None:
    """None when a probe row may match that the filter would drop. Scans filter on the host."""
    if null_equal and key.validity is not None:
        return None
    return filter_of_keys([column_on(key, torch.device("cpu"))])


def _null_keys(key: Column) -> torch.Tensor | None:
    if key.validity is None or primitives(key.validity.device).all_true(key.validity):
        return None
    return ~key.validity
