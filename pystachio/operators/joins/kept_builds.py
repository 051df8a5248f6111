"""Build sides that the next run of a plan finds as an earlier one left them.

What a join stores of small tables, its index and the filters over its keys only depend on the plan and on the tables'
files, as an index would. They are kept beside the hot columns, in memory that nobody needs. The idea of hash tables
that outlive their query is from Dursun, Binnig, Cetintemel and Kraska, "Revisiting Reuse in Main Memory Database
Systems" (SIGMOD 2017).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeGuard

import torch

from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn, WideDecimalColumn
from pystachio.operators.expressions import Expression, ScalarSubquery, walk
from pystachio.operators.filter import Filter
from pystachio.operators.joins.build import BuildSide, Filters
from pystachio.operators.operator import Operator
from pystachio.operators.project import Project
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.scans.scan import Scan
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.runtime.context import Context

_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 8 << 20
"""A larger side takes so long to go through that making it does not matter."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuild:
    """A side, which nobody writes to and no reservation covers, with a filter for each key or None; `below` are the
    filters that joins on it have published, by their slots."""

    side: BuildSide
    filters: Filters
    below: Mapping[int, object]


@dataclass(frozen=True, slots=True)
class Sources:
    """What all rows of a build side come from: small tables alone, as any run would see them. `slots` are those of the
    filters that its joins publish."""

    tables: tuple[Table, ...]
    slots: tuple[int, ...]


class _Join(Protocol):
    """What matters here of `joins.join.Join`, which stands above this module."""

    residual: Expression | None
    runtime_filters: tuple[int | None, ...]
    shares_filters: bool


def _is_join(operator: object) -> TypeGuard[_Join]:
    return hasattr(operator, "shares_filters")


def sources_of(build: Operator) -> Sources | None:
    """None where something else has a say, or the tables are not small."""
    tables: list[Table] = []
    published: set[int] = set()
    awaited: set[int] = set()
    waiting = [build]
    while waiting:
        operator = waiting.pop()
        waiting += operator.inputs
        expressions: Iterable[Expression | None]
        match operator:
            case Filter(predicate=predicate):
                expressions = (predicate,)
            case Project(expressions=expressions):
                pass
            case Spool():
                expressions = ()
            case Scan(table=table, predicate=predicate, filters=filters, answered=None):
                expressions = (predicate,)
                tables.append(table)
                awaited.update(used.slot for used in filters)
            case _ if _is_join(operator) and not operator.shares_filters:
                expressions = (operator.residual,)
                published.update(slot for slot in operator.runtime_filters if slot is not None)
            case _:
                return None
        if not all(each is None or _is_constant(each) for each in expressions):
            return None
    is_small = sum(table.rows for table in tables) <= _MOST_ROWS
    return Sources(tuple(tables), tuple(published)) if is_small and awaited <= published else None


def find_build(ctx: Context, key: Hashable) -> KeptBuild | None:
    """What `keep_build` has kept, if it is still there."""
    kept = ctx.hot.get(key) if _keeps(ctx) else None
    assert kept is None or isinstance(kept, KeptBuild)
    return kept


def keep_build(
    ctx: Context, key: Hashable, side: BuildSide, filters: Filters, sources: Sources, seconds: float
) -> None:
    """Offer a side that took so long to the cache of the host's memory. `key` is the join's own."""
    published = [ctx.slots["filter", slot] for slot in sources.slots]
    if side.matched is not None or side.rows.length > _MOST_ROWS or not _keeps(ctx):
        return
    if not all(slot.is_set for slot in published):
        return
    below = dict(zip(sources.slots, (slot.value for slot in published), strict=True))
    held = sum(map(_held_bytes, side.rows.columns))
    held += sum(made.nbytes for made in (*filters, *below.values()) if isinstance(made, RuntimeFilter))
    held += sum(part.nbytes for part in (side.encoding, side.index, side.null_keys) if part is not None)
    if held <= _MOST_BYTES:
        kept = KeptBuild(replace(side, reservations=()), filters, below)
        ctx.hot.offer(key, kept, nbytes=max(1, held), seconds=seconds)


def _keeps(ctx: Context) -> bool:
    return ctx.settings.keep_builds and ctx.hot.enabled and ctx.stream.device.type == "cpu"


def _is_constant(expression: Expression) -> bool:
    return not any(isinstance(node, ScalarSubquery) for node in walk(expression))


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
