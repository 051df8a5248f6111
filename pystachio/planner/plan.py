"""The planner's one entrance: a statement becomes a physical plan.

SQL -> Substrait bytes (DataFusion) -> logical plan -> rewrites -> join order -> column pruning -> physical operators.
Nothing here reads table data but the samples that predicates are tried on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import Table
from pystachio.planner import physical
from pystachio.planner.cardinality import Estimator, TableFacts
from pystachio.planner.catalog import CatalogSnapshot
from pystachio.planner.joins.order import reorder
from pystachio.planner.kept_plans import KeptPlans, named_tables, plan_key
from pystachio.planner.logical import Query
from pystachio.planner.pushdown import prune_columns
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sharing import columns_to_sample, tables_of, unify, widen_reads
from pystachio.planner.sql.constant_calls import constant_call
from pystachio.planner.sql.statement import SqlPlanner, parameter
from pystachio.planner.statistics import StatisticsCache
from pystachio.planner.substrait.plan import read_plan

_CACHED_PLANS = 256


@dataclass(frozen=True, slots=True)
class _CacheKey:
    """A statement over known tables. `parameters` are written as Arrow does, with their types: 1, 1.0 and true are
    equal values but do not make the same plan, and different values may look alike."""

    statement: str | bytes
    parameters: tuple[bytes, ...]
    join_reordering: bool

    @staticmethod
    def of(statement: str | bytes, scalars: Sequence[pa.Scalar], join_reordering: bool) -> _CacheKey:
        return _CacheKey(statement, tuple(map(_written, scalars)), join_reordering)


def _written(scalar: pa.Scalar) -> bytes:
    batch = pa.record_batch([pa.array([scalar], scalar.type)], [""])
    return bytes(batch.schema.serialize()) + bytes(batch.serialize())


class _Generation:
    """What is kept for one version of the catalog: a new one drops the old plans with the footers they hold."""

    def __init__(self, catalog: CatalogSnapshot) -> None:
        self.version = catalog.version
        self.schemas = {name: table.schema for name, table in catalog.tables.items()}
        self.plans: OrderedDict[_CacheKey, tuple[PhysicalPlan, frozenset[str], frozenset[str]]] = OrderedDict()
        """With the names of the tables that each reads, and of those that its statement may name."""

    @cached_property
    def sql(self) -> SqlPlanner:
        return SqlPlanner(self.schemas)


class Planner:
    """Plans statements for one session and keeps the latest plans. Safe for several threads; blocking."""

    def __init__(
        self, statistics: StatisticsCache, kept: KeptPlans | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """`kept` has plans of other sessions, and keeps those of this one for others. `clock`: ns since 1970 UTC, asked
        once for a statement."""
        self._clock = clock
        self._statistics = statistics
        self._kept = kept
        self._lock = threading.Lock()
        self._generation: _Generation | None = None

    def plan(
        self,
        statement: str | bytes,
        catalog: CatalogSnapshot,
        *,
        parameters: tuple[Any, ...] = (),
        join_reordering: bool = True,
    ) -> PhysicalPlan:
        """The plan of an SQL query, or of a Substrait plan's bytes.

        Raises SqlSyntaxError, NotFound (with the nearest name), Unsupported, InvalidRequest, and why a table that it
        reads cannot be read.
        """
        generation = self._of(catalog)
        scalars = tuple(map(parameter, parameters))
        key = _CacheKey.of(statement, scalars, join_reordering)
        with self._lock:
            if key in generation.plans:
                generation.plans.move_to_end(key)
                made, tables, _ = generation.plans[key]
                catalog.require_readable(tables)
                return made
        kept_key = None if self._kept is None else plan_key(statement, key.parameters, join_reordering, catalog.tables)
        if self._kept is not None and kept_key is not None:
            found = self._kept.find(kept_key, catalog.tables)
            if found is not None:
                made, tables = found
                catalog.require_readable(tables)
                return self._remembered(generation, key, made, tables)
        query, names, cacheable = _read(statement, generation, scalars, self._clock)
        tables = tables_of(query)
        catalog.require_readable(tables)
        facts = self._statistics.facts(catalog.tables)
        made = optimise(
            query, names, catalog.tables, facts, join_reordering=join_reordering, expect_predicates=facts.expect
        )
        if not cacheable:
            return replace(made, sample=self._statistics.sample)
        if self._kept is not None and kept_key is not None:
            self._kept.offer(kept_key, made, {name: catalog.tables[name] for name in tables})
        return self._remembered(generation, key, made, tables)

    def _remembered(
        self, generation: _Generation, key: _CacheKey, plan: PhysicalPlan, tables: frozenset[str]
    ) -> PhysicalPlan:
        """The plan, with what runs may ask about its tables."""
        made = replace(plan, sample=self._statistics.sample)
        named = named_tables(key.statement, generation.schemas)
        with self._lock:
            generation.plans[key] = made, tables, named
            if len(generation.plans) > _CACHED_PLANS:
                generation.plans.popitem(last=False)
        return made

    def tables_known(
        self, statement: str | bytes, *, parameters: tuple[Any, ...] = (), join_reordering: bool = True
    ) -> frozenset[str] | None:
        """The tables that the statement reads or may name, as its plan that is kept says; None where there is none.

        Raises InvalidRequest for values that are no parameters.
        """
        key = _CacheKey.of(statement, tuple(map(parameter, parameters)), join_reordering)
        with self._lock:
            plans = {} if self._generation is None else self._generation.plans
            kept = plans.get(key)
        return None if kept is None else kept[1] | kept[2]

    def _of(self, catalog: CatalogSnapshot) -> _Generation:
        with self._lock:
            if self._generation is None or self._generation.version != catalog.version:
                self._generation = _Generation(catalog)
            return self._generation


def _read(
    statement: str | bytes, generation: _Generation, parameters: tuple[Any, ...], clock: Callable[[], int]
) -> tuple[Query, tuple[str, ...], bool]:
    """The logical plan, the names of its columns, and whether it is the same whenever it is made."""
    if isinstance(statement, bytes):
        return *read_plan(statement, generation.schemas), True
    planned = generation.sql.plan(statement, parameters)
    query, names = read_plan(
        planned.substrait,
        generation.schemas,
        planned.null_aware,
        planned.decimals,
        moment=clock(),
        constant_call=constant_call,
    )
    return query, names, planned.cacheable


def optimise(
    query: Query,
    names: tuple[str, ...],
    tables: Mapping[str, Table],
    facts: TableFacts,
    *,
    join_reordering: bool = True,
    expect_predicates: Callable[[Iterable[tuple[str, int]]], None] | None = None,
) -> PhysicalPlan:
    """The operators that run a logical plan; `names` are those of the result's columns.

    `expect_predicates` is told the columns (table, position) whose predicates `facts` will be asked about.
    """
    estimator = Estimator(facts)
    rewritten = widen_reads(simplify(query))
    if expect_predicates is not None:
        expect_predicates(columns_to_sample(rewritten))
    if join_reordering:
        rewritten = reorder(rewritten, estimator)
    return physical.plan(prune_columns(unify(rewritten), estimator), tables, estimator, names)
