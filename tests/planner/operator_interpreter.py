"""The meaning of physical plans, row by row: build sides before probe sides, runtime filters applied in full."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pystachio.operators.batch import Schema
from pystachio.operators.expressions import AggregateCall, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.limit import Limit
from pystachio.operators.operator import Operator
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll
from pystachio.operators.values import Values
from pystachio.planner import logical
from tests.planner.interpreter import Row, Tables, aggregated, joined, rows_of, value


@dataclass(frozen=True)
class PlainAggregate:
    """Stands for `operators.aggregate.aggregate`, which builds more than one operator."""

    input: Operator
    keys: tuple[int, ...]
    calls: tuple[AggregateCall, ...]
    schema: Schema
    grouping_sets: tuple[tuple[int, ...], ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def label(self) -> str:
        return "Aggregate"


@dataclass
class Run:
    """One execution: what was published, what spools hold, and how often each was read."""

    tables: Tables
    slots: dict[int, set[Any]] = field(default_factory=dict)
    spooled: dict[int, list[Row]] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    filtered: int = 0

    def rows(self, operator: Operator) -> list[Row]:
        match operator:
            case Scan():
                return self._scan(operator)
            case Filter():
                return [row for row in self.rows(operator.input) if value(operator.predicate, row) is True]
            case Project():
                return [tuple(value(e, row) for e in operator.expressions) for row in self.rows(operator.input)]
            case Join():
                return self._join(operator)
            case PlainAggregate():
                plan = logical.Aggregate(
                    nothing(operator.input), operator.keys, operator.calls, operator.schema, operator.grouping_sets
                )
                return aggregated(plan, self.rows(operator.input))
            case Sort():
                return self._sorted(operator)
            case TopN():
                return self._sorted(operator)[operator.offset : operator.offset + operator.count]
            case ScanTopN():
                rows = self._sorted(Sort(operator.scan, operator.keys))
                return rows[operator.offset : operator.offset + operator.count]
            case Limit():
                last = None if operator.count is None else operator.offset + operator.count
                return self.rows(operator.input)[operator.offset : last]
            case UnionAll():
                return [row for part in operator.inputs for row in self.rows(part)]
            case Values():
                return list(operator.rows)
            case Spool():
                self.consumed[id(operator)] = self.consumed.get(id(operator), 0) + 1
                assert self.consumed[id(operator)] <= operator.consumers
                if id(operator) not in self.spooled:
                    self.spooled[id(operator)] = self.rows(operator.input)
                return self.spooled[id(operator)]
        raise NotImplementedError(type(operator).__name__)

    def _scan(self, scan: Scan) -> list[Row]:
        rows = [tuple(row[c] for c in scan.columns) for row in self.tables.contents[scan.table.name]]
        if scan.predicate is not None:
            rows = [row for row in rows if value(scan.predicate, row) is True]
        for used in scan.filters:
            before = len(rows)
            rows = [row for row in rows if row[used.column] in self.slots[used.slot]]
            self.filtered += before - len(rows)
        return [tuple(row[position] for position in scan.output) for row in rows]

    def _join(self, join: Join) -> list[Row]:
        build, keys = (join.right, join.right_keys) if join.build == "right" else (join.left, join.left_keys)
        built = self.rows(build)
        for key, slot in zip(keys, join.runtime_filters, strict=True):
            if slot is not None:
                self.slots[slot] = {row[key] for row in built} - {None}
        streamed = self.rows(join.left if join.build == "right" else join.right)
        left, right = (streamed, built) if join.build == "right" else (built, streamed)
        plan = logical.Join(
            nothing(join.left),
            nothing(join.right),
            join.kind,
            join.left_keys,
            join.right_keys,
            join.null_equal,
            join.residual,
            join.null_aware,
        )
        width = len(join.left.schema)
        rows = joined(plan, left, right)
        if join.kind is JoinKind.MARK:
            gap = (None,) * len(join.right.schema)
            rows = [row[:width] + gap + row[width:] for row in rows]
        return [tuple(row[position] for position in join.output) for row in rows]

    def _sorted(self, operator: Sort | TopN) -> list[Row]:
        constant = logical.Values(tuple(self.rows(operator.input)), operator.input.schema)
        return rows_of(logical.Sort(constant, operator.keys), self.tables)


def nothing(operator: Operator) -> logical.Values:
    """A logical plan with the operator's fields."""
    return logical.Values((), operator.schema)
