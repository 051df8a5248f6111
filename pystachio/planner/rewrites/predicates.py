"""Predicates moved to the deepest place where they can be evaluated, and joins made of them on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    InList,
    JoinKind,
    Literal,
    conjunction,
    conjuncts,
    fields_of,
    shift_fields,
    transform,
    walk,
)
from pystachio.planner.joins.condition import FILTERS_LEFT, FILTERS_RIGHT, KEEPS_LEFT_ONLY, join_on, turned
from pystachio.planner.logical import (
    Aggregate,
    Filter,
    Join,
    Limit,
    LogicalPlan,
    Project,
    Read,
    Sort,
    UnionAll,
    Values,
)
from pystachio.planner.rewrites.fold import FALSE, TRUE, either, fold_condition
from pystachio.planner.rewrites.nulls import rejects_nulls

Predicates = tuple[Expression, ...]

# A predicate that would grow beyond this many nodes below a projection stays above it.
_LARGEST_PREDICATE = 200


def place(plan: LogicalPlan, predicates: Predicates = ()) -> LogicalPlan:
    """The rows of `plan` for which all of `predicates` are true, in the same fields. They come from `split`."""
    if FALSE in predicates:
        return Values((), plan.schema)
    match plan:
        case Read():
            own = split(conjuncts(plan.predicate))
            if FALSE in own:
                return Values((), plan.schema)
            return replace(plan, predicate=conjunction(_distinct(own + predicates)))
        case Values():
            return filtered(plan, predicates)
        case Filter():
            return place(plan.input, _distinct(split((plan.predicate,)) + predicates))
        case Project():
            return _below_projection(plan, predicates)
        case Sort():
            return replace(plan, input=place(plan.input, predicates))
        case Limit():
            return filtered(replace(plan, input=place(plan.input)), predicates)
        case UnionAll():
            return replace(plan, inputs=tuple(place(part, predicates) for part in plan.inputs))
        case Aggregate():
            return _below_aggregation(plan, predicates)
        case Join():
            return _in_join(plan, predicates)


def split(predicates: Iterable[Expression]) -> Predicates:
    """The distinct parts of a conjunction, each simplified, true ones left out."""
    parts = dict.fromkeys(part for p in predicates for part in conjuncts(fold_condition(p)))
    parts.pop(TRUE, None)
    return tuple(parts)


def _distinct(predicates: Predicates) -> Predicates:
    return tuple(dict.fromkeys(predicates))


def filtered(plan: LogicalPlan, predicates: Predicates) -> LogicalPlan:
    """A filter right here."""
    predicate = conjunction(predicates)
    return plan if predicate is None else Filter(plan, predicate)


def substitute(expression: Expression, values: tuple[Expression, ...]) -> Expression:
    """The expression with field i replaced by `values[i]`."""

    def change(node: Expression) -> Expression:
        return values[node.index] if isinstance(node, FieldReference) else node

    return transform(expression, change)


def _below_projection(plan: Project, predicates: Predicates) -> LogicalPlan:
    below: list[Expression] = []
    above: list[Expression] = []
    sizes = [1 if isinstance(e, FieldReference | Literal) else sum(1 for _ in walk(e)) for e in plan.expressions]
    for predicate in predicates:
        size = sum(sizes[node.index] if isinstance(node, FieldReference) else 1 for node in walk(predicate))
        grows = size > _LARGEST_PREDICATE and any(sizes[position] > 1 for position in fields_of(predicate))
        (above if grows else below).append(predicate)
    moved = split(substitute(predicate, plan.expressions) for predicate in below)
    return filtered(replace(plan, input=place(plan.input, moved)), tuple(above))


def _below_aggregation(plan: Aggregate, predicates: Predicates) -> LogicalPlan:
    """A predicate on keys holds for a group as for each of its rows; without keys there is a group for no rows."""
    in_all_sets = [
        key for key in range(len(plan.keys)) if all(key in chosen for chosen in plan.grouping_sets or (range(key + 1),))
    ]
    below = tuple(p for p in predicates if in_all_sets and fields_of(p) <= frozenset(in_all_sets))
    above = tuple(p for p in predicates if p not in below)
    moved = tuple(shift_fields(p, plan.keys.__getitem__) for p in below)
    return filtered(replace(plan, input=place(plan.input, moved)), above)


def _in_join(plan: Join, predicates: Predicates) -> LogicalPlan:
    width = len(plan.left.schema)
    if plan.kind is JoinKind.MARK:
        found = _mark_test(predicates, width)
        if found is not None:
            return _without_mark(plan, predicates, found)
    if _wants_no_partner(plan, predicates):
        return _without_partners(plan, predicates)
    plan = replace(plan, kind=_kind_under(plan.kind, predicates, width))
    if plan.null_aware:
        return replace(plan, left=place(plan.left, predicates), right=place(plan.right))
    conditions, above = _conditions(plan), predicates
    if plan.kind is JoinKind.INNER:
        conditions, above = _distinct(conditions + predicates), ()
    below_left, below_right, on = _distributed(conditions, plan.kind, width)
    if plan.kind in (JoinKind.LEFT, *KEEPS_LEFT_ONLY):
        below_left += tuple(p for p in above if _reads(p, range(width)))
    elif plan.kind is JoinKind.RIGHT:
        right_fields = range(width, width + len(plan.right.schema))
        below_right += tuple(shift_fields(p, lambda i: i - width) for p in above if _reads(p, right_fields))
    if plan.kind in (JoinKind.LEFT, JoinKind.SEMI, JoinKind.MARK, JoinKind.ANTI):
        # What holds for every left row's keys may be asked of the right rows that are to match them.
        below_right += _carried(below_left, on, width, to_right=True)
    elif plan.kind is JoinKind.INNER:
        below_right, below_left = (
            below_right + _carried(below_left, on, width, to_right=True),
            below_left + _carried(below_right, on, width, to_right=False),
        )
    left, right = place(plan.left, _distinct(below_left)), place(plan.right, _distinct(below_right))
    above = tuple(p for p in above if not _was_pushed(p, plan, width))
    return filtered(join_on(left, right, plan.kind, on), above)


def _was_pushed(predicate: Expression, plan: Join, width: int) -> bool:
    if plan.kind is JoinKind.RIGHT:
        return _reads(predicate, range(width, width + len(plan.right.schema)))
    return plan.kind in (JoinKind.LEFT, *KEEPS_LEFT_ONLY) and _reads(predicate, range(width))


def _reads(predicate: Expression, fields: range) -> bool:
    """Whether the predicate reads nothing but these fields."""
    return all(position in fields for position in fields_of(predicate))


def _conditions(plan: Join) -> Predicates:
    """The join's condition: its keys and its residual, over left fields, then right fields."""
    width = len(plan.left.schema)
    keys = tuple(
        Call(
            "is_not_distinct_from" if null_equal else "equal",
            (
                FieldReference(left, plan.left.schema[left].type),
                FieldReference(right + width, plan.right.schema[right].type),
            ),
            pa.bool_(),
        )
        for left, right, null_equal in zip(plan.left_keys, plan.right_keys, plan.null_equal, strict=True)
    )
    return split((*keys, *conjuncts(plan.residual)))


