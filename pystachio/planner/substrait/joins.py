"""Substrait's joins: their dozen types become the seven kinds of `JoinKind`, with the left side retained."""

from __future__ import annotations

from typing import Any, Final

from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.batch import Field
from pystachio.operators.expressions import Expression, FieldReference, JoinKind, conjuncts, shift_fields
from pystachio.planner.joins.condition import join_on
from pystachio.planner.logical import Filter, LogicalPlan, Project, Values, join_schema
from pystachio.planner.membership import any_match, none_match
from pystachio.planner.nullability import is_nullable
from pystachio.planner.substrait.calls import comparable
from pystachio.planner.substrait.expressions import Scope, read_condition, read_expression
from pystachio.planner.substrait.reading import Reading

# The kind, and whether the sides change places first. The three join relations number their types differently.
_KINDS: Final = {
    "INNER": (JoinKind.INNER, False),
    "OUTER": (JoinKind.FULL, False),
    "LEFT": (JoinKind.LEFT, False),
    "RIGHT": (JoinKind.RIGHT, False),
    "LEFT_SEMI": (JoinKind.SEMI, False),
    "LEFT_ANTI": (JoinKind.ANTI, False),
    "LEFT_MARK": (JoinKind.MARK, False),
    "RIGHT_SEMI": (JoinKind.SEMI, True),
    "RIGHT_ANTI": (JoinKind.ANTI, True),
    "RIGHT_MARK": (JoinKind.MARK, True),
}

_KEY_COMPARISONS: Final = {
    algebra_pb2.ComparisonJoinKey.SIMPLE_COMPARISON_TYPE_EQ: "equal",
    algebra_pb2.ComparisonJoinKey.SIMPLE_COMPARISON_TYPE_IS_NOT_DISTINCT_FROM: "is_not_distinct_from",
}


def read_join(message: algebra_pb2.JoinRel, reading: Reading, depth: int) -> LogicalPlan:
    """A logical join; entries of `null_aware` make [NOT] IN of an anti or a mark join."""
    null_aware = reading.enter_join()
    kind, swapped = _kind(message.JoinType.Name(message.type) if _known(message) else "")
    left, right = _sides(message, reading, depth)
    condition = None
    if message.HasField("expression"):
        condition = read_condition(message.expression, _both(left, right, reading, depth))
    conditions = conjuncts(condition)
    if swapped:
        conditions = tuple(_swapped(part, left, right) for part in conditions)
        left, right = right, left
    return _filtered(_joined(left, right, kind, conditions, null_aware), kind, message, reading, depth)


def _joined(
    left: LogicalPlan,
    right: LogicalPlan,
    kind: JoinKind,
    conditions: tuple[Expression, ...],
    null_aware: bool | None,
) -> LogicalPlan:
    if null_aware is None and kind is JoinKind.MARK:
        if any(is_nullable(part, left.schema + right.schema) for part in conditions):
            raise Unsupported(
                "IN and EXISTS below OR or NOT in one statement, over columns that may be NULL",
                hint="write them as separate conditions joined by AND, or as joins",
            )
    elif null_aware and conditions and kind is JoinKind.ANTI:
        return none_match(left, right, conditions[0], conditions[1:])
    elif null_aware and conditions and kind is JoinKind.MARK:
        return _in_mark(left, right, conditions)
    return join_on(left, right, kind, conditions)


def _in_mark(left: LogicalPlan, right: LogicalPlan, conditions: tuple[Expression, ...]) -> LogicalPlan:
    """The mark of IN. The condition's first part compares with the subquery's column, the rest correlates."""
    plan, mark = any_match(left, right, conditions[0], conditions[1:])
    if isinstance(mark, FieldReference):
        return plan
    outputs = (*(FieldReference(p, f.type) for p, f in enumerate(left.schema)), mark)
    return Project(plan, outputs, (*left.schema, Field("mark", mark.type, True)))


