"""How many rows a logical plan puts out, estimated.

Base tables come from statistics (rows, ranges, distinct counts) and predicates over them from a sample; above them the
classic assumptions of System R (Selinger et al. 1979) hold: independent predicates, uniform values, and keys of the
smaller domain contained in the larger one. The same estimates order joins, choose build sides and place runtime
filters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

from pystachio.operators.column import Bounds
from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    InList,
    Literal,
    conjunction,
    conjuncts,
    fields_of,
    shift_fields,
)
from pystachio.planner.joins.cardinality import join_estimate
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
from pystachio.planner.profiles import ColumnProfile, Estimate, Profiles, Seen, groups, plausible
from pystachio.planner.selectivity import selectivity

_UNKNOWN_DISTINCT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column of a base table: distinct values (None: unknown), fraction of NULLs, range (integer-like types only)."""

    distinct: float | None = None
    nulls: float = 0.0
    bounds: Bounds | None = None


class TableFacts(Protocol):
    """What the estimator asks about registered tables."""

    def rows(self, table: str) -> int: ...

    def column(self, table: str, column: int) -> ColumnFacts: ...

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        """The table's rows for which `predicate` over `columns` is true, as a sample shows them. None: no sample, or
        the predicate cannot be evaluated yet."""
        ...

    def everything(self, table: str) -> Matching | None:
        """All rows of the table's sample, likewise."""
        ...


class Matching(Protocol):
    """What a predicate leaves of a table."""

    @property
    def share(self) -> float:
        """Of the rows; above 0 also when no row of the sample matched."""
        ...

    def seen(self, column: int) -> Seen | None:
        """An integer-like column's values; None where the sample has too few to tell."""
        ...


