"""StatisticsFold: counts and extremes of row groups whose footers know them, without reading a row.

A row group is answered when statistics say that the predicate is true in all of its rows, and when they know what is
asked: exact limits (not those of floats, which leave out NaN, nor truncated ones) and numbers of NULLs. All others are
scanned and folded as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import torch

from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.aggregation.plan import AggregatePlan, partial_schema
from pystachio.operators.aggregation.states import State, StateKind
from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Column
from pystachio.operators.expressions import Literal, ScalarSubquery, walk
from pystachio.operators.functions.operands import constant
from pystachio.operators.operator import Operator, Output
from pystachio.operators.parquet.pruning import must_be_true
from pystachio.operators.parquet.statistics import ChunkStatistics
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.units import require_unchanged
from pystachio.operators.table import ParquetFile, Table
from pystachio.operators.union_all import UnionAll
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

_KINDS = (StateKind.COUNT, StateKind.MINIMUM, StateKind.MAXIMUM)


@dataclass(frozen=True, slots=True)
class StatisticsFold:
    """Breaker: the partial states of `plan` over `row_groups` row groups of `table`, one `values` for each state."""

    table: Table
    plan: AggregatePlan
    schema: Schema
    values: tuple[Literal, ...]
    row_groups: int

    @property
    def inputs(self) -> tuple[()]:
        return ()

    def label(self) -> str:
        functions = ", ".join(outcome.function for outcome in self.plan.outcomes)
        return f"StatisticsFold of [{functions}] of {self.row_groups} row groups of {self.table.name}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        if ctx.peers is None:
            # Of several nodes this one need not have the files.
            require_unchanged(self.table)
        ctx.metrics.count("row groups answered from statistics", self.row_groups)
        await out.emit(lambda: [self._states(ctx.stream.device)], last=True, small=True)

    def _states(self, device: torch.device) -> Batch:
        columns: tuple[Column, ...] = tuple(constant(value, 1, device) for value in self.values)
        return Batch(columns, 1, None)


def from_statistics(folding: PartialAggregate) -> Operator:
    """What puts out the same states with the help of the footers, where these know any; else `folding` itself."""
    scan, plan = folding.input, folding.plan
    if not isinstance(scan, Scan) or scan.filters or not _is_known(plan, scan):
        return folding
    answered = tuple(_answered(scan, plan, file) for file in scan.table.files)
    found = [(file, group) for file, groups in zip(scan.table.files, answered, strict=True) for group in groups]
    if not found:
        return folding
    schema = partial_schema(plan, scan.schema)
    values = tuple(_value(scan, state, found) for state in plan.states)
    fold = StatisticsFold(scan.table, plan, schema, values, len(found))
    if len(found) == sum(sum(map(bool, file.row_group_rows)) for file in scan.table.files):
        return fold
    rest = replace(scan, answered=answered)
    return UnionAll((fold, replace(folding, input=rest)), schema)


def _is_known(plan: AggregatePlan, scan: Scan) -> bool:
    """Whether footers could know all states, and the predicate."""
    if plan.group_width or plan.sets or plan.lists or not plan.states:
        return False
    if scan.predicate is not None and any(isinstance(node, ScalarSubquery) for node in walk(scan.predicate)):
        return False
    return all(state.kind in _KINDS and state.filter is None for state in plan.states)


def _columns_in(scan: Scan, file: ParquetFile) -> tuple[int, ...]:
    """Where the file has the scan's columns."""
    return tuple(file.positions[scan.table.schema[column].name] for column in scan.columns)


def _answered(scan: Scan, plan: AggregatePlan, file: ParquetFile) -> tuple[int, ...]:
    """The row groups of the file whose statistics know everything."""
    columns = _columns_in(scan, file)

    def knows(group: int) -> bool:
        rows = file.row_group_rows[group]
        if not rows:
            return False
        known = [file.chunks(column).statistics[group] for column in columns]
        if scan.predicate is not None and not must_be_true(scan.predicate, known.__getitem__, rows):
            return False
        return all(_decides(known[scan.output[a]], state.kind, rows) for state in plan.states for a in state.arguments)

    return tuple(filter(knows, range(len(file.row_group_rows))))


def _decides(known: ChunkStatistics, kind: StateKind, rows: int) -> bool:
    if kind is StateKind.COUNT:
        return known.nulls is not None
    return known.nulls == rows or (known.exact and _is_literal(known.low) and _is_literal(known.high))


def _is_literal(limit: int | bytes) -> bool:
    """Whether it is what a literal may hold."""
    if isinstance(limit, int):
        return -(2**63) <= limit < 2**63
    try:
        limit.decode()
    except UnicodeDecodeError:
        return False
    return True


def _value(scan: Scan, state: State, groups: list[tuple[ParquetFile, int]]) -> Literal:
    """The state of these row groups together."""
    rows = [file.row_group_rows[group] for file, group in groups]
    (type_,) = state.types
    if not state.arguments:
        return Literal(sum(rows), type_)
    position = scan.output[state.arguments[0]]
    known = [file.chunks(_columns_in(scan, file)[position]).statistics[group] for file, group in groups]
    if state.kind is StateKind.COUNT:
        return Literal(sum(count - (each.nulls or 0) for each, count in zip(known, rows, strict=True)), type_)
    largest = state.kind is StateKind.MAXIMUM
    limits = [each.high if largest else each.low for each in known if each.low is not None]
    if not limits:
        return Literal(None, type_)
    limit = max(limits) if largest else min(limits)
    return Literal(limit.decode() if pa.types.is_string(type_) else limit, type_)
