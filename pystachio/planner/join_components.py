"""Parts of a join order: relations that are joined so far, how two such parts join, and the plan of a finished tree.

The search for an order needs only the fields that conditions read, so a component's estimate covers those alone; the
plan is built once, from the tree that won.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
from pystachio.planner.join_graph import Attachment, JoinGraph, Numbers
from pystachio.planner.logical import Filter, Join, LogicalPlan
from pystachio.planner.profiles import Estimate
from pystachio.planner.selectivity import selectivity


@dataclass(frozen=True, slots=True)
class Leaf:
    relation: int


@dataclass(frozen=True, slots=True)
class Joined:
    left: Tree
    right: Tree


@dataclass(frozen=True, slots=True)
class Attached:
    input: Tree
    attachment: int


Tree = Leaf | Joined | Attached

Members = Mapping[int, Numbers]
"""Field numbers by equality class."""


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """`parts` has a bit per relation and, above them, one per attachment. `numbers` are the field numbers that
    `estimate` describes. `members` are the fields of each equality class, all equal here. `cost` is the sum of the rows
    that its joins put out, `neighbours` the parts that some key leads to."""

    tree: Tree
    parts: int
    numbers: Numbers
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
    numbers: Numbers
    parts: int
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
        self.relations = len(graph.relations)
        self.attachments = len(graph.attachments)
        self._bit = [1 << (owner if owner >= 0 else self.relations - 1 - owner) for owner in graph.owner]
        self._class_of = _equality_classes(graph.equalities)
        self._class_members = _by_class(self._class_of)
        self._owners = [self._parts_of(fields_of(p)) for p in graph.predicates]
        self._read = self._numbers_read()
        self._plans = [self._filtered_leaf(index) for index in range(self.relations)]

    @property
    def everything(self) -> int:
        """The parts of the finished component."""
        return (1 << (self.relations + self.attachments)) - 1

    def attachment_bit(self, index: int) -> int:
        """The part that an attachment is."""
        return 1 << (self.relations + index)

    def links(self) -> list[int]:
        """For each part those that it may be joined or attached to directly."""
        linked = [self._neighbours_of(1 << part) for part in range(self.relations + self.attachments)]
        for index, attachment in enumerate(self._graph.attachments):
            classes = (self._class_members.get(self._class_of.get(n, -1), (n,)) for n in attachment.left_keys)
            bases = self._parts_of(n for choice in classes for n in choice)
            bases |= self._parts_of(attachment.residual_numbers)
            linked[self.relations + index] |= bases
            for part in range(len(linked)):
                if bases >> part & 1:
                    linked[part] |= self.attachment_bit(index)
        return linked

    def leaf(self, index: int) -> Component:
        """One relation, under the predicates that concern it alone."""
        relation = self._graph.relations[index]
        numbers, estimate = self._slim(relation.numbers, self._estimator.estimate(self._plans[index]))
        bit = 1 << index
        return Component(Leaf(index), bit, numbers, estimate, self._leaf_members(index), 0.0, self._neighbours_of(bit))

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

    def attached(self, component: Component, index: int) -> Component | None:
        """The component with an attachment; None while it lacks one of the fields that this reads."""
        attachment = self._graph.attachments[index]
        left_keys = self._left_keys(attachment, component.parts, component.members)
        if left_keys is None:
            return None
        estimate = join_estimate(
            component.estimate,
            self._estimator.estimate(attachment.plan),
            attachment.kind,
            tuple(component.positions[key] for key in left_keys),
            attachment.right_keys,
            _over(_optional(attachment.residual), component.numbers + attachment.right_numbers),
        )
        numbers, estimate = self._slim(component.numbers + attachment.added, estimate)
        predicate = _over(self._predicates_with(index, component.parts), numbers)
        if predicate is not None:
            estimate = estimate.with_rows(estimate.rows * selectivity(predicate, estimate.columns))
        bit = self.attachment_bit(index)
        return Component(
            Attached(component.tree, index),
            component.parts | bit,
            numbers,
            estimate,
            component.members,
            component.cost + estimate.rows,
            component.neighbours | self._neighbours_of(bit),
        )

    def plan(self, tree: Tree) -> tuple[LogicalPlan, Numbers]:
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
            case Attached(input=input_, attachment=index):
                return self._build_attachment(self._build(input_), index)

    def _build_join(self, left: _Built, right: _Built) -> _Built:
        condition = self._condition(left.parts, right.parts, left.members, right.members)
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
        return _Built(plan, numbers, left.parts | right.parts, _merged(left.members, right.members))

    def _build_attachment(self, source: _Built, index: int) -> _Built:
        attachment = self._graph.attachments[index]
        left_keys = self._left_keys(attachment, source.parts, source.members)
        assert left_keys is not None, "the search found the keys"
        plan = Join(
            source.plan,
            attachment.plan,
            attachment.kind,
            tuple(source.numbers.index(key) for key in left_keys),
            attachment.right_keys,
            attachment.null_equal,
            _over(_optional(attachment.residual), source.numbers + attachment.right_numbers),
            attachment.null_aware,
        )
        numbers = source.numbers + attachment.added
        predicate = _over(self._predicates_with(index, source.parts), numbers)
        return _Built(
            plan if predicate is None else Filter(plan, predicate),
            numbers,
            source.parts | self.attachment_bit(index),
            source.members,
        )

    def _filtered_leaf(self, index: int) -> LogicalPlan:
        """The relation under its own predicates, among them equalities inside a class."""
        relation = self._graph.relations[index]
        predicates = [p for p, owners in zip(self._graph.predicates, self._owners) if owners == 1 << index]
        for first, *others in self._leaf_members(index).values():
            predicates += [self._equal(first, other) for other in others]
        positions = _positions(relation.numbers)
        return _filtered(relation.plan, tuple(shift_fields(p, positions.__getitem__) for p in predicates))

    def _equal(self, left: int, right: int, null_equal: bool = False) -> Expression:
        sides = tuple(FieldReference(number, self._graph.fields[number].type) for number in (left, right))
        return Call("is_not_distinct_from" if null_equal else "equal", sides, pa.bool_())

    def _leaf_members(self, index: int) -> dict[int, Numbers]:
        members: dict[int, Numbers] = {}
        for number in self._graph.relations[index].numbers:
            if number in self._class_of:
                class_ = self._class_of[number]
                members[class_] = (*members.get(class_, ()), number)
        return members

    def _neighbours_of(self, bit: int) -> int:
        """The parts with which the part shares an equality class or a pair of keys."""
        linked = 0
        for members in self._class_members.values():
            parts = self._parts_of(members)
            if parts & bit:
                linked |= parts
        for a, b, _ in self._graph.pairs:
            parts = self._bit[a] | self._bit[b]
            if parts & bit:
                linked |= parts
        return linked & ~bit

    def _numbers_read(self) -> frozenset[int]:
        """The fields that some condition of the group reads."""
        read = set(self._class_of)
        for a, b, _ in self._graph.pairs:
            read |= {a, b}
        for predicate in self._graph.predicates:
            read |= fields_of(predicate)
        for attachment in self._graph.attachments:
            read |= {*attachment.left_keys, *attachment.residual_numbers}
        return frozenset(read)

    def _slim(self, numbers: Numbers, estimate: Estimate) -> tuple[Numbers, Estimate]:
        """Only the fields that conditions read."""
        kept = [(n, profile) for n, profile in zip(numbers, estimate.columns, strict=True) if n in self._read]
        return tuple(n for n, _ in kept), Estimate(estimate.rows, tuple(profile for _, profile in kept))

    def _parts_of(self, numbers: Iterable[int]) -> int:
        parts = 0
        for number in numbers:
            parts |= self._bit[number]
        return parts

    def _condition(self, left: int, right: int, left_members: Members, right_members: Members) -> _Condition:
        """What two sets of parts have to agree in, and what can be tested once they are together."""
        shared = [class_ for class_ in right_members if class_ in left_members]
        left_keys = self._together([left_members[class_] for class_ in shared])
        right_keys = self._together([right_members[class_] for class_ in shared])
        keys = [(a, b, False) for a, b in zip(left_keys, right_keys, strict=True)]
        for a, b, null_equal in self._graph.pairs:
            if left & self._bit[a] and right & self._bit[b]:
                keys.append((a, b, null_equal))
            elif left & self._bit[b] and right & self._bit[a]:
                keys.append((b, a, null_equal))
        predicates = tuple(
            p
            for p, owners in zip(self._graph.predicates, self._owners)
            if owners & left and owners & right and not owners & ~(left | right)
        )
        return _Condition(tuple(keys), predicates)

    def _predicates_with(self, index: int, parts: int) -> tuple[Expression, ...]:
        """What can be tested once the attachment is there as well as `parts`."""
        bit = self.attachment_bit(index)
        predicates = [
            p for p, owners in zip(self._graph.predicates, self._owners) if owners & bit and not owners & ~(parts | bit)
        ]
        for a, b, null_equal in self._graph.pairs:
            owners = self._bit[a] | self._bit[b]
            if owners & bit and not owners & ~(parts | bit):
                predicates.append(self._equal(a, b, null_equal))
        return tuple(predicates)

    def _together(self, choices: list[Numbers]) -> list[int]:
        """One field of each choice, of as few relations as possible: the estimate of several keys depends on whether
        they come from one relation."""
        if len(choices) < 2:
            return [choice[0] for choice in choices]
        counts = Counter(bit for choice in choices for bit in {self._bit[number] for number in choice})
        return [max(choice, key=lambda number: counts[self._bit[number]]) for choice in choices]

    def _left_keys(self, attachment: Attachment, parts: int, members: Members) -> Numbers | None:
        """The fields that serve as left keys: of each key's class any member will do."""
        if self._parts_of(attachment.residual_numbers) & ~parts:
            return None
        choices = [members.get(self._class_of.get(number, -1), (number,)) for number in attachment.left_keys]
        if any(not parts & self._bit[choice[0]] for choice in choices):
            return None
        all_relations = (1 << self.relations) - 1
        if not choices and not attachment.residual_numbers and parts & all_relations != all_relations:
            return None  # it does the same to every row: it may wait until the end
        return tuple(self._together(choices))


def _positions(numbers: Numbers) -> dict[int, int]:
    return {number: position for position, number in enumerate(numbers)}


def _merged(left: Members, right: Members) -> Members:
    return {class_: left.get(class_, ()) + right.get(class_, ()) for class_ in {**left, **right}}


def _optional(predicate: Expression | None) -> tuple[Expression, ...]:
    return () if predicate is None else (predicate,)


def _over(predicates: tuple[Expression, ...], numbers: Numbers) -> Expression | None:
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


def _by_class(class_of: Mapping[int, int]) -> dict[int, Numbers]:
    members: dict[int, Numbers] = {}
    for number, class_ in class_of.items():
        members[class_] = (*members.get(class_, ()), number)
    return members
