"""The meaning of logical plans, row by row in plain Python: the oracle for everything that rewrites plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from pystachio.operators.batch import Schema
from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    JoinKind,
    Literal,
    ScalarSubquery,
)
from pystachio.planner import cardinality, logical, profiles

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Tables:
    """Rows by table name; `matching` is exact."""

    schemas: Mapping[str, Schema]
    contents: Mapping[str, Sequence[Row]]

    def rows(self, table: str) -> int:
        return len(self.contents[table])

    def column(self, table: str, column: int) -> cardinality.ColumnFacts:
        values = [row[column] for row in self.contents[table]]
        valid = [value for value in values if value is not None]
        bounds = (min(valid), max(valid)) if valid and all(type(v) is int for v in valid) else None
        nulls = 1 - len(valid) / len(values) if values else 0.0
        return cardinality.ColumnFacts(float(len(set(valid))), nulls, bounds)

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Kept | None:
        rows = self.contents[table]
        kept = [row for row in rows if value(predicate, tuple(row[c] for c in columns)) is True]
        return Kept(kept, max(len(rows), 1))

    def everything(self, table: str) -> Kept | None:
        rows = self.contents[table]
        return Kept(rows, max(len(rows), 1))


@dataclass(frozen=True)
class Kept:
    """Rows of so many."""

    rows: Sequence[Row]
    count: int

    @property
    def share(self) -> float:
        return max(len(self.rows), 0.5) / self.count

    def seen(self, column: int) -> Values | None:
        valid = [row[column] for row in self.rows if row[column] is not None]
        return Values(valid) if valid else None


@dataclass(frozen=True)
class Values:
    """Of a column, all of them: `planner.profiles.Seen`."""

    values: Sequence[int]
    is_all: bool = True

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def range(self) -> tuple[int, int]:
        return min(self.values), max(self.values)

    def share_in(self, others: profiles.Seen) -> float:
        assert isinstance(others, Values)
        return max(0.5, sum(each in others.values for each in self.values)) / len(self.values)


def value(expression: Expression, row: Row) -> Any:
    """The expression's value over one row, None for NULL."""
    match expression:
        case FieldReference(index=index):
            return row[index]
        case Literal(value=constant):
            return constant
        case Call(function=function, arguments=arguments):
            return call(function, [value(argument, row) for argument in arguments])
        case InList(operand=operand, options=options):
            tests = [call("equal", [value(operand, row), value(option, row)]) for option in options]
            return reduce(lambda a, b: call("or", [a, b]), tests, False)
        case IfThen(clauses=clauses, otherwise=otherwise):
            chosen = (result for condition, result in clauses if value(condition, row) is True)
            return value(next(chosen, otherwise), row)
        case Cast(operand=operand, type=type_) if pa.types.is_integer(type_):
            return value(operand, row)
        case Cast() | ScalarSubquery():
            raise NotImplementedError(type(expression).__name__)


def call(function: str, arguments: list[Any]) -> Any:
    match function:
        case "and":
            return False if False in arguments else None if None in arguments else True
        case "or":
            return True if True in arguments else None if None in arguments else False
        case "is_null":
            return arguments[0] is None
        case "is_not_null":
            return arguments[0] is not None
        case "is_distinct_from":
            return arguments[0] != arguments[1]
        case "is_not_distinct_from":
            return arguments[0] == arguments[1]
        case "is_true" | "is_false":
            return arguments[0] is (function == "is_true")
        case "is_not_true" | "is_not_false":
            return arguments[0] is not (function == "is_not_true")
        case "coalesce":
            return next((argument for argument in arguments if argument is not None), None)
        case "nullif":
            return None if arguments[0] == arguments[1] else arguments[0]
    if None in arguments:
        return None
    match function, arguments:
        case "not", [a]:
            return not a
        case "equal", [a, b]:
            return a == b
        case "not_equal", [a, b]:
            return a != b
        case "lt", [a, b]:
            return a < b
        case "lte", [a, b]:
            return a <= b
        case "gt", [a, b]:
            return a > b
        case "gte", [a, b]:
            return a >= b
        case "add", [a, b]:
            return a + b
        case "subtract", [a, b]:
            return a - b
        case "multiply", [a, b]:
            return a * b
        case "bitwise_and", [a, b]:
            return a & b
        case "shift_right", [a, b]:
            return a >> b
    raise NotImplementedError(function)