class Estimator:
    """Estimates of one query's sub-plans, remembered by the identity of the plan object."""

    def __init__(self, facts: TableFacts) -> None:
        self._facts = facts
        self._known: dict[int, tuple[LogicalPlan, Estimate]] = {}
        self._sources = itertools.count()
        self._measured: dict[tuple[str, Expression], Matching | None] = {}

    def rows(self, plan: LogicalPlan) -> float:
        """Expected rows."""
        return self.estimate(plan).rows

    def table_rows(self, table: str) -> int:
        """Rows of the registered table."""
        return self._facts.rows(table)

    def estimate(self, plan: LogicalPlan) -> Estimate:
        """Rows and column profiles of the plan's output."""
        known = self._known.get(id(plan))
        if known is None:
            known = (plan, self._derive(plan))  # the plan is kept so that its id stays its own
            self._known[id(plan)] = known
        return known[1]

    def remember(self, plan: LogicalPlan, estimate: Estimate) -> None:
        """Use `estimate` for `plan` (a caller that built both together saves the derivation)."""
        self._known[id(plan)] = (plan, estimate)

    def _derive(self, plan: LogicalPlan) -> Estimate:
        match plan:
            case Read():
                return self._read(plan, plan.predicate)
            case Filter(input=Read() as read):
                return self._read(read, conjunction((*conjuncts(read.predicate), *conjuncts(plan.predicate))))
            case Filter(input=input_):
                source = self.estimate(input_)
                return source.with_rows(source.rows * selectivity(plan.predicate, source.columns))
            case Values():
                return self._values(plan)
            case Project():
                return self._project(plan)
            case Join():
                return join_estimate(
                    self.estimate(plan.left),
                    self.estimate(plan.right),
                    plan.kind,
                    plan.left_keys,
                    plan.right_keys,
                    plan.residual,
                )
            case Aggregate():
                return self._aggregate(plan)
            case Sort(input=input_):
                return self.estimate(input_)
            case Limit(input=input_, offset=offset, count=count):
                source = self.estimate(input_)
                left = source.rows - offset
                return source.with_rows(left if count is None else min(left, count))
            case UnionAll():
                return self._union(plan)
            case _:
                assert_never(plan)

    def _read(self, read: Read, predicate: Expression | None) -> Estimate:
        total = max(1.0, float(self.table_rows(read.table)))
        source = next(self._sources)
        columns = Profiles(
            len(read.columns), lambda index: self._base_profile(read.table, read.columns[index], source, total)
        )
        base = Estimate(total, columns)
        if predicate is None:
            return Estimate(total, Profiles(len(columns), partial(self._with_sample, read, columns)))
        share = self._matching(read, predicate, columns)
        return self._narrowed(read, predicate, columns, base.with_rows(total * share))

    def _with_sample(self, read: Read, columns: Sequence[ColumnProfile], index: int) -> ColumnProfile:
        profile = columns[index]
        if profile.bounds is None:
            return profile
        return profile._replace(sampled=partial(self._all_seen, read.table, read.columns[index]))

    def _all_seen(self, table: str, column: int) -> Seen | None:
        found = self._facts.everything(table)
        return None if found is None else found.seen(column)

    def _base_profile(self, table: str, position: int, source: int, rows: float) -> ColumnProfile:
        facts = self._facts.column(table, position)
        distinct = rows * _UNKNOWN_DISTINCT_SHARE if facts.distinct is None else facts.distinct
        if facts.bounds is not None:
            distinct = min(distinct, facts.bounds[1] - facts.bounds[0] + 1.0)
        distinct = min(max(1.0, distinct), rows)
        return ColumnProfile(distinct, distinct, source, rows, facts.nulls, facts.bounds)

    def _matching(self, read: Read, predicate: Expression, columns: Sequence[ColumnProfile]) -> float:
        measured = self._measure(read, predicate)
        if measured is not None:
            return measured.share
        parts = conjuncts(predicate)
        if len(parts) == 1:
            return selectivity(predicate, columns)
        return math.prod(self._matching(read, part, columns) for part in parts)

    def _measure(self, read: Read, predicate: Expression) -> Matching | None:
        """Each predicate is tried once per table, wherever its columns are in a plan."""
        over_table = shift_fields(predicate, read.columns.__getitem__)
        key = read.table, over_table
        if key not in self._measured:
            used = tuple(sorted(fields_of(over_table)))
            self._measured[key] = self._facts.matching(read.table, used, shift_fields(over_table, used.index))
        return self._measured[key]

    def _narrowed(self, read: Read, predicate: Expression, base: Sequence[ColumnProfile], kept: Estimate) -> Estimate:
        """A predicate on one column alone takes values out of its domain, not only rows; and it may leave those of
        another that the sample shows."""
        measured = self._measure(read, predicate)
        of_column: dict[int, list[Expression]] = {}
        for part in conjuncts(predicate):
            fields = fields_of(part)
            if len(fields) == 1:
                of_column.setdefault(min(fields), []).append(part)

        def work_out(index: int) -> ColumnProfile:
            profile = kept.columns[index]
            if profile.bounds is not None and measured is not None and index not in of_column:
                seen = partial(measured.seen, read.columns[index])
                return profile._replace(kept=seen, sampled=seen)
            for part in of_column.get(index, ()):
                values = _pinned(part)
                if math.isinf(values) and profile.bounds is not None:
                    values = profile.domain * self._matching(read, part, base)
                values = max(1.0, min(values, profile.domain))
                profile = profile._replace(
                    distinct=min(profile.distinct, values),
                    narrowing=min(profile.narrowing, values / profile.domain),
                )
            return profile

        return Estimate(kept.rows, Profiles(len(kept.columns), work_out, (kept.columns,)))

    def _values(self, plan: Values) -> Estimate:
        rows = plausible(len(plan.rows))
        source = next(self._sources)
        profiles = []
        for position in range(len(plan.schema)):
            distinct = max(1.0, float(len({row[position] for row in plan.rows})))
            profiles.append(ColumnProfile(distinct, distinct, source, max(1.0, rows)))
        return Estimate(rows, tuple(profiles))

    def _project(self, plan: Project) -> Estimate:
        source, expressions = self.estimate(plan.input), plan.expressions
        columns = Profiles(
            len(expressions), lambda index: self._computed(expressions[index], source), (source.columns,)
        )
        return Estimate(source.rows, columns)

    def _computed(self, expression: Expression, source: Estimate) -> ColumnProfile:
        if isinstance(expression, FieldReference):
            return source.columns[expression.index]
        used = [source.columns[index] for index in fields_of(expression)]
        distinct = min(groups(used, source.rows), _range_of_function(expression, source))
        nulls = max((column.nulls for column in used), default=0.0)
        return ColumnProfile(distinct, distinct, next(self._sources), max(1.0, source.rows), nulls)

    def _aggregate(self, plan: Aggregate) -> Estimate:
        source = self.estimate(plan.input)
        keys = [source.columns[key] for key in plan.keys]
        sets = plan.grouping_sets or (tuple(range(len(keys))),)
        rows = sum(groups([keys[position] for position in chosen], source.rows) if chosen else 1.0 for chosen in sets)
        number = next(self._sources)
        source_rows = max(rows, keys[0].domain) if len(keys) == 1 else max(1.0, rows)
        profiles = [k._replace(distinct=min(k.distinct, rows), source=number, source_rows=source_rows) for k in keys]
        computed = ColumnProfile(max(1.0, rows / 2), max(1.0, rows / 2), number, source_rows)
        profiles += [computed] * (len(plan.schema) - len(keys))
        return Estimate(rows, tuple(profiles))

    def _union(self, plan: UnionAll) -> Estimate:
        parts = [self.estimate(part) for part in plan.inputs]
        rows = plausible(sum(part.rows for part in parts))
        number = next(self._sources)

        def work_out(index: int) -> ColumnProfile:
            same = [part.columns[index] for part in parts]
            domain = max(column.domain for column in same)
            distinct = min(rows, max(column.distinct for column in same))
            nulls = sum(column.nulls * part.rows for column, part in zip(same, parts, strict=True)) / rows
            return ColumnProfile(distinct, max(domain, distinct), number, max(1.0, rows), nulls)

        return Estimate(rows, Profiles(len(plan.schema), work_out, [part.columns for part in parts]))


def _pinned(predicate: Expression) -> float:
    """How many values of its only column a predicate can leave: 1 for an equality, n for an IN list."""
    match predicate:
        case Call(function="equal", arguments=(FieldReference(), _) | (_, FieldReference())):
            return 1.0
        case InList(operand=FieldReference(), options=options):
            return float(len(options))
        case _:
            return math.inf


def _range_of_function(expression: Expression, source: Estimate) -> float:
    """Distinct results of a function whose range is small by nature."""
    match expression:
        case Literal():
            return 1.0
        case Call(function="date_part", arguments=(Literal(value="year"), FieldReference(index=index))):
            bounds = source.columns[index].bounds
            return math.inf if bounds is None else (bounds[1] - bounds[0]) / 365 + 1
        case Call(function="date_part"):
            return 366.0
        case Call(function="substring", arguments=(_, _, Literal(value=int(length)))):
            return 16.0**length
        case _:
            return math.inf
