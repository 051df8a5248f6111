from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from pystachio.operators.batch import Field
from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Expression,
    FieldReference,
    JoinKind,
    Literal,
    ScalarSubquery,
    SortKey,
)
from pystachio.operators.joins.join import Join as JoinOperator
from pystachio.operators.limit import Limit as LimitOperator
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.project import Project as ProjectOperator
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.sort import Sort as SortOperator
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.planner import physical, runtime_filters, sharing
from pystachio.planner.cardinality import ColumnFacts, Estimator, Matching
from pystachio.planner.joins.order import reorder
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Query, Read, Sort, UnionAll
from pystachio.planner.pushdown import prune_columns
from pystachio.planner.sharing import unify, widen_reads
from tests.planner.interpreter import Tables, multiset, rows_of
from tests.planner.operator_interpreter import PlainAggregate, Run
from tests.planner.random_plans import INTEGER, random_query, random_tables


@pytest.fixture(autouse=True)
def plain_aggregates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(physical, "aggregate", PlainAggregate)


def operators_of(query: Query, tables: Tables, estimator: Estimator) -> tuple[Operator, ...]:
    registered = {name: Table(name, schema, ()) for name, schema in tables.schemas.items()}
    made = physical.plan(query, registered, estimator, ())
    return (made.root, *made.scalars)


