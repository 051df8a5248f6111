"""Subquery predicates as joins, with SQL's three-valued logic.

`x IN (S)` is true when some row of S equals x, else NULL when some comparison is NULL, else false. A mark join knows
only whether a row matches, so the NULL case takes marks of its own; those that nullability rules out are left out.
"""

from __future__ import annotations

import pyarrow as pa

from pystachio.operators.batch import Field
from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Expression,
    FieldReference,
    IfThen,
    JoinKind,
    Literal,
    fields_of,
    shift_fields,
)
from pystachio.planner.joins.condition import join_on
from pystachio.planner.logical import Aggregate, Join, Limit, LogicalPlan
from pystachio.planner.nullability import is_nullable


def exists(plan: LogicalPlan) -> LogicalPlan:
    """One row with the number of rows among the first one: 0 or 1."""
    return Aggregate(
        Limit(plan, 0, 1), (), (AggregateCall("count", (), pa.int64()),), (Field("count", pa.int64(), False),)
    )


def any_match(
    left: LogicalPlan, right: LogicalPlan, predicate: Expression, correlation: tuple[Expression, ...] = ()
) -> tuple[LogicalPlan, Expression]:
    """The left rows with marks behind their fields, and an expression over them: whether `predicate` holds for any of
    the right rows for which `correlation` is true. Both are over left fields, then right fields."""
    width = len(left.schema)
    plan, matched = _mark(left, right, width, (predicate, *correlation))
    unknown = None
    for condition in _ways_to_be_null(left, right, predicate, correlation):
        plan, mark = _mark(plan, right, width, condition)
        unknown = mark if unknown is None else Call("or", (unknown, mark), pa.bool_())
    if unknown is None:
        return plan, matched
    null, false, true = (Literal(value, pa.bool_()) for value in (None, False, True))
    return plan, IfThen(((matched, true), (unknown, null)), false, pa.bool_())


def none_match(
    left: LogicalPlan, right: LogicalPlan, predicate: Expression, correlation: tuple[Expression, ...] = ()
) -> LogicalPlan:
    """The left rows for which `predicate` is false for all of the right rows for which `correlation` is true."""
    sides = _sides(predicate, len(left.schema))
    if not correlation and sides is not None:
        joined = join_on(left, right, JoinKind.ANTI, (predicate,), null_aware=any(_nullable(sides, left, right)))
        if _is_plain_null_aware(joined):
            return joined
    plan = join_on(left, right, JoinKind.ANTI, (predicate, *correlation))
    for condition in _ways_to_be_null(left, right, predicate, correlation):
        plan = join_on(plan, right, JoinKind.ANTI, condition)
    return plan


def _is_plain_null_aware(plan: LogicalPlan) -> bool:
    join = plan if isinstance(plan, Join) else getattr(plan, "input", None)
    return isinstance(join, Join) and len(join.left_keys) == 1 and join.residual is None


def _mark(
    plan: LogicalPlan, right: LogicalPlan, width: int, conditions: tuple[Expression, ...]
) -> tuple[LogicalPlan, Expression]:
    """`plan` with one more mark behind its fields. The conditions were written for `width` fields on the left."""
    behind = len(plan.schema)
    moved = tuple(shift_fields(c, lambda p: p if p < width else p - width + behind) for c in conditions)
    return join_on(plan, right, JoinKind.MARK, moved), FieldReference(behind, pa.bool_())


def _ways_to_be_null(
    left: LogicalPlan, right: LogicalPlan, predicate: Expression, correlation: tuple[Expression, ...]
) -> list[tuple[Expression, ...]]:
    """Conditions of which one holds for a pair of rows exactly when `predicate` is NULL and `correlation` is true."""
    if not is_nullable(predicate, left.schema + right.schema):
        return []
    sides = _sides(predicate, len(left.schema))
    if sides is None:
        return [(Call("is_null", (predicate,), pa.bool_()), *correlation)]
    return [
        (Call("is_null", (side,), pa.bool_()), *correlation)
        for side, nullable in zip(sides, _nullable(sides, left, right))
        if nullable
    ]


def _sides(predicate: Expression, width: int) -> tuple[Expression, Expression] | None:
    """The operands of a comparison of something on the left with something on the right."""
    match predicate:
        case Call(function="equal" | "not_equal" | "lt" | "lte" | "gt" | "gte", arguments=(first, second)):
            below = [[p < width for p in fields_of(side)] for side in (first, second)]
            if all(below[0]) and not any(below[1]):
                return first, second
            if all(below[1]) and not any(below[0]):
                return second, first
    return None


def _nullable(sides: tuple[Expression, Expression], left: LogicalPlan, right: LogicalPlan) -> tuple[bool, bool]:
    both = left.schema + right.schema
    return is_nullable(sides[0], both), is_nullable(sides[1], both)
