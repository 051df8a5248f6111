"""Build sides that the next run of a plan finds as an earlier one left them.

What a join stores of small tables, its index and the filters over its keys only depend on the plan and on the tables'
files, as an index would. They are kept beside the hot columns, in memory that nobody needs. The idea of hash tables
that outlive their query is from Dursun, Binnig, Cetintemel and Kraska, "Revisiting Reuse in Main Memory Database
Systems" (SIGMOD 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from pystachio.operators.batch import column_nbytes
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn, WideDecimalColumn
from pystachio.operators.joins.build import BuildSide, Filters
from pystachio.runtime.context import Context

MOST_ROWS: Final = 1 << 16
"""Of the tables together, and of the side."""
_MOST_BYTES: Final = 8 << 20
"""A larger side takes so long to go through that making it does not matter."""
_MOST_SECONDS: Final = 0.01
"""What takes longer was a wait for others."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuild:
    """A side, which nobody writes to and no reservation covers, with a filter for each key or None; `nbytes` in all."""

    side: BuildSide
    filters: Filters
    nbytes: int


def find_build(ctx: Context, key: object) -> KeptBuild | None:
    """What `keep_build` has kept, if it is still there."""
    kept = ctx.hot.get(key) if _keeps(ctx) else None
    assert kept is None or isinstance(kept, KeptBuild)
    return kept


def reserved(ctx: Context, kept: KeptBuild) -> BuildSide | None:
    """The side for a run, under a reservation of its own, as the cache may drop it meanwhile; None without room."""
    reservation = ctx.memory.reserve_nowait(kept.nbytes)
    return None if reservation is None else replace(kept.side, reservations=(reservation,))


def keep_build(ctx: Context, key: object, side: BuildSide, filters: Filters, seconds: float) -> bool:
    """Offer a side that took so long to the cache of the host's memory; False where it is no use to try again. `key` is
    the join's own, and holds nothing: the cache remembers keys for longer than values."""
    if side.matched is not None or side.rows.length > MOST_ROWS or not _keeps(ctx):
        return False
    held = sum(map(_held_bytes, side.rows.columns)) + sum(made.nbytes for made in filters if made is not None)
    held += sum(part.nbytes for part in (side.encoding, side.index, side.null_keys) if part is not None)
    if held > _MOST_BYTES:
        return False
    kept = KeptBuild(replace(side, reservations=()), filters, max(1, held))
    ctx.hot.offer(key, kept, nbytes=kept.nbytes, seconds=min(seconds, _MOST_SECONDS))
    return True


def _keeps(ctx: Context) -> bool:
    return ctx.settings.keep_builds and ctx.hot.enabled and ctx.stream.device.type == "cpu"


def _held_bytes(column: Column) -> int:
    """What cannot be freed while the column is there: it may be a part of another one."""
    below = 0
    match column:
        case FixedColumn(values=values):
            tensors: tuple[torch.Tensor | None, ...] = (values, column.validity)
        case WideDecimalColumn(high=high, low=low):
            tensors = (high, low, column.validity)
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            tensors = (codes, column.validity)
            below = column_nbytes(dictionary.values)
        case BytesColumn(places=places, data=data):
            assert isinstance(places, torch.Tensor), "rows of a build are no columns of a scan"
            tensors = (places, data, column.validity)
        case ViewColumn(views=views, held=held, hashes=hashes):
            tensors = (views, *held, column.validity, hashes)
    return below + sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)