def rows_of(plan: logical.LogicalPlan, tables: Tables) -> list[Row]:
    """The plan's rows; their order means something only under a Sort."""
    match plan:
        case logical.Read():
            rows = [tuple(row[c] for c in plan.columns) for row in tables.contents[plan.table]]
            return rows if plan.predicate is None else [row for row in rows if value(plan.predicate, row) is True]
        case logical.Values():
            return list(plan.rows)
        case logical.Filter():
            return [row for row in rows_of(plan.input, tables) if value(plan.predicate, row) is True]
        case logical.Project():
            return [tuple(value(e, row) for e in plan.expressions) for row in rows_of(plan.input, tables)]
        case logical.Join():
            return joined(plan, rows_of(plan.left, tables), rows_of(plan.right, tables))
        case logical.Aggregate():
            return aggregated(plan, rows_of(plan.input, tables))
        case logical.Sort():
            rows = rows_of(plan.input, tables)
            for key in reversed(plan.keys):
                rows.sort(key=lambda row, k=key: _rank(row[k.index], k.descending, k.nulls_first))
            return rows
        case logical.Limit():
            rows = rows_of(plan.input, tables)
            return rows[plan.offset : None if plan.count is None else plan.offset + plan.count]
        case logical.UnionAll():
            return [row for part in plan.inputs for row in rows_of(part, tables)]


def _rank(item: Any, descending: bool, nulls_first: bool) -> tuple[bool, Any]:
    if item is None:
        return (not nulls_first, 0)
    return (nulls_first, -item if descending else item)


def joined(join: logical.Join, left: list[Row], right: list[Row]) -> list[Row]:
    width_left, width_right = len(join.left.schema), len(join.right.schema)
    verdicts = {(i, j): _agree(join, a, b) for i, a in enumerate(left) for j, b in enumerate(right)}
    pairs = [(i, j) for (i, j), verdict in verdicts.items() if verdict is True]
    matched_left, matched_right = {i for i, _ in pairs}, {j for _, j in pairs}
    both = [left[i] + right[j] for i, j in pairs]
    alone_left = [row + (None,) * width_right for i, row in enumerate(left) if i not in matched_left]
    alone_right = [(None,) * width_left + row for j, row in enumerate(right) if j not in matched_right]
    unsure = {i for (i, _), verdict in verdicts.items() if verdict is None} - matched_left
    match join.kind:
        case JoinKind.INNER:
            return both
        case JoinKind.LEFT:
            return both + alone_left
        case JoinKind.RIGHT:
            return both + alone_right
        case JoinKind.FULL:
            return both + alone_left + alone_right
        case JoinKind.SEMI:
            return [row for i, row in enumerate(left) if i in matched_left]
        case JoinKind.ANTI:
            dropped = matched_left | (unsure if join.null_aware else set())
            return [row for i, row in enumerate(left) if i not in dropped]
        case JoinKind.MARK:
            return [(*row, i in matched_left) for i, row in enumerate(left)]


def _agree(join: logical.Join, left: Row, right: Row) -> Any:
    """Whether two rows match: True, False, or None when a NULL leaves it open."""
    tests = []
    for a, b, null_equal in zip(join.left_keys, join.right_keys, join.null_equal, strict=True):
        tests.append(left[a] == right[b] if null_equal else call("equal", [left[a], right[b]]))
    if join.residual is not None:
        tests.append(value(join.residual, left + right))
    return call("and", tests)


def aggregated(plan: logical.Aggregate, rows: list[Row]) -> list[Row]:
    sets = plan.grouping_sets or (tuple(range(len(plan.keys))),)
    result = []
    for number, chosen in enumerate(sets):
        groups: dict[Row, list[Row]] = {}
        if not chosen:
            groups[(None,) * len(plan.keys)] = []
        for row in rows:
            key = tuple(row[k] if position in chosen else None for position, k in enumerate(plan.keys))
            groups.setdefault(key, []).append(row)
        for key, members in groups.items():
            index = (number,) if plan.grouping_sets else ()
            result.append(key + tuple(_reduced(c, members) for c in plan.calls) + index)
    return result


def _reduced(aggregate: AggregateCall, rows: list[Row]) -> Any:
    if aggregate.filter is not None:
        rows = [row for row in rows if row[aggregate.filter] is True]
    if not aggregate.arguments:
        return len(rows)
    values = [row[aggregate.arguments[0]] for row in rows if row[aggregate.arguments[0]] is not None]
    values = list(set(values)) if aggregate.distinct else values
    match aggregate.function:
        case "count":
            return len(values)
        case "sum":
            return sum(values) if values else None
        case "min":
            return min(values, default=None)
        case "max":
            return max(values, default=None)
    raise NotImplementedError(aggregate.function)


def multiset(rows: list[Row]) -> Counter[Row]:
    return Counter(rows)
