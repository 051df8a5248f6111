"""Parts of a join order: relations that are joined so far, how two such parts join, and the plan of a finished tree.

The search for an order needs only the fields that conditions read, so a component's estimate covers those alone; the
plan is built once, from the tree that won.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pystachio.operators.expressions import Expression, JoinKind, conjunction, shift_fields
from pystachio.planner.cardinality import Estimator
from pystachio.planner.joins.cardinality import join_estimate
from pystachio.planner.joins.graph import JoinGraph, Numbers
from pystachio.planner.joins.links import JoinLinks, Members
from pystachio.planner.logical import Filter, Join, LogicalPlan
from pystachio.planner.profiles import Estimate, Profiles
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


class JoinSpace:
    """All components of one group that a search may ask for."""

    def __init__(self, graph: JoinGraph, estimator: Estimator) -> None:
        self._graph = graph
        self._estimator = estimator
        self.relations = len(graph.relations)
        self.attachments = len(graph.attachments)
        self._links = JoinLinks(graph)
        self._read = self._links.numbers_read()
        self._plans = [self._filtered_leaf(index) for index in range(self.relations)]

    @property
    def everything(self) -> int:
        """The parts of the finished component."""
        return (1 << (self.relations + self.attachments)) - 1

    def attachment_bit(self, index: int) -> int:
        """The part that an attachment is."""
        return self._links.attachment_bit(index)

    def links(self) -> list[int]:
        """For each part those that it may be joined or attached to directly."""
        return self._links.links()

    def leaf(self, index: int) -> Component:
        """One relation, under the predicates that concern it alone."""
        relation = self._graph.relations[index]
        numbers, estimate = self._slim(relation.numbers, self._estimator.estimate(self._plans[index]))
        bit = 1 << index
        return Component(
            Leaf(index), bit, numbers, estimate, self._links.leaf_members(index), 0.0, self._links.neighbours_of(bit)
        )

    def joined(self, left: Component, right: Component) -> Component:
        """Both, with every key and predicate that connects them; a product when there is none."""
        condition = self._links.condition(left.parts, right.parts, left.members, right.members)
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
        left_keys = self._links.left_keys(attachment, component.parts, component.members)
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
        predicate = _over(self._links.predicates_with(index, component.parts), numbers)
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
            component.neighbours | self._links.neighbours_of(bit),
        )

    def plan(self, tree: Tree) -> tuple[LogicalPlan, Numbers]:
        """The plan of a finished tree and the field numbers of its output."""
        built = self._build(tree)
        return _filtered(built.plan, self._links.predicates_of(0)), built.numbers

    def _build(self, tree: Tree) -> _Built:
        match tree:
            case Leaf(relation=index):
                numbers = self._graph.relations[index].numbers
                return _Built(self._plans[index], numbers, 1 << index, self._links.leaf_members(index))
            case Joined(left=left, right=right):
                return self._build_join(self._build(left), self._build(right))
            case Attached(input=input_, attachment=index):
                return self._build_attachment(self._build(input_), index)

    def _build_join(self, left: _Built, right: _Built) -> _Built:
        condition = self._links.condition(left.parts, right.parts, left.members, right.members)
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
        left_keys = self._links.left_keys(attachment, source.parts, source.members)
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
        predicate = _over(self._links.predicates_with(index, source.parts), numbers)
        return _Built(
            plan if predicate is None else Filter(plan, predicate),
            numbers,
            source.parts | self.attachment_bit(index),
            source.members,
        )

    def _filtered_leaf(self, index: int) -> LogicalPlan:
        """The relation under its own predicates, among them equalities inside a class."""
        relation = self._graph.relations[index]
        predicates = list(self._links.predicates_of(1 << index))
        for first, *others in self._links.leaf_members(index).values():
            predicates += [self._links.equal(first, other) for other in others]
        positions = _positions(relation.numbers)
        return _filtered(relation.plan, tuple(shift_fields(p, positions.__getitem__) for p in predicates))

    def _slim(self, numbers: Numbers, estimate: Estimate) -> tuple[Numbers, Estimate]:
        """Only the fields that conditions read."""
        kept = [position for position, number in enumerate(numbers) if number in self._read]
        columns = estimate.columns
        slim = Profiles(len(kept), lambda index: columns[kept[index]], (columns,))
        return tuple([numbers[position] for position in kept]), Estimate(estimate.rows, slim)


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
