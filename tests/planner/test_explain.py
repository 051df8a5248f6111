from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

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
from pystachio.operators.pipeline import operator_names
from pystachio.operators.table import Table
from pystachio.planner import physical
from pystachio.planner.cardinality import ColumnFacts, Estimator, Matching
from pystachio.planner.explain import bytes_text, measured_text, render
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Query, Read, Sort
from pystachio.planner.pushdown import prune_columns
from pystachio.planner.sharing import unify
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.runtime.tracing import WaitReason

INTEGER = pa.int64()


class Facts:
    sizes: ClassVar = {"part": 10_000, "line": 1_000_000}

    def rows(self, table: str) -> int:
        return self.sizes[table]

    def column(self, table: str, column: int) -> ColumnFacts:
        return ColumnFacts(10_000.0, 0.0, (1, 10_000)) if column == 0 else ColumnFacts(100.0, 0.0, (1, 100))

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        return None

    def everything(self, table: str) -> Matching | None:
        return None


PART = (Field("p_key", INTEGER, False), Field("p_size", INTEGER, False), Field("p_name", pa.string(), True))
LINE = (Field("l_part", INTEGER, False), Field("l_quantity", INTEGER, True))
TABLES = {"part": Table("part", PART, ()), "line": Table("line", LINE, ())}
LINES = Read("line", (0, 1), LINE)


def field(index: int, type_: pa.DataType = INTEGER) -> FieldReference:
    return FieldReference(index, type_)


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, pa.bool_())


def planned(root: LogicalPlan, *scalars: LogicalPlan) -> physical.PhysicalPlan:
    estimator = Estimator(Facts())
    query = prune_columns(unify(Query(root, scalars)), estimator)
    return physical.plan(query, TABLES, estimator, ())


def few_parts() -> Read:
    small = call("equal", field(1), Literal(7, INTEGER))
    named = call("like", field(2, pa.string()), Literal("%copper%", pa.string()))
    return Read("part", (0, 1, 2), PART, call("and", small, named))


def test_a_tree_with_names() -> None:
    join = Join(LINES, few_parts(), JoinKind.INNER, (0,), (0,), (False,), call("gt", field(1), field(3)))
    doubled = Project(
        join,
        (field(4, pa.string()), Call("multiply", (field(1), Literal(2, INTEGER)), INTEGER)),
        (PART[2], Field("twice", INTEGER, True)),
    )
    plan = planned(Limit(Sort(doubled, (SortKey(1, True, True), SortKey(0, False, True))), 5, 10))
    assert render(plan).splitlines() == [
        "TopN 10 after 5 by twice desc, p_name nulls first",
        "└─ Project p_name, l_quantity * 2 as twice",
        "   └─ Join inner on l_part = p_key and l_quantity > p_size build right making filter 0 from p_key"
        " [l_quantity, p_name]",
        "      ├─ Scan line [l_part, l_quantity] keeping l_part in filter 0",
        "      └─ Scan part [p_key, p_size, p_name] where p_size = 7 and p_name like '%copper%'",
    ]


def test_shared_and_scalar_plans() -> None:
    sums = Aggregate(LINES, (0,), (AggregateCall("sum", (1,), INTEGER),), (LINE[0], Field("total", INTEGER, True)))
    highest = Aggregate(sums, (), (AggregateCall("max", (1,), INTEGER),), (Field("highest", INTEGER, True),))
    plan = planned(Filter(sums, call("equal", field(1), ScalarSubquery(0, INTEGER))), highest)
    lines = render(plan).splitlines()
    assert lines[:2] == ["Filter sum(l_quantity) = (scalar 0)", "└─ Spool 1 for 2 consumers"]
    assert "scalar 0:" in lines
    assert lines[-1].strip() == "└─ Spool 1 (as above)"
    assert sum("Scan line" in line for line in lines) == 1


def test_what_each_operator_did() -> None:
    plan = planned(Sort(LINES, (SortKey(0, False, False),)))
    names = operator_names(plan)
    scan = names[id(plan.root.inputs[0])]
    measured = OperatorSnapshot(
        name=scan,
        rows_in=0,
        rows_out=1_234_567,
        batches=5,
        bytes=10 << 20,
        busy_seconds=0.0123,
        wait_seconds={WaitReason.IO: 1.5, WaitReason.INPUT: 0.0001},
        peak_memory=2048,
    )
    assert render(plan, {scan: measured}).splitlines() == [
        "Sort by l_part",
        "└─ Scan line [l_part, l_quantity]"
        "  (1,234,567 rows, 10.0 MiB, busy 12.3 ms, waited for io 1.50 s, held 2.0 KiB)",
    ]
    assert measured_text(measured).startswith("1,234,567 rows")


def test_bytes() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 3 << 30, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 GiB",
        "5120.0 TiB",
    ]
