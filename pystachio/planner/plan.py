"""The planner's one entrance: a statement becomes a physical plan.

SQL -> Substrait bytes (DataFusion) -> logical plan -> rewrites -> join order -> column pruning -> physical operators.
Nothing here reads table data but the samples that predicates are tried on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import Table
from pystachio.planner import physical
from pystachio.planner.cardinality import Estimator, TableFacts
from pystachio.planner.catalog import CatalogSnapshot
from pystachio.planner.join_order import reorder
from pystachio.planner.logical import Query
from pystachio.planner.pushdown import prune_columns
from pystachio.planner.rewrite import simplify
from pystachio.planner.sharing import unify, widen_reads
from pystachio.planner.sql import SqlPlanner
from pystachio.planner.statistics import StatisticsCache
from pystachio.planner.substrait import read_plan

_CACHED_PLANS = 256


@dataclass(frozen=True, slots=True)
class _CacheKey:
    """What a plan depends on. The catalog's version changes with every file version. `parameters` are written with
    their types: 1, 1.0 and true are equal values but not the same plan."""

    statement: str | bytes
    parameters: tuple[tuple[str, str], ...]
    catalog_version: int
    join_reordering: bool


class Planner:
    """Plans statements for one session and keeps the latest plans. Safe for several threads; blocking."""

    def __init__(self, statistics: StatisticsCache) -> None:
        self._statistics = statistics
        self._lock = threading.Lock()
        self._plans: OrderedDict[_CacheKey, PhysicalPlan] = OrderedDict()
        self._sql: tuple[int, SqlPlanner] | None = None

    def plan(
        self,
        statement: str | bytes,
        catalog: CatalogSnapshot,
        *,
        parameters: tuple[Any, ...] = (),
        join_reordering: bool = True,
    ) -> PhysicalPlan:
        """The plan of an SQL query, or of a Substrait plan's bytes.

        Raises SqlSyntaxError, NotFound (with the nearest name), Unsupported, InvalidRequest.
        """
        written = tuple((type(value).__name__, repr(value)) for value in parameters)
        key = _CacheKey(statement, written, catalog.version, join_reordering)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        query, names, cacheable = self._read(statement, catalog, parameters)
        facts = self._statistics.facts(catalog.tables)
        made = optimise(query, names, catalog.tables, facts, join_reordering=join_reordering)
        if cacheable:
            with self._lock:
                self._plans[key] = made
                if len(self._plans) > _CACHED_PLANS:
                    self._plans.popitem(last=False)
        return made

    def _read(
        self, statement: str | bytes, catalog: CatalogSnapshot, parameters: tuple[Any, ...]
    ) -> tuple[Query, tuple[str, ...], bool]:
        """The logical plan, the names of its columns, and whether it is the same whenever it is made."""
        schemas = {name: table.schema for name, table in catalog.tables.items()}
        if isinstance(statement, bytes):
            return *read_plan(statement, schemas), True
        planned = self._sql_planner(catalog).plan(statement, parameters)
        return *read_plan(planned.substrait, schemas, planned.null_aware), planned.cacheable

    def _sql_planner(self, catalog: CatalogSnapshot) -> SqlPlanner:
        """One is kept: for the catalog's latest version."""
        with self._lock:
            kept = self._sql
        if kept is None or kept[0] != catalog.version:
            kept = catalog.version, SqlPlanner({name: table.schema for name, table in catalog.tables.items()})
            with self._lock:
                self._sql = kept
        return kept[1]


def optimise(
    query: Query,
    names: tuple[str, ...],
    tables: Mapping[str, Table],
    facts: TableFacts,
    *,
    join_reordering: bool = True,
) -> PhysicalPlan:
    """The operators that run a logical plan; `names` are those of the result's columns."""
    estimator = Estimator(facts)
    rewritten = widen_reads(simplify(query))
    if join_reordering:
        rewritten = reorder(rewritten, estimator)
    return physical.plan(prune_columns(unify(rewritten), estimator), tables, estimator, names)
