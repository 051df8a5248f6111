"""From the logical plan to physical operators: build sides, runtime filters, top-N, shared sub-plans, narrow outputs.

The planner and the operators use the same nouns; here the operators are the ones with `Operator` in the name.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import (
    AggregateCall,
    Expression,
    FieldReference,
    JoinKind,
    SortKey,
    conjunction,
    conjuncts,
    fields_of,
)
from pystachio.operators.filter import Filter as FilterOperator
from pystachio.operators.joins.join import Join as JoinOperator
from pystachio.operators.limit import Limit as LimitOperator
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.project import Project as ProjectOperator
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.scans.statistics import from_statistics
from pystachio.operators.sort import Sort as SortOperator
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll as UnionAllOperator
from pystachio.operators.values import Values as ValuesOperator
from pystachio.planner.cardinality import Estimator
from pystachio.planner.expression_text import call_text, expression_text, shortened
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
from pystachio.planner.pushdown import (
    Needed,
    moved,
    moved_call,
    moved_keys,
    needed_of_aggregate,
    needed_of_join,
)
from pystachio.planner.runtime_filters import (
    Side,
    WantedFilter,
    filtered_by_join,
    filtering_keys,
    share_left,
    through_aggregate,
    through_join,
    through_project,
)
from pystachio.planner.sharing import distinct_reads, shared_plans

_LARGEST_TOP_N = 100_000
"""More rows than this are sorted as a whole: a top-N keeps all its rows at hand."""

_SMALLEST_FILTERED_SCAN = 20_000
"""A scan of fewer rows is done before a runtime filter would arrive."""


def plan(query: Query, tables: Mapping[str, Table], estimator: Estimator, names: tuple[str, ...]) -> PhysicalPlan:
    """The operators that run `query`, whose columns are called `names`; runtime filters are numbered from 0."""
    shared = shared_plans(query, estimator)
    scanned = Counter(read.table for read in distinct_reads(query))
    lowering = _Lowering(tables, estimator, shared, {}, scanned)
    scalars, root = lowering.query(query)
    if shared:
        # Once more, now that it is known what all consumers of each shared sub-plan need.
        lowering = _Lowering(tables, estimator, shared, lowering.needed, scanned)
        scalars, root = lowering.query(query)
    return PhysicalPlan(root, scalars, names, lowering.expected_rows)


def choose_build(join: Join, left: Estimate, right: Estimate) -> Side:
    """The smaller side. An outer, semi or anti join that builds its preserved side puts rows out only at its end, so
    there the left side must be clearly smaller."""
    factor = 1.0 if join.kind is JoinKind.INNER else 2.0
    return "left" if left.rows * factor < right.rows else "right"


@dataclass(frozen=True, slots=True)
class _Lowered:
    """`positions[p]`: where the operator puts out the logical plan's field p. Only needed fields are in it. `filtered`:
    slots of runtime filters that scans below have taken and whose other rows are not put out."""

    operator: Operator
    positions: Mapping[int, int]
    filtered: frozenset[int] = frozenset()


class _Lowering:
    def __init__(
        self,
        tables: Mapping[str, Table],
        estimator: Estimator,
        consumers: Mapping[int, int],
        needed: Mapping[int, Needed],
        scanned: Mapping[str, int],
    ) -> None:
        """`consumers` of shared sub-plans, and which of their fields those have `needed` (else all), both by `id`;
        how often each table is `scanned`."""
        self._tables = tables
        self._estimator = estimator
        self._consumers = consumers
        self._spooled = needed
        self._scanned = scanned
        self.needed: dict[int, Needed] = {}
        """What consumers of shared sub-plans have asked for so far."""
        self._lowered: dict[int, LogicalPlan] = {}
        """What was lowered to an operator, by the operator's `id`."""
        self._spools: dict[int, _Lowered] = {}
        self._slots = itertools.count()
        self._used_slots: set[int] = set()

    def query(self, query: Query) -> tuple[tuple[Operator, ...], Operator]:
        """The scalars and the root."""
        scalars = tuple(self.exact(scalar) for scalar in query.scalars)
        return scalars, self.exact(query.root)

    def expected_rows(self, operator: Operator) -> float | None:
        """`PhysicalPlan.expected_rows`."""
        plan = self._lowered.get(id(operator))
        return None if plan is None else self._estimator.rows(plan)

    def exact(self, plan: LogicalPlan) -> Operator:
        everything = range(len(plan.schema))
        return _exact(self.lower(plan, frozenset(everything), ()), everything, plan.schema)

    def lower(self, plan: LogicalPlan, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        """Operators that put out at least the `needed` fields; `filters` may be applied or not."""
        lowered = self._lower_once(plan, needed, filters)
        self._lowered[id(lowered.operator)] = plan
        return lowered

    def _lower_once(self, plan: LogicalPlan, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        consumers = self._consumers.get(id(plan))
        if consumers is None:
            return self._lower(plan, needed, filters)
        self.needed[id(plan)] = self.needed.get(id(plan), frozenset()) | needed
        spooled = self._spools.get(id(plan))
        if spooled is None:
            source = self._lower(plan, self._spooled.get(id(plan), frozenset(range(len(plan.schema)))), ())
            spooled = _Lowered(Spool(source.operator, consumers), source.positions)
            self._spools[id(plan)] = spooled
        return spooled

    def _lower(self, plan: LogicalPlan, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        match plan:
            case Read():
                return self._read(plan, needed, filters)
            case Values():
                rows = tuple(tuple(row[p] for p in sorted(needed)) for row in plan.rows)
                return _Lowered(ValuesOperator(rows, tuple(plan.schema[p] for p in sorted(needed))), _places(needed))
            case Filter():
                return self._filter(plan, needed, filters)
            case Project():
                return self._project(plan, needed, filters)
            case Join():
                return self._join(plan, needed, filters)
            case Aggregate():
                return self._aggregate(plan, filters)
            case Sort():
                source = self.lower(plan.input, needed | {key.index for key in plan.keys}, filters)
                return replace(source, operator=SortOperator(source.operator, moved_keys(plan.keys, source.positions)))
            case Limit():
                return self._limit(plan, needed)
            case UnionAll():
                kept = sorted(needed)
                schema = tuple(plan.schema[p] for p in kept)
                lowered = [self.lower(part, needed, filters) for part in plan.inputs]
                parts = tuple(_exact(part, kept, schema) for part in lowered)
                filtered = frozenset.intersection(*(part.filtered for part in lowered))
                return _Lowered(UnionAllOperator(parts, schema), _places(needed), filtered)

    def _read(self, read: Read, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        if self._estimator.table_rows(read.table) < _SMALLEST_FILTERED_SCAN:
            filters = ()
        tested = frozenset[int]() if read.predicate is None else fields_of(read.predicate)
        columns = _places(needed | tested | {wanted.field for wanted in filters})
        self._used_slots.update(wanted.slot for wanted in filters)
        scan = Scan(
            self._tables[read.table],
            columns=tuple(read.columns[p] for p in columns),
            predicate=None if read.predicate is None else moved(read.predicate, columns),
            output=tuple(columns[p] for p in sorted(needed)),
            filters=tuple(ScanFilter(wanted.slot, columns[wanted.field], wanted.share) for wanted in filters),
            reads_early=self._scanned[read.table] == 1,
        )
        return _Lowered(scan, _places(needed), frozenset(wanted.slot for wanted in filters))

    def _filter(self, plan: Filter, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        if isinstance(plan.input, Read) and id(plan.input) not in self._consumers:
            both = conjunction((*conjuncts(plan.input.predicate), *conjuncts(plan.predicate)))
            return self._read(replace(plan.input, predicate=both), needed, filters)
        source = self.lower(plan.input, needed | fields_of(plan.predicate), filters)
        return replace(source, operator=FilterOperator(source.operator, moved(plan.predicate, source.positions)))

    def _project(self, plan: Project, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        """Plain references move no data and need no operator."""
        wanted = {p: plan.expressions[p] for p in sorted(needed)}
        read = frozenset[int]().union(*(fields_of(expression) for expression in wanted.values()))
        source = self.lower(plan.input, read, through_project(plan, filters))
        places = {p: source.positions[e.index] for p, e in wanted.items() if isinstance(e, FieldReference)}
        if len(places) == len(wanted):
            return _Lowered(source.operator, places, source.filtered)
        expressions = tuple(moved(expression, source.positions) for expression in wanted.values())
        names = [field.name for field in source.operator.schema]
        schema = tuple(_named(plan.schema[p], e, names) for p, e in zip(wanted, expressions, strict=True))
        return _Lowered(ProjectOperator(source.operator, expressions, schema), _places(needed), source.filtered)

    def _join(self, plan: Join, needed: Needed, filters: tuple[WantedFilter, ...]) -> _Lowered:
        build = choose_build(plan, self._estimator.estimate(plan.left), self._estimator.estimate(plan.right))
        left_filters, right_filters = through_join(plan, filters)
        left_needed, right_needed = needed_of_join(plan, needed)
        # Which filters the build side takes decides about those that it makes.
        if build == "right":
            right = self.lower(plan.right, right_needed, right_filters)
            own = self._own_filters(plan, build, share_left(right_filters, right.filtered))
            left = self.lower(plan.left, left_needed, (*left_filters, *own.values()))
        else:
            left = self.lower(plan.left, left_needed, left_filters)
            own = self._own_filters(plan, build, share_left(left_filters, left.filtered))
            right = self.lower(plan.right, right_needed, (*right_filters, *own.values()))
        both = _both_sides(plan, left, right)
        put_out = _put_out(plan, both, left, right)
        operator = JoinOperator(
            left.operator,
            right.operator,
            plan.kind,
            left_keys=tuple(left.positions[key] for key in plan.left_keys),
            right_keys=tuple(right.positions[key] for key in plan.right_keys),
            null_equal=plan.null_equal,
            residual=None if plan.residual is None else moved(plan.residual, both),
            null_aware=plan.null_aware,
            build=build,
            output=tuple(put_out[p] for p in sorted(needed)),
            runtime_filters=tuple(self._published(own.get(key)) for key in range(len(plan.left_keys))),
        )
        return _Lowered(operator, _places(needed), filtered_by_join(plan.kind, left.filtered, right.filtered))

    def _own_filters(self, join: Join, build: Side, share: float) -> dict[int, WantedFilter]:
        """What the build side tells the probe side, by the position of the key."""
        keys = join.left_keys if build == "right" else join.right_keys
        passing = filtering_keys(join, build, self._estimator, share)
        return {key: WantedFilter(next(self._slots), keys[key], passes) for key, passes in passing.items()}

    def _published(self, wanted: WantedFilter | None) -> int | None:
        """A filter that no scan took is not worth making."""
        return wanted.slot if wanted is not None and wanted.slot in self._used_slots else None

    def _aggregate(self, plan: Aggregate, filters: tuple[WantedFilter, ...]) -> _Lowered:
        source = self.lower(plan.input, needed_of_aggregate(plan, plan.calls), through_aggregate(plan, filters))
        keys = tuple(source.positions[key] for key in plan.keys)
        calls = tuple(moved_call(call, source.positions) for call in plan.calls)
        names = [field.name for field in source.operator.schema]
        operator = aggregate(
            source.operator,
            keys=keys,
            calls=calls,
            schema=_aggregate_schema(plan, calls, [names[key] for key in keys], names),
            grouping_sets=plan.grouping_sets,
        )
        if isinstance(operator.input, PartialAggregate):
            operator = replace(operator, input=from_statistics(operator.input))
        return _Lowered(operator, {position: position for position in range(len(plan.schema))}, source.filtered)

    def _limit(self, plan: Limit, needed: Needed) -> _Lowered:
        """No filter passes: it would let other rows into the limit."""
        match plan.input:
            case Project() as project if id(project) not in self._consumers:
                below = replace(plan, input=project.input)
                return self._project(replace(project, input=below), needed, ())
            case Sort(input=Project() as project) as sort if self._is_top_n(plan, sort) and self._has_keys(
                project, sort
            ):
                # Only the rows of the answer are worth computing.
                keys = tuple(
                    replace(key, index=cast(FieldReference, project.expressions[key.index]).index) for key in sort.keys
                )
                below = replace(plan, input=Sort(project.input, keys))
                return self._project(replace(project, input=below), needed, ())
            case Sort() as sort if plan.count is not None and self._is_top_n(plan, sort):
                source = self.lower(sort.input, needed | {key.index for key in sort.keys}, ())
                keys = moved_keys(sort.keys, source.positions)
                return replace(source, operator=_top_n(source.operator, keys, plan.count, plan.offset))
            case _:
                source = self.lower(plan.input, needed, ())
                operator = source.operator
                if (
                    isinstance(operator, SortOperator)
                    and plan.count is not None
                    and id(plan.input) not in self._consumers
                ):
                    operator = replace(operator, wanted=plan.offset + plan.count)
                return replace(source, operator=LimitOperator(operator, plan.offset, plan.count))

    def _has_keys(self, project: Project, sort: Sort) -> bool:
        """Whether the sort's keys are there before the projection."""
        expressions = [project.expressions[key.index] for key in sort.keys]
        return id(project) not in self._consumers and all(isinstance(e, FieldReference) for e in expressions)

    def _is_top_n(self, plan: Limit, sort: Sort) -> bool:
        small = plan.count is not None and plan.count + plan.offset <= _LARGEST_TOP_N
        return small and id(sort) not in self._consumers


def _top_n(source: Operator, keys: tuple[SortKey, ...], count: int, offset: int) -> Operator:
    return ScanTopN(source, keys, count, offset) if isinstance(source, Scan) else TopN(source, keys, count, offset)


def _named(field: Field, expression: Expression, names: Sequence[str]) -> Field:
    """A field that the producer gave no name is called by its expression: `explain` shows it."""
    if field.name:
        return field
    return Field(shortened(expression_text(expression, names)), field.type, field.nullable)


def _aggregate_schema(
    plan: Aggregate, calls: Sequence[AggregateCall], keys: Sequence[str], names: Sequence[str]
) -> Schema:
    """Keys are called as they are below, calls, which no producer names, by what they compute."""
    called = [*keys, *(call_text(call, names) for call in calls)]
    named = tuple(Field(name, field.type, field.nullable) for name, field in zip(called, plan.schema, strict=False))
    return named + plan.schema[len(called) :]


def _places(fields: Needed) -> dict[int, int]:
    return {position: place for place, position in enumerate(sorted(fields))}


def _both_sides(plan: Join, left: _Lowered, right: _Lowered) -> dict[int, int]:
    """Where the fields of both logical sides are among the fields of the operators."""
    old_width, new_width = len(plan.left.schema), len(left.operator.schema)
    both = dict(left.positions)
    both.update({old_width + old: new_width + new for old, new in right.positions.items()})
    return both


def _put_out(plan: Join, both: dict[int, int], left: _Lowered, right: _Lowered) -> dict[int, int]:
    """Where the join's own fields are: a mark is behind the fields of both operators."""
    if plan.kind is not JoinKind.MARK:
        return both
    mark = len(left.operator.schema) + len(right.operator.schema)
    return {**left.positions, len(plan.left.schema): mark}


def _exact(lowered: _Lowered, order: Sequence[int], schema: Sequence[Field]) -> Operator:
    """The operator with exactly the logical fields `order`, described by `schema`."""
    positions = [lowered.positions[p] for p in order]
    if positions == list(range(len(lowered.operator.schema))):
        return lowered.operator
    references = tuple(FieldReference(p, f.type) for p, f in zip(positions, schema, strict=True))
    return ProjectOperator(lowered.operator, references, tuple(schema))
