"""A maximal group of joins that may be reordered, taken apart into relations, attachments and conditions.

Every field of every relation of the group gets a number, the *field number*; conditions are expressed over field
numbers, so they stay valid in whatever order the relations are joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from pystachio.operators.batch import Field
from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    JoinKind,
    conjuncts,
    fields_of,
    shift_fields,
)
from pystachio.planner.joins.condition import turned
from pystachio.planner.logical import Filter, Join, LogicalPlan, Project

Numbers = tuple[int, ...]
OrderInside = Callable[[LogicalPlan], LogicalPlan]


@dataclass(frozen=True, slots=True)
class Relation:
    """A leaf of the group: `numbers[i]` is the field number of its i-th field."""

    plan: LogicalPlan
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Attachment:
    """A join that deals with each row of its left side by itself, so that it may happen wherever its left fields are at
    hand: SEMI and ANTI keep the row or drop it, LEFT pairs it with its partners or with NULLs, MARK adds a field.

    `left_keys` are field numbers, `right_keys` positions in `plan`, whose fields have `right_numbers` (in `residual`
    too). `added` are the numbers of the fields that the row gains.
    """

    plan: LogicalPlan
    kind: JoinKind
    left_keys: Numbers
    right_keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    residual: Expression | None
    right_numbers: Numbers
    added: Numbers
    null_aware: bool

    @property
    def residual_numbers(self) -> frozenset[int]:
        """Field numbers of the left side that the residual condition reads."""
        return frozenset() if self.residual is None else fields_of(self.residual) - frozenset(self.right_numbers)


@dataclass(slots=True)
class JoinGraph:
    """What `collect` found. Field number n belongs to the relation `owner[n]`, or to attachment -1 - `owner[n]`.

    `equalities` may be closed transitively; `pairs` (with whether NULLs are equal) may not: the two fields have
    different types, or a NULL on both sides satisfies them, or one is an attachment's and may not be there yet.
    """

    relations: list[Relation] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    equalities: list[tuple[int, int]] = field(default_factory=list)
    pairs: list[tuple[int, int, bool]] = field(default_factory=list)
    predicates: list[Expression] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)

    def number(self, fields: tuple[Field, ...], owner: int) -> Numbers:
        """Give fields their numbers."""
        base = len(self.fields)
        self.fields.extend(fields)
        self.owner.extend([owner] * len(fields))
        return tuple(range(base, len(self.fields)))

    def add_key(self, left: int, right: int, null_equal: bool) -> None:
        """The fields of these numbers must be equal."""
        attached = self.owner[left] < 0 or self.owner[right] < 0
        if null_equal or attached or self.fields[left].type != self.fields[right].type:
            self.pairs.append((left, right, null_equal))
        else:
            self.equalities.append((left, right))

    def add_predicates(self, predicate: Expression | None, numbers: Numbers) -> None:
        """Conditions over the fields `numbers`; equalities of two relations become keys."""
        for part in conjuncts(predicate):
            match shift_fields(part, numbers.__getitem__):
                case Call(function="equal", arguments=(FieldReference() as a, FieldReference() as b)) if (
                    a.type == b.type and self.owner[a.index] != self.owner[b.index]
                ):
                    self.add_key(a.index, b.index, False)
                case numbered:
                    self.predicates.append(numbered)


def are_references(expressions: tuple[Expression, ...]) -> bool:
    """Whether a projection only picks fields."""
    return all(isinstance(expression, FieldReference) for expression in expressions)


def is_reorderable(plan: LogicalPlan) -> bool:
    """Whether the plan is a join that can take part in a group, perhaps under filters and plain projections."""
    match plan:
        case Join(kind=kind):
            return kind is not JoinKind.FULL
        case Filter(input=input_):
            return is_reorderable(input_)
        case Project(input=input_, expressions=expressions):
            return are_references(expressions) and is_reorderable(input_)
        case _:
            return False


def collect(plan: LogicalPlan, order_inside: OrderInside) -> tuple[JoinGraph, Numbers]:
    """The group below `plan`, and the field numbers of the plan's output. Leaves go through `order_inside`."""
    graph = JoinGraph()
    return graph, _collect(plan, graph, order_inside)


def _collect(plan: LogicalPlan, graph: JoinGraph, order_inside: OrderInside) -> Numbers:
    match plan:
        case Join(kind=JoinKind.INNER):
            left = _collect(plan.left, graph, order_inside)
            right = _collect(plan.right, graph, order_inside)
            for left_key, right_key, null_equal in zip(plan.left_keys, plan.right_keys, plan.null_equal, strict=True):
                graph.add_key(left[left_key], right[right_key], null_equal)
            graph.add_predicates(plan.residual, left + right)
            return left + right
        case Join(kind=JoinKind.RIGHT):
            numbers = _attach(turned(plan), graph, order_inside)
            width = len(plan.right.schema)
            return numbers[width:] + numbers[:width]
        case Join(kind=JoinKind.LEFT | JoinKind.SEMI | JoinKind.ANTI | JoinKind.MARK):
            return _attach(plan, graph, order_inside)
        case Filter():
            numbers = _collect(plan.input, graph, order_inside)
            graph.add_predicates(plan.predicate, numbers)
            return numbers
        case Project() if are_references(plan.expressions):
            numbers = _collect(plan.input, graph, order_inside)
            return tuple(numbers[e.index] for e in plan.expressions if isinstance(e, FieldReference))
        case _:
            leaf = order_inside(plan)
            numbers = graph.number(leaf.schema, len(graph.relations))
            graph.relations.append(Relation(leaf, numbers))
            return numbers


def _attach(plan: Join, graph: JoinGraph, order_inside: OrderInside) -> Numbers:
    left = _collect(plan.left, graph, order_inside)
    right = order_inside(plan.right)
    owner = -1 - len(graph.attachments)
    right_numbers = graph.number(right.schema, owner)
    added: Numbers = ()
    if plan.kind is JoinKind.LEFT:
        added = right_numbers
    elif plan.kind is JoinKind.MARK:
        added = graph.number((Field("mark", pa.bool_(), True),), owner)
    graph.attachments.append(
        Attachment(
            plan=right,
            kind=plan.kind,
            left_keys=tuple(left[key] for key in plan.left_keys),
            right_keys=plan.right_keys,
            null_equal=plan.null_equal,
            residual=None if plan.residual is None else shift_fields(plan.residual, (left + right_numbers).__getitem__),
            right_numbers=right_numbers,
            added=added,
            null_aware=plan.null_aware,
        )
    )
    return left + added
