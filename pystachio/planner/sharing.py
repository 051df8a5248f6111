"""Equal sub-plans: made one object each, and which of them are worth running once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pystachio.operators.expressions import Expression, FieldReference, JoinKind, fields_of, shift_fields
from pystachio.operators.functions.operands import is_text
from pystachio.planner.cardinality import Estimator
from pystachio.planner.logical import (
    Aggregate,
    Filter,
    Join,
    Limit,
    LogicalPlan,
    Project,
    Query,
    Read,
    Sort,
    UnionAll,
    Values,
)

_MOST_BYTES = 256 << 20
"""A shared result is kept until its last consumer has read it; a larger one is cheaper to compute again."""

_BYTES_PER_VALUE = 8


def inputs_of(plan: LogicalPlan) -> tuple[LogicalPlan, ...]:
    """The direct sub-plans."""
    match plan:
        case Read() | Values():
            return ()
        case Join(left=left, right=right):
            return (left, right)
        case UnionAll(inputs=inputs):
            return inputs
        case Filter(input=input_) | Project(input=input_) | Aggregate(input=input_) | Sort(input=input_):
            return (input_,)
        case Limit(input=input_):
            return (input_,)


def with_inputs(plan: LogicalPlan, inputs: tuple[LogicalPlan, ...]) -> LogicalPlan:
    """The plan over other sub-plans of the same schemas; the same object when they are the same objects."""
    if all(new is old for new, old in zip(inputs, inputs_of(plan), strict=True)):
        return plan
    match plan:
        case Read() | Values():
            return plan
        case Join():
            left, right = inputs
            return replace(plan, left=left, right=right)
        case UnionAll():
            return replace(plan, inputs=inputs)
        case Filter() | Project() | Aggregate() | Sort() | Limit():
            (input_,) = inputs
            return replace(plan, input=input_)


def distinct_reads(query: Query) -> list[Read]:
    """What is read, each read once that several parts of the plan have in common."""
    parts = (part for top in (query.root, *query.scalars) for part in _below(top))
    return list({id(part): part for part in parts if isinstance(part, Read)}.values())


def widen_reads(query: Query) -> Query:
    """Reads of one table with equal predicates read the same columns, under a projection to those each had.

    Two sub-plans that differ only in the columns they read become equal. Where that comes to nothing, column pruning
    narrows the reads again.
    """
    reads: dict[tuple[str, Expression | None], list[Read]] = {}
    for top in (query.root, *query.scalars):
        for part in _below(top):
            if isinstance(part, Read):
                reads.setdefault(_what_is_read(part), []).append(part)
    wide = {key: _union_of(same) for key, same in reads.items() if len({read.columns for read in same}) > 1}
    if not wide:
        return query

    def visit(plan: LogicalPlan) -> LogicalPlan:
        if not isinstance(plan, Read):
            return with_inputs(plan, tuple(visit(part) for part in inputs_of(plan)))
        union = wide.get(_what_is_read(plan))
        if union is None or union.columns == plan.columns:
            return plan
        references = (FieldReference(union.columns.index(c), f.type) for c, f in zip(plan.columns, plan.schema))
        return Project(union, tuple(references), plan.schema)

    return Query(visit(query.root), tuple(visit(scalar) for scalar in query.scalars))


def _what_is_read(read: Read) -> tuple[str, Expression | None]:
    """The table and the predicate over the table's columns."""
    if read.predicate is None:
        return read.table, None
    return read.table, shift_fields(read.predicate, read.columns.__getitem__)


def _union_of(reads: list[Read]) -> Read:
    """One read of all the columns."""
    fields_by_column = {column: f for read in reads for column, f in zip(read.columns, read.schema)}
    columns = tuple(sorted(fields_by_column))
    table, predicate = _what_is_read(reads[0])
    return Read(
        table,
        columns,
        tuple(fields_by_column[column] for column in columns),
        None if predicate is None else shift_fields(predicate, columns.index),
    )


