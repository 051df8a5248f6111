"""A maximal group of joins that may be reordered, taken apart into relations and conditions.

Every field of every relation of the group gets a number, the *field number*; conditions are expressed over field
numbers, so they stay valid in whatever order the relations are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
from pystachio.planner.logical import Filter, Join, LogicalPlan, Project


@dataclass(frozen=True, slots=True)
class Relation:
    """A leaf of the group: `numbers[i]` is the field number of its i-th field."""

    plan: LogicalPlan
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reducer:
    """A SEMI or ANTI join: it takes rows away, whenever its left keys are at hand.

    `left_keys` are field numbers, `right_keys` positions in `plan`. In `residual` a field of `plan` at position p
    appears as number `right_base + p`.
    """

    plan: LogicalPlan
    kind: JoinKind
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    residual: Expression | None
    right_base: int
    null_aware: bool

    @property
    def residual_numbers(self) -> frozenset[int]:
        """Field numbers of the left side that the residual condition reads."""
        read = frozenset() if self.residual is None else fields_of(self.residual)
        return frozenset(n for n in read if not self.right_base <= n < self.right_base + len(self.plan.schema))


@dataclass(slots=True)
class JoinGraph:
    """What `collect` found. `owner[n]` is the relation of field number n, -1 for a reducer's field.

    `equalities` may be closed transitively; `pairs` (with whether NULLs are equal) may not, because the two fields have
    different types or a NULL on both sides satisfies them.
    """

    relations: list[Relation] = field(default_factory=list)
    equalities: list[tuple[int, int]] = field(default_factory=list)
    pairs: list[tuple[int, int, bool]] = field(default_factory=list)
    predicates: list[Expression] = field(default_factory=list)
    reducers: list[Reducer] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)

    def number(self, plan: LogicalPlan, owner: int) -> tuple[int, ...]:
        """Give the fields of `plan` their numbers."""
        base = len(self.fields)
        self.fields.extend(plan.schema)
        self.owner.extend([owner] * len(plan.schema))
        return tuple(range(base, len(self.fields)))

    def add_key(self, left: int, right: int, null_equal: bool) -> None:
        """The fields of these numbers must be equal."""
        if null_equal or self.fields[left].type != self.fields[right].type:
            self.pairs.append((left, right, null_equal))
        else:
            self.equalities.append((left, right))

    def owners(self, numbers: Iterable[int]) -> frozenset[int]:
        """The relations that fields belong to."""
        return frozenset(self.owner[number] for number in numbers)


def are_references(expressions: tuple[Expression, ...]) -> bool:
    """Whether a projection only picks fields."""
    return all(isinstance(expression, FieldReference) for expression in expressions)


def is_reorderable(plan: LogicalPlan) -> bool:
    """Whether the plan is a join that can take part in a group, perhaps under filters and plain projections."""
    match plan:
        case Join(kind=JoinKind.INNER | JoinKind.SEMI | JoinKind.ANTI):
            return True
        case Filter(input=input_):
            return is_reorderable(input_)
        case Project(input=input_, expressions=expressions):
            return are_references(expressions) and is_reorderable(input_)
        case _:
            return False


def collect(plan: LogicalPlan, order_inside: Callable[[LogicalPlan], LogicalPlan]) -> tuple[JoinGraph, tuple[int, ...]]:
    """The group below `plan`, and the field numbers of the plan's output. Leaves go through `order_inside`."""
    graph = JoinGraph()
    return graph, _collect(plan, graph, order_inside)


def _collect(
    plan: LogicalPlan, graph: JoinGraph, order_inside: Callable[[LogicalPlan], LogicalPlan]
) -> tuple[int, ...]:
    match plan:
        case Join(kind=JoinKind.INNER):
            left = _collect(plan.left, graph, order_inside)
            right = _collect(plan.right, graph, order_inside)
            for left_key, right_key, null_equal in zip(plan.left_keys, plan.right_keys, plan.null_equal, strict=True):
                graph.add_key(left[left_key], right[right_key], null_equal)
            _add_predicates(graph, plan.residual, left + right)
            return left + right
        case Join(kind=JoinKind.SEMI | JoinKind.ANTI):
            return _collect_reducer(plan, graph, order_inside)
        case Filter():
            numbers = _collect(plan.input, graph, order_inside)
            _add_predicates(graph, plan.predicate, numbers)
            return numbers
        case Project() if are_references(plan.expressions):
            numbers = _collect(plan.input, graph, order_inside)
            return tuple(numbers[e.index] for e in plan.expressions if isinstance(e, FieldReference))
        case _:
            leaf = order_inside(plan)
            numbers = graph.number(leaf, len(graph.relations))
            graph.relations.append(Relation(leaf, numbers))
            return numbers


def _collect_reducer(
    plan: Join, graph: JoinGraph, order_inside: Callable[[LogicalPlan], LogicalPlan]
) -> tuple[int, ...]:
    left = _collect(plan.left, graph, order_inside)
    right = order_inside(plan.right)
    numbers = left + graph.number(right, -1)
    graph.reducers.append(
        Reducer(
            plan=right,
            kind=plan.kind,
            left_keys=tuple(left[key] for key in plan.left_keys),
            right_keys=plan.right_keys,
            null_equal=plan.null_equal,
            residual=None if plan.residual is None else shift_fields(plan.residual, numbers.__getitem__),
            right_base=numbers[len(left)] if len(numbers) > len(left) else len(graph.fields),
            null_aware=plan.null_aware,
        )
    )
    return left


def _add_predicates(graph: JoinGraph, predicate: Expression | None, numbers: tuple[int, ...]) -> None:
    for part in conjuncts(predicate):
        numbered = shift_fields(part, numbers.__getitem__)
        match numbered:
            case Call(function="equal", arguments=(FieldReference() as a, FieldReference() as b)) if (
                a.type == b.type and graph.owner[a.index] != graph.owner[b.index]
            ):
                graph.equalities.append((a.index, b.index))
            case _:
                graph.predicates.append(numbered)