def read_cross(message: algebra_pb2.CrossRel, reading: Reading, depth: int) -> LogicalPlan:
    """All pairs."""
    left, right = _sides(message, reading, depth)
    return join_on(left, right, JoinKind.INNER, ())


def read_nested_loop_join(message: algebra_pb2.NestedLoopJoinRel, reading: Reading, depth: int) -> LogicalPlan:
    """A physical join on any condition."""
    kind, swapped = _kind(message.JoinType.Name(message.type) if _known(message) else "")
    left, right = _sides(message, reading, depth)
    condition = None
    if message.HasField("expression"):
        condition = read_condition(message.expression, _both(left, right, reading, depth))
    conditions = conjuncts(condition)
    if swapped:
        conditions = tuple(_swapped(part, left, right) for part in conditions)
        left, right = right, left
    return join_on(left, right, kind, conditions)


def read_key_join(
    message: algebra_pb2.HashJoinRel | algebra_pb2.MergeJoinRel, reading: Reading, depth: int
) -> LogicalPlan:
    """A physical join on pairs of fields."""
    kind, swapped = _kind(message.JoinType.Name(message.type) if _known(message) else "")
    left, right = _sides(message, reading, depth)
    conditions = []
    for left_key, right_key, function in _key_pairs(message):
        first = _key(left_key, left, reading, depth)
        second = shift_fields(_key(right_key, right, reading, depth), lambda p: p + len(left.schema))
        conditions.append(comparable(function, first, second))
    if swapped:
        conditions = [_swapped(part, left, right) for part in conditions]
        left, right = right, left
    return _filtered(join_on(left, right, kind, tuple(conditions)), kind, message, reading, depth)


def _key_pairs(message: Any) -> list[tuple[Any, Any, str]]:
    if message.keys:
        if any(key.comparison.simple not in _KEY_COMPARISONS for key in message.keys):
            raise Unsupported("a join key with a comparison of its own")
        return [(key.left, key.right, _KEY_COMPARISONS[key.comparison.simple]) for key in message.keys]
    if len(message.left_keys) != len(message.right_keys):
        raise InvalidRequest("a join with different numbers of keys on its sides")
    return [(left, right, "equal") for left, right in zip(message.left_keys, message.right_keys)]


def _key(message: Any, plan: LogicalPlan, reading: Reading, depth: int) -> Expression:
    return read_expression(algebra_pb2.Expression(selection=message), Scope(plan, reading, depth))


def _known(message: Any) -> bool:
    return message.type in message.JoinType.values()


def _kind(name: str) -> tuple[JoinKind, bool]:
    name = name.removeprefix("JOIN_TYPE_")
    if name not in _KINDS:
        raise Unsupported(f"the join type {name.lower() or 'that this version of Substrait lacks'}")
    return _KINDS[name]


def _sides(message: Any, reading: Reading, depth: int) -> tuple[LogicalPlan, LogicalPlan]:
    if not (message.HasField("left") and message.HasField("right")):
        raise InvalidRequest("a join without two inputs")
    left = reading.read_relation(message.left, reading, depth + 1)
    return left, reading.read_relation(message.right, reading, depth + 1)


def _both(left: LogicalPlan, right: LogicalPlan, reading: Reading, depth: int) -> Scope:
    """The fields that a join's condition may use. Subqueries in it that would need a mark find no plan to put it on."""
    return Scope(Values((), join_schema(left.schema, right.schema, JoinKind.INNER)), reading, depth)


def _swapped(condition: Expression, left: LogicalPlan, right: LogicalPlan) -> Expression:
    width, other = len(left.schema), len(right.schema)
    return shift_fields(condition, lambda p: p + other if p < width else p - width)


def _filtered(plan: LogicalPlan, kind: JoinKind, message: Any, reading: Reading, depth: int) -> LogicalPlan:
    if not message.HasField("post_join_filter"):
        return plan
    if kind in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK):
        raise Unsupported(f"a filter after a {kind} join")
    return Filter(plan, read_condition(message.post_join_filter, Scope(plan, reading, depth)))
