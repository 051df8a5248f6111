"""Column pruning: every operator carries only what something above it reads.

A pruned plan may put out more fields than were asked for (those that it reads itself); whoever is above knows where
each field went. Only at the root, in the inputs of a union and in scalar sub-plans is the layout exact again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pystachio.operators.expressions import (
    AggregateCall,
    Expression,
    FieldReference,
    JoinKind,
    SortKey,
    fields_of,
    shift_fields,
)
from pystachio.planner.cardinality import Estimator
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
from pystachio.planner.sharing import shared_plans

Needed = frozenset[int]


@dataclass(frozen=True, slots=True)
class Pruned:
    """`positions[p]` is where the field that was at position p is now, for every field still there."""

    plan: LogicalPlan
    positions: Mapping[int, int]


def prune_columns(query: Query, estimator: Estimator) -> Query:
    """The same query without the fields that nothing reads. A shared sub-plan keeps what any of its consumers reads."""
    pruning = _Pruning(query, estimator)
    return Query(pruning.exact(query.root), tuple(pruning.exact(scalar) for scalar in query.scalars))


def exact_layout(pruned: Pruned, order: Iterable[int], original: LogicalPlan) -> LogicalPlan:
    """The plan with exactly the fields that were at the positions `order` of `original`, in that order."""
    wanted = tuple(order)
    positions = [pruned.positions[position] for position in wanted]
    if positions == list(range(len(pruned.plan.schema))):
        return pruned.plan
    schema = tuple(original.schema[position] for position in wanted)
    references = tuple(FieldReference(p, f.type) for p, f in zip(positions, schema, strict=True))
    return Project(pruned.plan, references, schema)


def needed_of_join(join: Join, needed: Needed) -> tuple[Needed, Needed]:
    """What a join must get from its left and its right side to put out `needed`."""
    width = len(join.left.schema)
    read = needed | (frozenset() if join.residual is None else fields_of(join.residual))
    left = frozenset(p for p in read if p < width) | frozenset(join.left_keys)
    right = frozenset(join.right_keys)
    if join.kind in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.MARK):
        read = frozenset() if join.residual is None else fields_of(join.residual)
    return left, right | frozenset(p - width for p in read if p >= width)


def needed_of_aggregate(aggregate: Aggregate, calls: Iterable[AggregateCall]) -> Needed:
    """What an aggregate reads for its keys and `calls`."""
    read = set(aggregate.keys)
    for call in calls:
        read.update(call.arguments)
        if call.filter is not None:
            read.add(call.filter)
    return frozenset(read)


def moved(expression: Expression, positions: Mapping[int, int]) -> Expression:
    """The expression after its fields moved."""
    return shift_fields(expression, positions.__getitem__)


def moved_call(call: AggregateCall, positions: Mapping[int, int]) -> AggregateCall:
    """The aggregate call after its fields moved."""
    return replace(
        call,
        arguments=tuple(positions[argument] for argument in call.arguments),
        filter=None if call.filter is None else positions[call.filter],
    )


def moved_keys(keys: Iterable[SortKey], positions: Mapping[int, int]) -> tuple[SortKey, ...]:
    """The sort keys after their fields moved."""
    return tuple(replace(key, index=positions[key.index]) for key in keys)


class _Pruning:
    def __init__(self, query: Query, estimator: Estimator) -> None:
        self._shared = shared_plans(query, estimator)
        self._wanted: dict[int, Needed] = {}
        self._finished: dict[int, Pruned] = {}
        if self._shared:
            self._gather(query)

    def exact(self, plan: LogicalPlan) -> LogicalPlan:
        everything = range(len(plan.schema))
        return exact_layout(self.prune(plan, frozenset(everything)), everything, plan)

    def prune(self, plan: LogicalPlan, needed: Needed) -> Pruned:
        if id(plan) not in self._shared:
            return self._prune(plan, needed)
        finished = self._finished.get(id(plan))
        if finished is None:
            finished = self._prune(plan, self._wanted[id(plan)])
            self._finished[id(plan)] = finished
        return finished

    def _gather(self, query: Query) -> None:
        """Collect what all consumers of each shared sub-plan need, until nothing is added."""
        before: dict[int, Needed] | None = None
        while before != self._wanted:
            before = dict(self._wanted)
            for top in (query.root, *query.scalars):
                self._want(top, frozenset(range(len(top.schema))))

    def _want(self, plan: LogicalPlan, needed: Needed) -> None:
        if id(plan) in self._shared:
            needed = self._wanted.get(id(plan), frozenset()) | needed
            self._wanted[id(plan)] = needed
        for part, wanted in self._requirements(plan, needed):
            self._want(part, wanted)

    def _requirements(self, plan: LogicalPlan, needed: Needed) -> list[tuple[LogicalPlan, Needed]]:
        """What `plan` needs of its inputs to put out `needed`."""
        match plan:
            case Read() | Values():
                return []
            case Filter(input=input_, predicate=predicate):
                return [(input_, needed | fields_of(predicate))]
            case Project(input=input_, expressions=expressions):
                return [(input_, frozenset[int]().union(*(fields_of(expressions[p]) for p in needed)))]
            case Join(left=left, right=right):
                left_needed, right_needed = needed_of_join(plan, needed)
                return [(left, left_needed), (right, right_needed)]
            case Aggregate(input=input_, keys=keys, calls=calls):
                kept = [call for position, call in enumerate(calls, len(keys)) if position in needed]
                return [(input_, needed_of_aggregate(plan, kept))]
            case Sort(input=input_, keys=sort_keys):
                return [(input_, needed | {key.index for key in sort_keys})]
            case Limit(input=input_):
                return [(input_, needed)]
            case UnionAll(inputs=inputs):
                return [(part, needed) for part in inputs]

    def _prune(self, plan: LogicalPlan, needed: Needed) -> Pruned:
        inputs = [self.prune(part, wanted) for part, wanted in self._requirements(plan, needed)]
        match plan, inputs:
            case Read(), _:
                return _pruned_read(plan, needed)
            case Values(), _:
                kept = sorted(needed)
                rows = tuple(tuple(row[p] for p in kept) for row in plan.rows)
                return Pruned(Values(rows, tuple(plan.schema[p] for p in kept)), _places(kept))
            case Filter(), [source]:
                return Pruned(Filter(source.plan, moved(plan.predicate, source.positions)), source.positions)
            case Project(), [source]:
                return _pruned_project(plan, source, sorted(needed))
            case Join(), [left, right]:
                return _pruned_join(plan, left, right)
            case Aggregate(), [source]:
                return _pruned_aggregate(plan, source, needed)
            case Sort(), [source]:
                return Pruned(Sort(source.plan, moved_keys(plan.keys, source.positions)), source.positions)
            case Limit(), [source]:
                return Pruned(replace(plan, input=source.plan), source.positions)
            case UnionAll(), _:
                kept = sorted(needed)
                parts = (exact_layout(new, kept, old) for new, old in zip(inputs, plan.inputs, strict=True))
                return Pruned(UnionAll(tuple(parts), tuple(plan.schema[p] for p in kept)), _places(kept))
            case _:
                raise AssertionError(f"inputs do not fit: {type(plan).__name__}")


def _places(kept: list[int]) -> dict[int, int]:
    return {position: place for place, position in enumerate(kept)}


def _pruned_read(read: Read, needed: Needed) -> Pruned:
    kept = sorted(needed | (frozenset() if read.predicate is None else fields_of(read.predicate)))
    positions = _places(kept)
    return Pruned(
        Read(
            read.table,
            tuple(read.columns[p] for p in kept),
            tuple(read.schema[p] for p in kept),
            None if read.predicate is None else moved(read.predicate, positions),
        ),
        positions,
    )


def _pruned_project(plan: Project, source: Pruned, kept: list[int]) -> Pruned:
    """Plain references need no projection: the fields are where the input has them."""
    expressions = [plan.expressions[p] for p in kept]
    if all(isinstance(e, FieldReference) for e in expressions):
        places = {
            p: source.positions[e.index]
            for p, e in zip(kept, expressions, strict=True)
            if isinstance(e, FieldReference)
        }
        return Pruned(source.plan, places)
    schema = tuple(plan.schema[p] for p in kept)
    return Pruned(Project(source.plan, tuple(moved(e, source.positions) for e in expressions), schema), _places(kept))


def _pruned_join(plan: Join, left: Pruned, right: Pruned) -> Pruned:
    old_width, new_width = len(plan.left.schema), len(left.plan.schema)
    both = dict(left.positions)
    both.update({old_width + old: new_width + new for old, new in right.positions.items()})
    join = replace(
        plan,
        left=left.plan,
        right=right.plan,
        left_keys=tuple(left.positions[key] for key in plan.left_keys),
        right_keys=tuple(right.positions[key] for key in plan.right_keys),
        residual=None if plan.residual is None else moved(plan.residual, both),
    )
    match plan.kind:
        case JoinKind.SEMI | JoinKind.ANTI:
            return Pruned(join, left.positions)
        case JoinKind.MARK:
            return Pruned(join, {**left.positions, old_width: new_width})
        case _:
            return Pruned(join, both)


def _pruned_aggregate(plan: Aggregate, source: Pruned, needed: Needed) -> Pruned:
    """Keys decide what the rows are and stay; so does the index of the grouping set."""
    first_call = len(plan.keys)
    after_calls = first_call + len(plan.calls)
    kept_calls = [p for p in range(first_call, after_calls) if p in needed]
    kept = [*range(first_call), *kept_calls, *range(after_calls, len(plan.schema))]
    aggregate = replace(
        plan,
        input=source.plan,
        keys=tuple(source.positions[key] for key in plan.keys),
        calls=tuple(moved_call(plan.calls[p - first_call], source.positions) for p in kept_calls),
        schema=tuple(plan.schema[p] for p in kept),
    )
    return Pruned(aggregate, _places(kept))