def _distributed(conditions: Predicates, kind: JoinKind, width: int) -> tuple[Predicates, Predicates, Predicates]:
    """Parts for the left input, for the right input (over its own fields), and for the join itself."""
    left: list[Expression] = []
    right: list[Expression] = []
    on: list[Expression] = []
    for condition in conditions:
        reads = fields_of(condition)
        if kind in FILTERS_LEFT and all(p < width for p in reads):
            left.append(condition)
        elif kind in FILTERS_RIGHT and all(p >= width for p in reads):
            right.append(shift_fields(condition, lambda p: p - width))
        else:
            on.append(condition)
            if kind in FILTERS_LEFT:
                left.extend(_implied(condition, lambda p: p < width))
            if kind in FILTERS_RIGHT:
                implied = _implied(condition, lambda p: p >= width)
                right.extend(shift_fields(part, lambda p: p - width) for part in implied)
    return tuple(left), tuple(right), tuple(on)


def _implied(condition: Expression, of_side: object) -> Predicates:
    """What an OR over both sides says about one of them: each alternative's parts on that side, if all have any."""
    assert callable(of_side)
    if not (isinstance(condition, Call) and condition.function == "or"):
        return ()
    alternatives = []
    for alternative in condition.arguments:
        own = tuple(p for p in conjuncts(alternative) if fields_of(p) and all(of_side(i) for i in fields_of(p)))
        if not own:
            return ()
        alternatives.append(conjunction(own) or TRUE)
    return split((either(alternatives),))


def _carried(predicates: Predicates, on: Predicates, width: int, *, to_right: bool) -> Predicates:
    """Comparisons of a key with constants, moved to the key's partner on the other side."""
    partners = _key_partners(on, width, to_right=to_right)
    carried: list[Expression] = []
    for predicate in predicates:
        reads = fields_of(predicate)
        if len(reads) != 1 or not _is_constant_test(predicate):
            continue
        (position,) = reads
        carried.extend(_about(predicate, partner) for partner in partners.get(position, ()))
    return tuple(carried)