def unify(query: Query) -> Query:
    """The same query in which equal sub-plans are the same object."""
    alone: dict[tuple[Any, ...], LogicalPlan] = {}
    """By kind and inputs: the only one so far. Most have none like them, and hashing their expressions is slow."""
    known: dict[tuple[Any, ...], LogicalPlan] = {}

    def visit(plan: LogicalPlan) -> LogicalPlan:
        inputs = tuple([visit(part) for part in inputs_of(plan)])
        made = with_inputs(plan, inputs)
        kind = (type(plan), plan.table) if isinstance(plan, Read) else (type(plan), *map(id, inputs))
        first = alone.setdefault(kind, made)
        if first is made:
            return made
        known.setdefault((kind, _own(first)), first)
        return known.setdefault((kind, _own(made)), made)

    return Query(visit(query.root), tuple(visit(scalar) for scalar in query.scalars))


def _own(plan: LogicalPlan) -> tuple[Any, ...]:
    """All of it but its inputs."""
    return tuple([getattr(plan, f.name) for f in fields(plan) if f.name not in ("input", "inputs", "left", "right")])


def shared_plans(query: Query, estimator: Estimator) -> dict[int, int]:
    """The sub-plans of a unified query to run once, by `id`, with the number of their consumers."""
    occurrences: dict[int, int] = {}
    worth: dict[int, bool] = {}

    def visit(plan: LogicalPlan) -> None:
        occurrences[id(plan)] = occurrences.get(id(plan), 0) + 1
        if occurrences[id(plan)] > 1:
            if id(plan) not in worth:
                worth[id(plan)] = _is_worth_keeping(plan, estimator)
            if worth[id(plan)]:
                return
        for part in inputs_of(plan):
            visit(part)

    for top in (query.root, *query.scalars):
        visit(top)
    return {plan: occurrences[plan] for plan, pays in worth.items() if pays}


def _is_worth_keeping(plan: LogicalPlan, estimator: Estimator) -> bool:
    """Whether the sub-plan does work beyond reading, and puts out less than it reads."""
    if not any(isinstance(part, Join | Aggregate) for part in _below(plan)):
        return False
    rows = estimator.rows(plan)
    read = sum(estimator.rows(part) for part in _below(plan) if isinstance(part, Read))
    return rows <= read and rows * max(1, len(plan.schema)) * _BYTES_PER_VALUE <= _MOST_BYTES


def tables_of(query: Query) -> frozenset[str]:
    """The names of the tables that it reads."""
    parts = (part for top in (query.root, *query.scalars) for part in _below(top))
    return frozenset(part.table for part in parts if isinstance(part, Read))


def columns_to_sample(query: Query) -> list[tuple[str, int]]:
    """The table and position of each column that the predicate of a read is over, and of the numbers by which the rows
    that it leaves are joined, on both sides."""
    parts = [part for top in (query.root, *query.scalars) for part in _below(top)]
    wanted: dict[tuple[str, int], None] = {}
    for part in parts:
        if isinstance(part, Read) and part.predicate is not None:
            for index in sorted(fields_of(part.predicate)):
                wanted[part.table, part.columns[index]] = None
        elif isinstance(part, Join):
            for left, right in zip(part.left_keys, part.right_keys, strict=True):
                origins = _origin(part.left, left), _origin(part.right, right)
                known = [origin for origin in origins if origin is not None]
                if any(read.predicate is not None for read, _ in known):
                    for read, index in known:
                        if not is_text(read.schema[index].type):
                            wanted[read.table, read.columns[index]] = None
    return list(wanted)


def _origin(plan: LogicalPlan, index: int) -> tuple[Read, int] | None:
    """The read that a field comes from as it is, and its position there."""
    while True:
        match plan:
            case Read():
                return plan, index
            case Filter(input=input_) | Sort(input=input_) | Limit(input=input_):
                plan = input_
            case Project(input=input_, expressions=expressions):
                expression = expressions[index]
                if not isinstance(expression, FieldReference):
                    return None
                plan, index = input_, expression.index
            case Aggregate(input=input_, keys=keys) if index < len(keys):
                plan, index = input_, keys[index]
            case Join(left=left, right=right, kind=kind):
                width = len(left.schema)
                if index >= width and kind is JoinKind.MARK:
                    return None
                plan, index = (left, index) if index < width else (right, index - width)
            case _:
                return None


def _below(plan: LogicalPlan) -> list[LogicalPlan]:
    found = []
    waiting = [plan]
    while waiting:
        part = waiting.pop()
        found.append(part)
        waiting.extend(reversed(inputs_of(part)))
    return found
