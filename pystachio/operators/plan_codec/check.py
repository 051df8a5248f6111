"""Whether a plan that came as bytes can run: positions inside the inputs, types that agree, slots that somebody fills.

Operators trust each other's schemas, and compiled kernels trust operators. A plan of this node's planner is right by
construction; one from another node is checked here before anything runs it. An operator that is not named here has
nothing but inputs and a schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from pystachio.errors import DataError
from pystachio.operators.aggregation.aggregate import Aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.batch import Schema
from pystachio.operators.chunks.warm import WarmUp
from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.expressions import JoinKind, SortKey
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join, is_comparable
from pystachio.operators.limit import Limit
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.check_aggregates import require_final, require_partial, require_states
from pystachio.operators.plan_codec.check_expressions import (
    Inconsistent,
    require,
    require_constant,
    require_expression,
    require_positions,
    require_predicate,
    require_types,
)
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.scans.statistics import StatisticsFold
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll
from pystachio.operators.values import Values

_MOST_COLUMNS: Final = 1 << 16
_MOST_HEAVY: Final = 1 << 16
_COUNTS: Final = range(1 << 63)
_LEFT_ONLY: Final = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK)


def require_consistent(plan: PhysicalPlan) -> None:
    """DataError, naming the operator, for a plan that no planner makes."""
    checked: set[int] = set()
    scalars: list[pa.DataType] = []
    try:
        for scalar in plan.scalars:
            _require_tree(scalar, scalars, checked)
            require(len(scalar.schema) == 1, f"a scalar subquery of {len(scalar.schema)} columns")
            scalars.append(scalar.schema[0].type)
        _require_tree(plan.root, scalars, checked)
        width = len(plan.root.schema)
        require(len(plan.names) == width, f"{len(plan.names)} names for {width} columns")
        _require_consumers(plan)
        _require_filters(plan)
    except Inconsistent as error:
        raise DataError(f"an encoded plan is inconsistent: {error}") from error
    except RecursionError as error:
        raise DataError("an encoded plan is nested too deep") from error


def _require_tree(root: Operator, scalars: Sequence[pa.DataType], checked: set[int]) -> None:
    """`scalars` are the types of those that the tree may refer to."""
    for operator in _inputs_first(root, checked):
        try:
            _require_operator(operator, scalars)
            require(len(operator.schema) <= _MOST_COLUMNS, f"{len(operator.schema)} columns")
        except Inconsistent as error:
            raise Inconsistent(f"{type(operator).__name__}: {error}") from error


def _inputs_first(root: Operator, done: set[int]) -> Iterator[Operator]:
    """Those operators of the tree that are not `done`."""
    waiting = [(root, False)]
    while waiting:
        operator, is_ready = waiting.pop()
        if id(operator) in done:
            continue
        if is_ready:
            done.add(id(operator))
            yield operator
        else:
            waiting.append((operator, True))
            waiting.extend((child, False) for child in operator.inputs)


def _require_operator(operator: Operator, scalars: Sequence[pa.DataType]) -> None:
    match operator:
        case Scan():
            _require_scan(operator, scalars)
        case ScanTopN(scan=scan, keys=keys):
            _require_scan(scan, scalars)
            require(bool(scan.columns), "a table without columns")
            _require_keys(keys, scan.schema)
            _require_counts(operator.count, operator.offset)
        case StatisticsFold():
            types = [field.type for field in operator.schema]
            require_states(operator.plan, len(operator.schema), types)
            require(operator.plan.group_width == 0, "groups that no footer knows")
            _require_row(operator.schema, [value.value for value in operator.values])
            require_types([value.type for value in operator.values], types, "values")
            _require_counts(operator.row_groups)
        case WarmUp(table=table, columns=columns):
            require_positions(columns, len(table.schema), "columns")
        case Exchange():
            _require_exchange(operator)
        case Filter(predicate=predicate):
            require_predicate(predicate, operator.input.schema, scalars)
        case Project():
            _require_project(operator, scalars)
        case Join():
            _require_join(operator, scalars)
        case PartialAggregate(plan=plan):
            require_partial(plan, operator.input.schema)
        case Aggregate(plan=plan):
            require_final(plan, operator.input.schema, operator.schema)
        case Sort(keys=keys, wanted=wanted):
            _require_keys(keys, operator.input.schema)
            _require_counts(0 if wanted is None else wanted)
        case TopN(keys=keys):
            _require_keys(keys, operator.input.schema)
            _require_counts(operator.count, operator.offset)
        case Limit(offset=offset, count=count):
            _require_counts(offset, 0 if count is None else count)
        case UnionAll():
            require(bool(operator.inputs), "a union of nothing")
            for child in operator.inputs:
                require_types([field.type for field in child.schema], _types(operator.schema), "an input")
        case Values():
            for row in operator.rows:
                _require_row(operator.schema, row)
        case _:
            pass


def _require_exchange(exchange: Exchange) -> None:
    kind = exchange.kind
    require_positions(exchange.keys, len(exchange.schema), "keys")
    by_keys = kind is ExchangeKind.SHUFFLE
    require(bool(exchange.keys) == by_keys, "an exchange by keys without any, or another with some")
    require(by_keys or not exchange.heavy, "heavy keys, and not an exchange by keys")
    require(len(exchange.heavy) <= _MOST_HEAVY, f"{len(exchange.heavy)} heavy keys")
    require(all(-(1 << 63) <= each < 1 << 63 for each in exchange.heavy), "a hash of more than 64 bits")
    if exchange.order or kind is ExchangeKind.RANGE:
        require(kind in (ExchangeKind.RANGE, ExchangeKind.GATHER), "an order, and not an exchange of ranges")
        require(not exchange.only_coordinator, "ranges of one node's rows")
        _require_keys(exchange.order, exchange.schema)
    _require_counts(exchange.number)


def _require_scan(scan: Scan, scalars: Sequence[pa.DataType]) -> None:
    table = scan.table
    require_positions(scan.columns, len(table.schema), "columns")
    require_positions(scan.output, len(scan.columns), "output")
    require_positions([used.column for used in scan.filters], len(scan.columns), "filters")
    require(len(set(scan.columns)) == len(scan.columns), "a column twice")
    if scan.predicate is not None:
        read = tuple(table.schema[column] for column in scan.columns)
        require_predicate(scan.predicate, read, scalars)
    if scan.answered is not None:
        _require_answered(table, scan.answered)


def _require_answered(table: Table, answered: Sequence[Sequence[int]]) -> None:
    require(len(answered) == len(table.files), f"answered: {len(answered)} of {len(table.files)} files")
    for groups, file in zip(answered, table.files, strict=True):
        require_positions(groups, len(file.row_group_rows), f"answered of {file.path}")
        require(all(one < other for one, other in pairwise(groups)), "answered: not ascending")


def _require_project(project: Project, scalars: Sequence[pa.DataType]) -> None:
    require(len(project.expressions) == len(project.schema), "not as many expressions as columns")
    read = project.input.schema
    for expression in project.expressions:
        require_expression(expression, read, scalars)
    require_types([expression.type for expression in project.expressions], _types(project.schema), "expressions")


def _require_join(join: Join, scalars: Sequence[pa.DataType]) -> None:
    left, right = join.left.schema, join.right.schema
    require_positions(join.left_keys, len(left), "left_keys")
    require_positions(join.right_keys, len(right), "right_keys")
    parts = (join.right_keys, join.null_equal, join.runtime_filters)
    require(all(len(part) == len(join.left_keys) for part in parts), "keys, null_equal and runtime_filters differ")
    for place, other in zip(join.left_keys, join.right_keys, strict=True):
        one, two = left[place].type, right[other].type
        require(is_comparable(one, two), f"keys of the types {one} and {two}")
    is_not_in = join.kind is JoinKind.ANTI and len(join.left_keys) == 1
    require(is_not_in or not join.null_aware, "null_aware, and not an anti join with one key")
    if join.kind in _LEFT_ONLY:
        mark = len(left) + len(right) if join.kind is JoinKind.MARK else None
        require_positions([place for place in join.output if place != mark], len(left), "output")
    else:
        require_positions(join.output, len(left) + len(right), "output")
    if join.residual is not None:
        require_predicate(join.residual, (*left, *right), scalars)


def _require_keys(keys: Sequence[SortKey], schema: Schema) -> None:
    require(bool(keys), "no keys")
    require_positions([key.index for key in keys], len(schema), "keys")


def _require_counts(*counts: int) -> None:
    require(all(count in _COUNTS for count in counts), f"a count out of range: {counts}")


def _require_row(schema: Schema, row: Sequence[object]) -> None:
    require(len(row) == len(schema), f"a row of {len(row)} values for {len(schema)} columns")
    for value, field in zip(row, schema, strict=True):
        require_constant(value, field.type)


def _require_consumers(plan: PhysicalPlan) -> None:
    """A spool frees its rows when so many have read them."""
    read: Iterable[Operator] = (*plan.scalars, plan.root, *(child for each in plan.operators for child in each.inputs))
    counts = Counter(id(each) for each in read if isinstance(each, Spool))
    for operator in plan.operators:
        if isinstance(operator, Spool):
            found = counts[id(operator)]
            require(operator.consumers == found, f"Spool: {operator.consumers} consumers of which {found} are there")


def _require_filters(plan: PhysicalPlan) -> None:
    """A scan waits for each of its filters."""
    made = Counter(plan.runtime_filters)
    require(all(count == 1 for count in made.values()), f"a runtime filter is made twice: {list(made)}")
    scans = [each.scan if isinstance(each, ScanTopN) else each for each in plan.operators]
    for scan in scans:
        if isinstance(scan, Scan):
            missing = [used.slot for used in scan.filters if used.slot not in made]
            require(not missing, f"Scan: a runtime filter that nobody makes: {missing}")


def _types(schema: Schema) -> list[pa.DataType]:
    return [field.type for field in schema]