@pytest.mark.parametrize("seed", range(400))
def test_operators_mean_what_the_plan_means(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With build sides by chance and every permitted runtime filter in place."""
    chance = random.Random(seed)
    monkeypatch.setattr(physical, "choose_build", lambda join, left, right: chance.choice(("left", "right")))
    monkeypatch.setattr(physical, "_SMALLEST_FILTERED_SCAN", 0)
    monkeypatch.setattr(runtime_filters, "_MOST_PASSING", float("inf"))
    monkeypatch.setattr(sharing, "_is_worth_keeping", lambda plan, estimator: chance.random() < 0.5)
    tables = random_tables(chance)
    query = random_query(chance, tables)
    estimator = Estimator(tables)
    optimised = prune_columns(unify(reorder(widen_reads(query), estimator)), estimator)
    (root,) = operators_of(optimised, tables, estimator)
    assert multiset(Run(tables).rows(root)) == multiset(rows_of(query.root, tables))


class Shop:
    """Ten thousand parts, a million lines of them; a category is one in a hundred parts. A hundred thousand boxes of a
    part each, and a million sales of them."""

    sizes: ClassVar = {"part": 10_000, "line": 1_000_000, "box": 100_000, "sale": 1_000_000}
    columns: ClassVar = {
        ("part", 0): ColumnFacts(10_000.0, 0.0, (1, 10_000)),
        ("part", 1): ColumnFacts(100.0, 0.0, (1, 100)),
        ("line", 0): ColumnFacts(10_000.0, 0.0, (1, 10_000)),
        ("line", 1): ColumnFacts(50.0, 0.0, (1, 50)),
        ("box", 0): ColumnFacts(100_000.0, 0.0, (1, 100_000)),
        ("box", 1): ColumnFacts(10_000.0, 0.0, (1, 10_000)),
        ("sale", 0): ColumnFacts(100_000.0, 0.0, (1, 100_000)),
    }

    def rows(self, table: str) -> int:
        return self.sizes[table]

    def column(self, table: str, column: int) -> ColumnFacts:
        return self.columns[table, column]

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        return None

    def everything(self, table: str) -> Matching | None:
        return None


PART = (Field("p_key", INTEGER, True), Field("p_category", INTEGER, True))
LINE = (Field("l_part", INTEGER, True), Field("l_quantity", INTEGER, True))
BOX = (Field("b_key", INTEGER, True), Field("b_part", INTEGER, True))
SALE = (Field("s_box", INTEGER, True),)
TABLES = {
    name: Table(name, fields, ()) for name, fields in (("part", PART), ("line", LINE), ("box", BOX), ("sale", SALE))
}
CATEGORY_7 = Call("equal", (FieldReference(1, INTEGER), Literal(7, INTEGER)), pa.bool_())
FEW_PARTS = Read("part", (0, 1), PART, CATEGORY_7)
PARTS = Read("part", (0, 1), PART)
LINES = Read("line", (0, 1), LINE)
BY_PART = Aggregate(LINES, (0,), (AggregateCall("sum", (1,), INTEGER),), (LINE[0], Field("total", INTEGER, True)))


def joined(left: LogicalPlan, right: LogicalPlan, kind: JoinKind = JoinKind.INNER, **details: Any) -> Join:
    details = {"null_equal": (False,), **details}
    return Join(left, right, kind, (0,), (0,), **details)


def lowered(root: LogicalPlan, *scalars: LogicalPlan) -> PhysicalPlan:
    estimator = Estimator(Shop())
    query = prune_columns(unify(widen_reads(Query(root, scalars))), estimator)
    return physical.plan(query, TABLES, estimator, ())


def scans(operator: Operator) -> dict[str, Scan]:
    found = {operator.table.name: operator} if isinstance(operator, Scan) else {}
    for child in operator.inputs:
        found.update(scans(child))
    return found


def test_the_smaller_side_is_built_and_filters_the_larger() -> None:
    root = lowered(joined(LINES, FEW_PARTS)).root
    assert isinstance(root, JoinOperator)
    assert root.build == "right"
    assert root.runtime_filters == (0,)
    assert scans(root)["line"].filters == (ScanFilter(0, 0, 0.01),)
    turned = lowered(joined(FEW_PARTS, LINES)).root
    assert isinstance(turned, JoinOperator)
    assert (turned.build, turned.runtime_filters) == ("left", (0,))


def test_a_side_that_has_all_keys_filters_nothing() -> None:
    root = lowered(joined(LINES, PARTS)).root
    assert isinstance(root, JoinOperator)
    assert root.runtime_filters == (None,)
    assert scans(root)["line"].filters == ()


@pytest.mark.parametrize("is_left", [False, True])
def test_a_side_with_all_keys_filters_when_it_is_filtered_itself(is_left: bool) -> None:
    boxes, sales = Read("box", (0, 1), BOX), Read("sale", (0,), SALE)
    if is_left:
        boxes_of_sales, part = joined(boxes, sales), 1
    else:
        boxes_of_sales, part = joined(sales, boxes), 2
    assert scans(lowered(boxes_of_sales).root)["sale"].filters == ()
    kept = joined(FEW_PARTS, boxes_of_sales)
    found = scans(lowered(replace(kept, right_keys=(part,))).root)
    (of_parts,), (of_boxes,) = found["box"].filters, found["sale"].filters
    assert (of_parts.column, of_boxes.column) == (1, 0)
    assert of_parts.slot != of_boxes.slot


@pytest.mark.parametrize(("kind", "leads"), [(JoinKind.INNER, True), (JoinKind.LEFT, False)])
def test_a_filter_leads_to_others_only_where_it_takes_rows_out(kind: JoinKind, leads: bool) -> None:
    """Of a field that an outer join pads, it takes out rows of the padded side, not of the join."""
    boxes, sales = Read("box", (0, 1), BOX), Read("sale", (0,), SALE)
    sold = joined(sales, joined(boxes, boxes, kind))
    found = scans(lowered(replace(joined(FEW_PARTS, sold), right_keys=(4,))).root)
    assert bool(found["sale"].filters) is leads


def test_a_filter_that_no_scan_takes_does_not_lead_to_others() -> None:
    root = lowered(replace(joined(FEW_PARTS, joined(LINES, PARTS)), right_keys=(3,))).root
    found = scans(root)
    assert found["part"].filters == (), "so few rows are read before a filter would arrive"
    assert found["line"].filters == ()


def test_a_table_that_is_scanned_once_may_be_read_before_its_filters_are_there() -> None:
    once = scans(lowered(joined(LINES, FEW_PARTS)).root)
    assert [scan.reads_early for scan in once.values()] == [True, True]
    other = replace(LINES, predicate=CATEGORY_7)
    twice = scans(lowered(joined(joined(LINES, FEW_PARTS), other)).root)
    assert {name: scan.reads_early for name, scan in twice.items()} == {"line": False, "part": True}
    by_a_scalar = lowered(joined(LINES, FEW_PARTS), Limit(other, 1, 0))
    assert not scans(by_a_scalar.root)["line"].reads_early


def test_a_filter_passes_through_group_keys() -> None:
    root = lowered(joined(FEW_PARTS, BY_PART)).root
    assert isinstance(root, JoinOperator)
    assert root.build == "left"
    assert scans(root)["line"].filters == (ScanFilter(0, 0, 0.01),)


def test_a_filter_passes_through_unions_sorts_and_references() -> None:
    swapped = Project(LINES, (FieldReference(1, INTEGER), FieldReference(0, INTEGER)), (LINE[1], LINE[0]))
    union = UnionAll((Sort(LINES, (SortKey(1, False, False),)), Project(swapped, _references(1, 0), LINE)), LINE)
    root = lowered(joined(union, FEW_PARTS)).root
    (union_operator, _) = root.inputs
    assert [scans(part)["line"].filters for part in union_operator.inputs] == [(ScanFilter(0, 0, 0.01),)] * 2


def _references(*positions: int) -> tuple[FieldReference, ...]:
    return tuple(FieldReference(position, INTEGER) for position in positions)


@pytest.mark.parametrize(
    "plan",
    [
        joined(Limit(LINES, 0, 500_000), FEW_PARTS),
        joined(Project(LINES, (Call("add", _references(0, 1), INTEGER),), LINE[:1]), FEW_PARTS),
        joined(Aggregate(LINES, (0,), (), (LINE[0], Field("set", pa.int32())), ((0,), ())), FEW_PARTS),
        joined(LINES, FEW_PARTS, JoinKind.LEFT),
        joined(LINES, FEW_PARTS, JoinKind.FULL),
        joined(LINES, FEW_PARTS, JoinKind.ANTI),
        joined(LINES, FEW_PARTS, JoinKind.MARK),
        joined(FEW_PARTS, LINES, JoinKind.ANTI, null_aware=True),
        joined(LINES, FEW_PARTS, null_equal=(True,)),
    ],
    ids=["limit", "computed", "grouping sets", "left", "full", "anti", "mark", "not in", "null equal"],
)
def test_where_rows_without_a_partner_count_nothing_is_filtered(plan: LogicalPlan) -> None:
    root = lowered(plan).root
    assert scans(root)["line"].filters == ()


def test_a_shared_plan_runs_once_and_unfiltered() -> None:
    highest = Aggregate(BY_PART, (), (AggregateCall("max", (1,), INTEGER),), (Field("highest", INTEGER, True),))
    is_highest = Call("equal", (FieldReference(1, INTEGER), ScalarSubquery(0, INTEGER)), pa.bool_())
    plan = lowered(joined(FEW_PARTS, Filter(BY_PART, is_highest)), highest)
    assert isinstance(plan.root, JoinOperator)
    spool = plan.scalars[0].inputs[0]
    assert isinstance(spool, Spool)
    assert spool.consumers == 2
    assert spool in _all(plan.root)
    assert scans(spool)["line"].filters == ()


def _all(operator: Operator) -> list[Operator]:
    return [operator, *(below for child in operator.inputs for below in _all(child))]


def test_plans_that_differ_in_columns_only_are_shared() -> None:
    keys = Read("line", (0,), LINE[:1])
    total = AggregateCall("sum", (2,), INTEGER)
    everything = Aggregate(joined(FEW_PARTS, LINES), (), (replace(total, arguments=(3,)),), (Field("n", INTEGER),))
    by_key = Aggregate(joined(FEW_PARTS, keys), (2,), (), LINE[:1])
    estimator = Estimator(Shop())
    query = unify(reorder(widen_reads(Query(by_key, (everything,))), estimator))
    plan = physical.plan(prune_columns(query, estimator), TABLES, estimator, ())
    spools = {
        id(operator) for top in (plan.root, *plan.scalars) for operator in _all(top) if isinstance(operator, Spool)
    }
    assert len(spools) == 1


def test_trivial_plans_are_not_shared() -> None:
    plan = lowered(joined(PARTS, PARTS))
    assert not any(isinstance(operator, Spool) for operator in _all(plan.root))


def test_sort_and_limit_become_top_n() -> None:
    by_quantity = Sort(LINES, (SortKey(1, True, True),))
    root = lowered(Limit(Project(by_quantity, _references(0), LINE[:1]), 5, 10)).root
    assert isinstance(root, ProjectOperator)
    top = root.input
    assert isinstance(top, ScanTopN)
    assert (top.count, top.offset, top.keys) == (10, 5, (SortKey(1, True, True),))


def test_a_limit_beyond_memory_sorts() -> None:
    root = lowered(Limit(Sort(LINES, (SortKey(1, True, True),)), 0, 10_000_000)).root
    assert isinstance(root, LimitOperator)
    assert isinstance(root.input, SortOperator)


def test_joins_and_scans_put_out_what_is_read_above() -> None:
    root = lowered(Aggregate(joined(LINES, FEW_PARTS), (), (AggregateCall("sum", (1,), INTEGER),), LINE[1:])).root
    (join,) = root.inputs
    assert [field.name for field in join.schema] == ["l_quantity"]
    assert [field.name for field in scans(join)["part"].schema] == ["p_key"]


def test_counting_reads_no_column() -> None:
    root = lowered(Aggregate(LINES, (), (AggregateCall("count", (), INTEGER),), (Field("n", INTEGER),))).root
    assert scans(root)["line"].columns == ()
