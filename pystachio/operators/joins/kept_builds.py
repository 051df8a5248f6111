"""Build sides that the next run of a plan finds as an earlier one left them.

What a join stores of a few rows of one table, their index and the filters over their keys only depend on the plan and
on the table's files, as an index would. They are kept beside the hot columns, in memory that nobody needs. The idea of
hash tables that outlive their query is from Dursun, Binnig, Cetintemel and Kraska, "Revisiting Reuse in Main Memory
Database Systems" (SIGMOD 2017).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch

from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn, WideDecimalColumn
from pystachio.operators.expressions import Expression, ScalarSubquery, children
from pystachio.operators.filter import Filter
from pystachio.operators.joins.build import BuildSide, Filters
from pystachio.operators.operator import Operator
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.table import Table
from pystachio.runtime.context import Context

_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 8 << 20
"""A larger side takes so long to go through that making it does not matter."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuild:
    """A side, which nobody writes to and no reservation covers, with a filter for each key or None."""

    side: BuildSide
    filters: Filters


def only_table(build: Operator) -> Table | None:
    """The table whose rows alone, as any run would see them, are on a build side; None if there is none."""
    match build:
        case Filter(input=below, predicate=predicate):
            return only_table(below) if _is_constant((predicate,)) else None
        case Project(input=below, expressions=expressions):
            return only_table(below) if _is_constant(expressions) else None
        case Scan(table=table, predicate=predicate, filters=(), answered=None):
            is_small = table.rows <= _MOST_ROWS
            return table if is_small and (predicate is None or _is_constant((predicate,))) else None
        case _:
            return None


def find_build(ctx: Context, key: Hashable) -> KeptBuild | None:
    """What `keep_build` has kept, if it is still there."""
    kept = ctx.hot.get(key) if _keeps(ctx) else None
    assert kept is None or isinstance(kept, KeptBuild)
    return kept


def keep_build(ctx: Context, key: Hashable, side: BuildSide, filters: Filters, seconds: float) -> None:
    """Offer a side that took so long to the cache of the host's memory. `key` is the join's own."""
    if side.matched is not None or side.rows.length > _MOST_ROWS or not _keeps(ctx):
        return
    held = sum(map(_held_bytes, side.rows.columns)) + sum(made.nbytes for made in filters if made is not None)
    held += sum(part.nbytes for part in (side.encoding, side.index, side.null_keys) if part is not None)
    if held <= _MOST_BYTES:
        kept = KeptBuild(replace(side, reservations=()), filters)
        ctx.hot.offer(key, kept, nbytes=max(1, held), seconds=seconds)


def _keeps(ctx: Context) -> bool:
    return ctx.settings.keep_builds and ctx.hot.enabled and ctx.stream.device.type == "cpu"


def _is_constant(expressions: Iterable[Expression]) -> bool:
    return all(not isinstance(each, ScalarSubquery) and _is_constant(children(each)) for each in expressions)


def _held_bytes(column: Column) -> int:
    """What cannot be freed while the column is there: it may be a part of another one."""
    match column:
        case FixedColumn(values=values):
            tensors: tuple[torch.Tensor | None, ...] = (values, column.validity)
        case WideDecimalColumn(high=high, low=low):
            tensors = (high, low, column.validity)
        case DictionaryColumn(codes=codes):
            tensors = (codes, column.validity)
        case BytesColumn(offsets=offsets, data=data):
            tensors = (offsets, data, column.validity)
        case ViewColumn(views=views, held=held):
            tensors = (views, *held, column.validity)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)
