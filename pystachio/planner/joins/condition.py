"""Joins from conditions: equalities of the sides become keys, one-sided parts filters below, the rest residual."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    JoinKind,
    Literal,
    conjunction,
    conjuncts,
    fields_of,
    shift_fields,
)
from pystachio.operators.functions.types import common_number
from pystachio.planner.logical import Filter, Join, Limit, LogicalPlan, Project
from pystachio.planner.nullability import is_nullable

# Kinds in which a row of that side that fails a one-sided condition takes no part at all.
FILTERS_LEFT: Final = frozenset({JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI})
FILTERS_RIGHT: Final = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK})
KEEPS_LEFT_ONLY: Final = frozenset({JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK})


@dataclass(slots=True)
class _Side:
    """An input, with fields appended for keys that are expressions."""

    plan: LogicalPlan
    filters: list[Expression] = field(default_factory=list)
    computed: list[Expression] = field(default_factory=list)

    def key(self, expression: Expression) -> int:
        """The position of the expression among the side's fields."""
        if isinstance(expression, FieldReference):
            return expression.index
        if expression not in self.computed:
            self.computed.append(expression)
        return len(self.plan.schema) + self.computed.index(expression)

    def finished(self) -> LogicalPlan:
        predicate = conjunction(tuple(self.filters))
        plan = self.plan if predicate is None else Filter(self.plan, predicate)
        return with_fields(plan, tuple(self.computed)) if self.computed else plan


def join_on(
    left: LogicalPlan,
    right: LogicalPlan,
    kind: JoinKind,
    conditions: tuple[Expression, ...],
    *,
    null_aware: bool = False,
) -> LogicalPlan:
    """The join on all of `conditions`, which are over left fields, then right fields.

    Its fields are those of `Join.schema`, also where keys had to be computed. `null_aware` counts only for an
    anti join that comes out with one key and no residual.
    """
    width = len(left.schema)
    sides = (_Side(left), _Side(right))
    pairs: dict[tuple[int, int], bool] = {}
    residual: list[Expression] = []
    for part in dict.fromkeys(p for condition in conditions for p in conjuncts(condition)):
        pair = key_pair(part, width)
        if pair is not None:
            keys_of_pair = sides[0].key(pair[0]), sides[1].key(pair[1])
            # Asked for both kinds of equality, a pair must meet the stricter.
            pairs[keys_of_pair] = pair[2] and pairs.get(keys_of_pair, True)
        else:
            _place_one_sided(part, kind, width, sides, residual)
    lefts, rights = sides[0].finished(), sides[1].finished()
    if kind in KEEPS_LEFT_ONLY and not pairs and all(_reads_left_only(part, width) for part in residual):
        rights = Limit(rights, 0, 1)
    grown = len(sides[0].computed)
    keys = tuple(pairs)
    join = Join(
        lefts,
        rights,
        kind,
        tuple(left_key for left_key, _ in keys),
        tuple(right_key for _, right_key in keys),
        tuple(pairs.values()),
        conjunction(tuple(shift_fields(part, lambda p: p if p < width else p + grown) for part in residual)),
        null_aware and kind is JoinKind.ANTI and len(keys) == 1 and not residual,
    )
    return _without_computed(join, width, len(right.schema)) if any(side.computed for side in sides) else join


def _place_one_sided(
    part: Expression, kind: JoinKind, width: int, sides: tuple[_Side, _Side], residual: list[Expression]
) -> None:
    if isinstance(part, Literal) and part.value is True:
        return
    reads = fields_of(part)
    if kind in FILTERS_RIGHT and all(p >= width for p in reads):
        sides[1].filters.append(shift_fields(part, lambda p: p - width))
    elif kind in FILTERS_LEFT and all(p < width for p in reads):
        sides[0].filters.append(part)
    else:
        residual.append(part)


def turned(plan: Join) -> Join:
    """A RIGHT join as a LEFT one, its sides exchanged: so are its fields."""
    left_width, right_width = len(plan.left.schema), len(plan.right.schema)

    def place(position: int) -> int:
        return position + right_width if position < left_width else position - left_width

    residual = None if plan.residual is None else shift_fields(plan.residual, place)
    return Join(plan.right, plan.left, JoinKind.LEFT, plan.right_keys, plan.left_keys, plan.null_equal, residual)


def key_pair(condition: Expression, width: int) -> tuple[Expression, Expression, bool] | None:
    """The sides of an equality, each over its own input and of one type, and whether NULLs are equal; else None."""
    match condition:
        case Call(function="equal" | "is_not_distinct_from" as function, arguments=(first, second)):
            pass
        case _:
            return None
    if _is_of_side(second, width, left=True) and _is_of_side(first, width, left=False):
        first, second = second, first
    elif not (_is_of_side(first, width, left=True) and _is_of_side(second, width, left=False)):
        return None
    type_ = _key_type(first.type, second.type)
    if type_ is None:
        return None
    moved = shift_fields(second, lambda p: p - width)
    return _as_type(first, type_), _as_type(moved, type_), function == "is_not_distinct_from"


def _is_of_side(expression: Expression, width: int, *, left: bool) -> bool:
    reads = fields_of(expression)
    return bool(reads) and all((position < width) == left for position in reads)


def _key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left == right:
        return left
    exact = all(pa.types.is_integer(t) or pa.types.is_decimal(t) for t in (left, right))
    return common_number(left, right) if exact else None


def _as_type(expression: Expression, type_: pa.DataType) -> Expression:
    return expression if expression.type == type_ else Cast(expression, type_)


def _reads_left_only(part: Expression, width: int) -> bool:
    return all(position < width for position in fields_of(part))


def _without_computed(join: Join, left_width: int, right_width: int) -> LogicalPlan:
    """The join's fields without those that were computed as keys."""
    grown = len(join.left.schema)
    positions = [*range(left_width)]
    if join.kind is JoinKind.MARK:
        positions.append(grown)
    elif join.kind not in KEEPS_LEFT_ONLY:
        positions.extend(range(grown, grown + right_width))
    schema = join.schema
    if positions == list(range(len(schema))):
        return join
    return select_fields(join, positions)


def select_fields(plan: LogicalPlan, positions: list[int]) -> LogicalPlan:
    """The fields at `positions`, in that order."""
    schema = plan.schema
    if positions == list(range(len(schema))):
        return plan
    references = tuple(FieldReference(p, schema[p].type) for p in positions)
    return Project(plan, references, tuple(schema[p] for p in positions))


def with_fields(plan: LogicalPlan, expressions: tuple[Expression, ...]) -> LogicalPlan:
    """The plan's fields, then one per expression."""
    schema = plan.schema
    kept = tuple(FieldReference(p, f.type) for p, f in enumerate(schema))
    return Project(plan, kept + expressions, schema + fields_for(expressions, schema))


def fields_for(expressions: tuple[Expression, ...], schema: Schema) -> Schema:
    """Fields for computed expressions over rows of `schema`; a reference keeps its name."""
    return tuple(
        schema[e.index] if isinstance(e, FieldReference) else Field("", e.type, is_nullable(e, schema))
        for e in expressions
    )