def _about(predicate: Expression, position: int) -> Expression:
    """The predicate on one field as one on the field at `position`."""
    return shift_fields(predicate, lambda _: position)


def _key_partners(on: Predicates, width: int, *, to_right: bool) -> dict[int, list[int]]:
    """For keys of equal type: positions on one side, with those on the other (each over its own input)."""
    partners: dict[int, list[int]] = {}
    for condition in on:
        match condition:
            case Call(function="equal", arguments=(FieldReference() as a, FieldReference() as b)) if a.type == b.type:
                left, right = (a.index, b.index) if a.index < b.index else (b.index, a.index)
                if left < width <= right:
                    pair = (left, right - width) if to_right else (right - width, left)
                    partners.setdefault(pair[0], []).append(pair[1])
    return partners


def _is_constant_test(predicate: Expression) -> bool:
    match predicate:
        case Call(function="equal" | "lt" | "lte" | "gt" | "gte", arguments=(FieldReference(), Literal())):
            return True
        case InList(operand=FieldReference(), options=options):
            return all(isinstance(option, Literal) for option in options)
        case _:
            return False


def _kind_under(kind: JoinKind, predicates: Predicates, width: int) -> JoinKind:
    """The kind of join that is enough, given that rows padded with NULLs may fail the predicates above."""
    left_rejected = any(rejects_nulls(p, lambda i: i < width) for p in predicates)
    right_rejected = any(rejects_nulls(p, lambda i: i >= width) for p in predicates)
    match kind:
        case JoinKind.LEFT:
            return JoinKind.INNER if right_rejected else kind
        case JoinKind.RIGHT:
            return JoinKind.INNER if left_rejected else kind
        case JoinKind.FULL:
            if left_rejected and right_rejected:
                return JoinKind.INNER
            return JoinKind.LEFT if left_rejected else JoinKind.RIGHT if right_rejected else kind
        case _:
            return kind


def _wants_no_partner(plan: Join, predicates: Predicates) -> bool:
    """Whether only those rows of an outer join count that have no partner: a field of the other side is to be NULL
    which is not NULL in any partner."""
    fields, width = (*plan.left.schema, *plan.right.schema), len(plan.left.schema)
    match plan.kind:
        case JoinKind.LEFT:
            padded = range(width, len(fields))
        case JoinKind.RIGHT:
            padded = range(width)
        case _:
            return False
    for predicate in predicates:
        match predicate:
            case Call(function="is_null", arguments=(FieldReference(index=index),)) if index in padded:
                of_field = frozenset((index,)).__contains__
                if not fields[index].nullable or any(rejects_nulls(part, of_field) for part in _conditions(plan)):
                    return True
    return False


def _without_partners(plan: Join, predicates: Predicates) -> LogicalPlan:
    """An outer join of which only the rows without a partner count: an anti join, with NULL for the other side."""
    of_left = plan.kind is JoinKind.LEFT
    anti = replace(plan if of_left else turned(plan), kind=JoinKind.ANTI)
    kept = tuple(FieldReference(p, f.type) for p, f in enumerate(anti.left.schema))
    padding = tuple(Literal(None, f.type) for f in anti.right.schema)
    columns: tuple[Expression, ...] = (*kept, *padding) if of_left else (*padding, *kept)
    below = split(substitute(p, columns) for p in predicates)
    return Project(place(anti, below), columns, plan.schema)


def _mark_test(predicates: Predicates, mark: int) -> bool | None:
    """The value that the predicates demand of the mark, None when they leave it open."""
    for predicate in predicates:
        match predicate:
            case FieldReference(index=index) if index == mark:
                return True
            case Call(function="not" | "is_not_true", arguments=(FieldReference(index=index),)) if index == mark:
                return False
    return None


def _without_mark(plan: Join, predicates: Predicates, mark: bool) -> LogicalPlan:
    """A mark that must have one value: a semi or an anti join, with the mark as a constant."""
    join = replace(plan, kind=JoinKind.SEMI if mark else JoinKind.ANTI)
    constant = Literal(mark, pa.bool_())
    fields: list[Expression] = [FieldReference(p, f.type) for p, f in enumerate(plan.left.schema)]
    columns = (*fields, constant)
    below = split(substitute(p, columns) for p in predicates)
    return Project(place(join, below), columns, plan.schema)
