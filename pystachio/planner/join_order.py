"""The order of joins: greedy, bushy, smallest output first (GOO: Fegaras, "A new heuristic for optimizing large
queries", 1998), over groups of inner, semi and anti joins. Outer joins stay where they are, their sides are ordered
inside.

Equalities are closed transitively: fields that must be equal form a class, and any member may serve as the key. Within
a component (relations joined so far) all members of a class are equal, because every join of two components
compares one member of each side for every class that both have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    JoinKind,
    conjunction,
    fields_of,
    shift_fields,
)
from pystachio.planner.cardinality import Estimator, join_estimate
from pystachio.planner.join_graph import JoinGraph, Reducer, Relation, collect, is_reorderable
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
from pystachio.planner.profiles import Estimate


def reorder(query: Query, estimator: Estimator) -> Query:
    """The same query with its joins in a cheaper order; fields, their order and their names stay."""
    order = _Reordering(estimator).order
    return Query(order(query.root), tuple(order(scalar) for scalar in query.scalars))


class _Reordering:
    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def order(self, plan: LogicalPlan) -> LogicalPlan:
        if is_reorderable(plan):
            return self._order_group(plan)
        match plan:
            case Read() | Values():
                return plan
            case Join():
                return replace(plan, left=self.order(plan.left), right=self.order(plan.right))
            case UnionAll():
                return replace(plan, inputs=tuple(self.order(part) for part in plan.inputs))
            case Filter() | Project() | Aggregate() | Sort() | Limit():
                return replace(plan, input=self.order(plan.input))

    def _order_group(self, plan: LogicalPlan) -> LogicalPlan:
        graph, output = collect(plan, self.order)
        component = _Greedy(graph, self._estimator).run()
        positions = component.positions
        if tuple(positions[number] for number in output) == tuple(range(len(component.numbers))):
            return component.plan
        references = tuple(FieldReference(positions[n], graph.fields[n].type) for n in output)
        return Project(component.plan, references, plan.schema)


@dataclass(slots=True, eq=False)
class Component:
    """Relations joined so far: `numbers[i]` is the field number at position i of `plan`."""

    serial: int
    plan: LogicalPlan
    numbers: tuple[int, ...]
    relations: frozenset[int]
    estimate: Estimate
    members: dict[int, int]
    """The field number that stands for each equality class."""
    positions: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {number: position for position, number in enumerate(self.numbers)}


@dataclass(frozen=True, slots=True)
class _Condition:
    """How two components join: positions of the keys in each, and the predicates that become evaluable."""

    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    predicates: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """A candidate: join two components, or apply a reducer to one. The smallest in order is taken."""

    rows: float
    tie: tuple[int, int]
    take: Callable[[], None]

    @property
    def order(self) -> tuple[float, tuple[int, int]]:
        return self.rows, self.tie


class _Greedy:
    """One group. Candidates are estimated once: a step only adds those that involve the component it made."""

    def __init__(self, graph: JoinGraph, estimator: Estimator) -> None:
        self._graph = graph
        self._estimator = estimator
        self._class_of = _equality_classes(graph.equalities)
        self._spanning = [p for p in graph.predicates if len(graph.owners(fields_of(p))) > 1]
        self._reducers = dict(enumerate(graph.reducers))
        self._serials = iter(range(2 * len(graph.relations) + len(graph.reducers)))
        self._components = [self._leaf(index, relation) for index, relation in enumerate(graph.relations)]
        self._steps: list[_Step] = []

    def run(self) -> Component:
        for position, component in enumerate(self._components):
            self._propose(component, self._components[:position])
        while len(self._components) > 1 or self._reducers:
            if not self._steps:
                self._propose_products()
            best = min(self._steps, key=lambda step: step.order)
            best.take()
        return self._with_constant_predicates(self._components[0])

    def _leaf(self, index: int, relation: Relation) -> Component:
        """The relation under the predicates that concern it alone, among them equalities inside a class."""
        positions = {number: position for position, number in enumerate(relation.numbers)}
        predicates = [
            shift_fields(p, positions.__getitem__)
            for p in self._graph.predicates
            if self._graph.owners(fields_of(p)) == {index}
        ]
        members: dict[int, int] = {}
        for number in relation.numbers:
            if number not in self._class_of:
                continue
            first = members.setdefault(self._class_of[number], number)
            if first != number:
                predicates.append(self._equal(positions[first], positions[number], number))
        plan = _filtered(relation.plan, tuple(predicates))
        return Component(
            next(self._serials),
            plan,
            relation.numbers,
            frozenset({index}),
            self._estimator.estimate(plan),
            members,
        )

    def _equal(self, left: int, right: int, number: int) -> Expression:
        type_ = self._graph.fields[number].type
        return Call("equal", (FieldReference(left, type_), FieldReference(right, type_)), pa.bool_())

    def _propose(self, component: Component, others: list[Component]) -> None:
        """Add the steps that involve `component`: connected joins with `others`, and reducers."""
        for other in others:
            condition = self._condition(other, component)
            if condition.left_keys:
                self._steps.append(self._join_step(other, component, condition))
        for index, reducer in self._reducers.items():
            if (keys := self._reducer_keys(component, reducer)) is not None:
                self._steps.append(self._reduce_step(component, index, reducer, keys))

    def _propose_products(self) -> None:
        """Nothing is connected any more: all pairs without a key are candidates."""
        for position, right in enumerate(self._components):
            for left in self._components[:position]:
                self._steps.append(self._join_step(left, right, self._condition(left, right)))

    def _condition(self, left: Component, right: Component) -> _Condition:
        keys = [
            (left.positions[left.members[c]], right.positions[number], False)
            for c, number in right.members.items()
            if c in left.members
        ]
        for a, b, nulls_match in self._graph.pairs:
            if a in left.positions and b in right.positions:
                keys.append((left.positions[a], right.positions[b], nulls_match))
            elif b in left.positions and a in right.positions:
                keys.append((left.positions[b], right.positions[a], nulls_match))
        both = left.relations | right.relations
        predicates = tuple(
            p
            for p in self._spanning
            if (owners := self._graph.owners(fields_of(p))) <= both
            and not owners <= left.relations
            and not owners <= right.relations
        )
        left_keys, right_keys, null_equal = zip(*keys, strict=True) if keys else ((), (), ())
        return _Condition(left_keys, right_keys, null_equal, predicates)

    def _join_step(self, left: Component, right: Component, condition: _Condition) -> _Step:
        """The larger side goes left: the right side is the natural build side."""
        if right.estimate.rows > left.estimate.rows:
            left, right = right, left
            condition = replace(condition, left_keys=condition.right_keys, right_keys=condition.left_keys)
        numbers = left.numbers + right.numbers
        positions = {number: position for position, number in enumerate(numbers)}
        residual = conjunction(tuple(shift_fields(p, positions.__getitem__) for p in condition.predicates))
        estimate = join_estimate(
            left.estimate, right.estimate, JoinKind.INNER, condition.left_keys, condition.right_keys, residual
        )

        def take() -> None:
            plan = Join(
                left.plan,
                right.plan,
                JoinKind.INNER,
                condition.left_keys,
                condition.right_keys,
                condition.null_equal,
                residual,
            )
            self._estimator.remember(plan, estimate)
            joined = Component(
                next(self._serials),
                plan,
                numbers,
                left.relations | right.relations,
                estimate,
                {**right.members, **left.members},
            )
            self._replace((left, right), joined)

        return _Step(estimate.rows, (left.serial, right.serial), take)

    def _reducer_keys(self, component: Component, reducer: Reducer) -> tuple[int, ...] | None:
        """Positions that serve as the reducer's left keys; None while the component does not hold them all."""
        if any(number not in component.positions for number in reducer.residual_numbers):
            return None
        keys = []
        for number in reducer.left_keys:
            stand_in = component.members.get(self._class_of.get(number, -1), number)
            if stand_in not in component.positions:
                return None
            keys.append(component.positions[stand_in])
        if not keys and not reducer.residual_numbers and len(self._components) > 1:
            return None  # all rows or none: it may wait until the end
        return tuple(keys)

    def _reduce_step(self, component: Component, index: int, reducer: Reducer, keys: tuple[int, ...]) -> _Step:
        right = self._estimator.estimate(reducer.plan)
        residual = None
        if reducer.residual is not None:
            width = len(component.numbers)
            positions = dict(component.positions)
            positions.update({reducer.right_base + p: width + p for p in range(len(reducer.plan.schema))})
            residual = shift_fields(reducer.residual, positions.__getitem__)
        estimate = join_estimate(component.estimate, right, reducer.kind, keys, reducer.right_keys, residual)

        def take() -> None:
            plan = Join(
                component.plan,
                reducer.plan,
                reducer.kind,
                keys,
                reducer.right_keys,
                reducer.null_equal,
                residual,
                reducer.null_aware,
            )
            self._estimator.remember(plan, estimate)
            del self._reducers[index]
            reduced = replace(component, serial=next(self._serials), plan=plan, estimate=estimate)
            self._replace((component,), reduced)

        return _Step(estimate.rows, (component.serial, -1 - index), take)

    def _replace(self, used: tuple[Component, ...], made: Component) -> None:
        self._components = [c for c in self._components if c not in used]
        alive = {component.serial for component in self._components}
        reducers = {-1 - index for index in self._reducers}
        self._steps = [s for s in self._steps if all(part in alive or part in reducers for part in s.tie)]
        self._propose(made, self._components)
        self._components.append(made)

    def _with_constant_predicates(self, component: Component) -> Component:
        constant = tuple(p for p in self._graph.predicates if not fields_of(p))
        return replace(component, plan=_filtered(component.plan, constant))


def _filtered(plan: LogicalPlan, predicates: tuple[Expression, ...]) -> LogicalPlan:
    predicate = conjunction(predicates)
    return plan if predicate is None else Filter(plan, predicate)


def _equality_classes(equalities: list[tuple[int, int]]) -> dict[int, int]:
    """The class of each field number that occurs in an equality, named by one of its members."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        parent.setdefault(number, number)
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for a, b in equalities:
        parent[root(b)] = root(a)
    return {number: root(number) for number in parent}
