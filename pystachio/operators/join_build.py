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
from pystachio.operators.kernels.hash_table import capacity_for
from pystachio.operators.kernels.keys import KeyCodes, KeyEncoding, encode_build
from pystachio.operators.kernels.row_index import Members, RowIndex, index_members, index_rows
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation

_SLOT_BYTES: Final = 12
"""A hash table's key and row number."""

_ROW_BYTES: Final = 24
"""What building an index holds per row besides its table."""


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
    reservation: Reservation


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
    for key, equal, slot in zip(keys, null_equal, filter_slots, strict=True):
        if slot is not None:
            ctx.slots["filter", slot].set(await ctx.stream.run(_filter, key, equal))
    if not keys:
        return _side(ctx, layout, collected, None, None, None)
    encoding, codes = await ctx.stream.run(encode_build, keys, null_equal)
    await collected.reservation.resize(collected.reservation.nbytes + _index_bytes(codes, collected.rows.length))
    make = index_rows if layout.needs_pairs else index_members
    index = await ctx.stream.run(make, codes, allow_direct=ctx.settings.direct_addressing)
    null_keys = await ctx.stream.run(_null_keys, keys[0]) if layout.null_aware else None
    side = _side(ctx, layout, collected, encoding, index, null_keys)
    held = side.rows.nbytes + encoding.nbytes + index.nbytes + (0 if side.matched is None else side.matched.nbytes)
    await collected.reservation.resize(held)
    return side


def _side(
    ctx: Context,
    layout: JoinLayout,
    collected: Collected,
    encoding: KeyEncoding | None,
    index: RowIndex | Members | None,
    null_keys: torch.Tensor | None,
) -> BuildSide:
    rows = collected.rows
    stored = Batch(rows.columns[: len(layout.stored)], rows.length, rows.ready)
    matched = torch.zeros(rows.length, dtype=torch.uint8, device=ctx.stream.device) if layout.flags_matches else None
    return BuildSide(stored, encoding, index, null_keys, matched, collected.reservation)


def _filter(key: Column, null_equal: bool) -> RuntimeFilter | None:
    """None when a probe row may match that the filter would drop."""
    if null_equal and key.validity is not None:
        return None
    return filter_of_keys([key])


def _null_keys(key: Column) -> torch.Tensor | None:
    if key.validity is None or primitives(key.validity.device).all_true(key.validity):
        return None
    return ~key.validity


def _index_bytes(codes: KeyCodes, rows: int) -> int:
    """What building the index may take at once, from above."""
    if codes.span is not None and direct.is_addressable(codes.span, rows):
        return 8 * (codes.span + 1) + _ROW_BYTES * rows
    return _SLOT_BYTES * capacity_for(rows) + _ROW_BYTES * rows
