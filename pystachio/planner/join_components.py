"""Parts of a join order: relations that are joined so far, how two such parts join, and the plan of a finished tree.

The search for an order needs only the fields that conditions read, so a component's estimate covers those alone; the
plan is built once, from the tree that won.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

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
from pystachio.planner.join_graph import JoinGraph, Reducer
from pystachio.planner.logical import Filter, Join, LogicalPlan
from pystachio.planner.profiles import Estimate


@dataclass(frozen=True, slots=True)
class Leaf:
    relation: int


@dataclass(frozen=True, slots=True)
class Joined:
    left: Tree
    right: Tree


@dataclass(frozen=True, slots=True)
class Reduced:
    input: Tree
    reducer: int


Tree = Leaf | Joined | Reduced

Members = Mapping[int, tuple[int, ...]]
"""Field numbers by equality class."""


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """`parts` has a bit per relation and, above them, one per reducer that was applied. `numbers` are the field numbers
    that `estimate` describes. `members` are the fields of each equality class, all equal here. `cost` is the sum of the
    rows that its joins put out, `neighbours` the relations that some key leads to."""

    tree: Tree
    parts: int
    numbers: tuple[int, ...]
    estimate: Estimate
    members: Members
    cost: float
    neighbours: int
    positions: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", _positions(self.numbers))

    @property
    def rows(self) -> float:
        return self.estimate.rows


@dataclass(frozen=True, slots=True)
class _Built:
    """A plan with the field number of each of its fields."""

    plan: LogicalPlan
    numbers: tuple[int, ...]
    relations: int
    members: Members


@dataclass(frozen=True, slots=True)
class _Condition:
    """Pairs of field numbers that must be equal, and predicates over field numbers."""

    keys: tuple[tuple[int, int, bool], ...]
    predicates: tuple[Expression, ...]


class JoinSpace:
    """All components of one group that a search may ask for."""

    def __init__(self, graph: JoinGraph, estimator: Estimator) -> None:
        self._graph = graph
        self._estimator = estimator
        self._class_of = _equality_classes(graph.equalities)
        self._owners = [_bits(graph.owners(fields_of(p))) for p in graph.predicates]
        self._plans = [self._filtered_leaf(index) for index in range(len(graph.relations))]
        self._read = self._numbers_read()
        self.relations = len(graph.relations)
        self.reducers = len(graph.reducers)

    @property
    def everything(self) -> int:
        """The parts of the finished component."""
        return (1 << (self.relations + self.reducers)) - 1

    def leaf(self, index: int) -> Component:
        """One relation, under the predicates that concern it alone."""
        relation = self._graph.relations[index]
        estimate = self._estimator.estimate(self._plans[index])
        kept = [(n, profile) for n, profile in zip(relation.numbers, estimate.columns) if n in self._read]
        numbers = tuple(number for number, _ in kept)
        slim = Estimate(estimate.rows, tuple(profile for _, profile in kept))
        return Component(
            Leaf(index), 1 << index, numbers, slim, self._leaf_members(index), 0.0, self._neighbours_of(index)
        )

    def joined(self, left: Component, right: Component) -> Component:
        """Both, with every key and predicate that connects them; a product when there is none."""
        condition = self._condition(left.parts, right.parts, left.members, right.members)
        left_keys = tuple(left.positions[a] for a, _, _ in condition.keys)
        right_keys = tuple(right.positions[b] for _, b, _ in condition.keys)
        numbers = left.numbers + right.numbers
        residual = _over(condition.predicates, numbers)
        estimate = join_estimate(left.estimate, right.estimate, JoinKind.INNER, left_keys, right_keys, residual)
        return Component(
            Joined(left.tree, right.tree) if left.rows >= right.rows else Joined(right.tree, left.tree),
            left.parts | right.parts,
            numbers,
            estimate,
            _merged(left.members, right.members),
            left.cost + right.cost + estimate.rows,
            left.neighbours | right.neighbours,
        )

    def reduced(self, component: Component, index: int) -> Component | None:
        """The component after a reducer; None while it lacks one of the reducer's fields."""
        reducer = self._graph.reducers[index]
        left_keys = self._reducer_keys(reducer, component.parts, component.members)
        if left_keys is None:
            return None
        right = self._estimator.estimate(reducer.plan)
        numbers = component.numbers + tuple(reducer.right_base + p for p in range(len(right.columns)))
        estimate = join_estimate(
            component.estimate,
            right,
            reducer.kind,
            tuple(component.positions[key] for key in left_keys),
            reducer.right_keys,
            _over(() if reducer.residual is None else (reducer.residual,), numbers),
        )
        return Component(
            Reduced(component.tree, index),
            component.parts | 1 << (self.relations + index),
            component.numbers,
            estimate,
            component.members,
            component.cost + estimate.rows,
            component.neighbours,
        )

    def plan(self, tree: Tree) -> tuple[LogicalPlan, tuple[int, ...]]:
        """The plan of a finished tree and the field numbers of its output."""
        built = self._build(tree)
        constant = tuple(p for p, owners in zip(self._graph.predicates, self._owners) if not owners)
        return _filtered(built.plan, constant), built.numbers

    def _build(self, tree: Tree) -> _Built:
        match tree:
            case Leaf(relation=index):
                numbers = self._graph.relations[index].numbers
                return _Built(self._plans[index], numbers, 1 << index, self._leaf_members(index))
            case Joined(left=left, right=right):
                return self._build_join(self._build(left), self._build(right))
            case Reduced(input=input_, reducer=index):
                return self._build_reduction(self._build(input_), self._graph.reducers[index])

    def _build_join(self, left: _Built, right: _Built) -> _Built:
        condition = self._condition(left.relations, right.relations, left.members, right.members)
        numbers = left.numbers + right.numbers
        plan = Join(
            left.plan,
            right.plan,
            JoinKind.INNER,
            tuple(left.numbers.index(a) for a, _, _ in condition.keys),
            tuple(right.numbers.index(b) for _, b, _ in condition.keys),
            tuple(null_equal for _, _, null_equal in condition.keys),
            _over(condition.predicates, numbers),
        )
        return _Built(plan, numbers, left.relations | right.relations, _merged(left.members, right.members))

    def _build_reduction(self, source: _Built, reducer: Reducer) -> _Built:
        left_keys = self._reducer_keys(reducer, source.relations, source.members)
        assert left_keys is not None, "the search found the keys"
        numbers = source.numbers + tuple(reducer.right_base + p for p in range(len(reducer.plan.schema)))
        plan = Join(
            source.plan,
            reducer.plan,
            reducer.kind,
            tuple(source.numbers.index(key) for key in left_keys),
            reducer.right_keys,
            reducer.null_equal,
            _over(() if reducer.residual is None else (reducer.residual,), numbers),
            reducer.null_aware,
        )
        return _Built(plan, source.numbers, source.relations, source.members)

    def _filtered_leaf(self, index: int) -> LogicalPlan:
        """The relation under its own predicates, among them equalities inside a class."""
        relation = self._graph.relations[index]
        predicates = [p for p, owners in zip(self._graph.predicates, self._owners) if owners == 1 << index]
        for first, *others in self._leaf_members(index).values():
            type_ = self._graph.fields[first].type
            for other in others:
                pair = (FieldReference(first, type_), FieldReference(other, type_))
                predicates.append(Call("equal", pair, pa.bool_()))
        positions = _positions(relation.numbers)
        return _filtered(relation.plan, tuple(shift_fields(p, positions.__getitem__) for p in predicates))

    def _leaf_members(self, index: int) -> dict[int, tuple[int, ...]]:
        members: dict[int, tuple[int, ...]] = {}
        for number in self._graph.relations[index].numbers:
            if number in self._class_of:
                class_ = self._class_of[number]
                members[class_] = (*members.get(class_, ()), number)
        return members

    def _neighbours_of(self, index: int) -> int:
        """The relations with which the relation shares an equality class or a pair of keys."""
        classes = set(self._leaf_members(index))
        owner = self._graph.owner
        linked = {owner[number] for number, class_ in self._class_of.items() if class_ in classes}
        for a, b, _ in self._graph.pairs:
            if index in (owner[a], owner[b]):
                linked |= {owner[a], owner[b]}
        return _bits(linked - {index, -1})

    def _numbers_read(self) -> frozenset[int]:
        """The fields that some condition of the group reads."""
        read = set(self._class_of)
        for a, b, _ in self._graph.pairs:
            read |= {a, b}
        for predicate in self._graph.predicates:
            read |= fields_of(predicate)
        for reducer in self._graph.reducers:
            read |= {*reducer.left_keys, *reducer.residual_numbers}
        return frozenset(read)

    def _condition(self, left: int, right: int, left_members: Members, right_members: Members) -> _Condition:
        """`left` and `right` are sets of parts."""
        owner = self._graph.owner
        shared = [class_ for class_ in right_members if class_ in left_members]
        left_keys = self._together([left_members[class_] for class_ in shared])
        right_keys = self._together([right_members[class_] for class_ in shared])
        keys = [(a, b, False) for a, b in zip(left_keys, right_keys, strict=True)]
        for a, b, null_equal in self._graph.pairs:
            if left >> owner[a] & 1 and right >> owner[b] & 1:
                keys.append((a, b, null_equal))
            elif left >> owner[b] & 1 and right >> owner[a] & 1:
                keys.append((b, a, null_equal))
        predicates = tuple(
            p
            for p, owners in zip(self._graph.predicates, self._owners)
            if owners & left and owners & right and not owners & ~(left | right)
        )
        return _Condition(tuple(keys), predicates)

    def _together(self, choices: list[tuple[int, ...]]) -> list[int]:
        """One field of each choice, of as few relations as possible: the estimate of several keys depends on whether
        they come from one relation."""
        if len(choices) < 2:
            return [choice[0] for choice in choices]
        counts = Counter(owner for choice in choices for owner in {self._graph.owner[number] for number in choice})
        return [max(choice, key=lambda number: counts[self._graph.owner[number]]) for choice in choices]

    def _reducer_keys(self, reducer: Reducer, parts: int, members: Members) -> tuple[int, ...] | None:
        """The fields that serve as left keys: of each key's class any member will do."""
        owner = self._graph.owner
        if any(not parts >> owner[number] & 1 for number in reducer.residual_numbers):
            return None
        choices = [members.get(self._class_of.get(number, -1), (number,)) for number in reducer.left_keys]
        if any(not parts >> owner[choice[0]] & 1 for choice in choices):
            return None
        keys = self._together(choices)
        all_relations = (1 << self.relations) - 1
        if not keys and not reducer.residual_numbers and parts & all_relations != all_relations:
            return None  # all rows or none: it may wait until the end
        return tuple(keys)


def _bits(members: frozenset[int] | set[int]) -> int:
    return sum(1 << member for member in members)


def _merged(left: Members, right: Members) -> Members:
    return {class_: left.get(class_, ()) + right.get(class_, ()) for class_ in {**left, **right}}


def _positions(numbers: tuple[int, ...]) -> dict[int, int]:
    return {number: position for position, number in enumerate(numbers)}


def _over(predicates: tuple[Expression, ...], numbers: tuple[int, ...]) -> Expression | None:
    """The conjunction of predicates over field numbers, as one over positions."""
    if not predicates:
        return None
    positions = _positions(numbers)
    return conjunction(tuple(shift_fields(p, positions.__getitem__) for p in predicates))


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
