"""What the 22 TPC-H queries look like once they are read and simplified."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pystachio.cli.tpch import statements
from pystachio.operators.expressions import InList, JoinKind, conjuncts
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Query, Read, Sort
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sharing import inputs_of
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan
from tests.planner.tpch_schema import TPCH

QUERIES = range(1, 23)

# Reads of tables, joins by kind, scalar subqueries.
SHAPES: dict[int, tuple[int, dict[JoinKind, int], int]] = {
    1: (1, {}, 0),
    2: (9, {JoinKind.INNER: 8}, 0),
    3: (3, {JoinKind.INNER: 2}, 0),
    4: (2, {JoinKind.SEMI: 1}, 0),
    5: (6, {JoinKind.INNER: 5}, 0),
    6: (1, {}, 0),
    7: (6, {JoinKind.INNER: 5}, 0),
    8: (8, {JoinKind.INNER: 7}, 0),
    9: (6, {JoinKind.INNER: 5}, 0),
    10: (4, {JoinKind.INNER: 3}, 0),
    11: (3, {JoinKind.INNER: 2}, 1),
    12: (2, {JoinKind.INNER: 1}, 0),
    13: (2, {JoinKind.LEFT: 1}, 0),
    14: (2, {JoinKind.INNER: 1}, 0),
    15: (2, {JoinKind.INNER: 1}, 1),
    16: (3, {JoinKind.INNER: 1, JoinKind.ANTI: 1}, 0),
    17: (3, {JoinKind.INNER: 2}, 0),
    18: (4, {JoinKind.INNER: 2, JoinKind.SEMI: 1}, 0),
    19: (2, {JoinKind.INNER: 1}, 0),
    20: (5, {JoinKind.INNER: 2, JoinKind.SEMI: 2}, 0),
    21: (6, {JoinKind.INNER: 3, JoinKind.SEMI: 1, JoinKind.ANTI: 1}, 0),
    22: (2, {JoinKind.ANTI: 1}, 1),
}


@pytest.fixture(scope="module")
def planner() -> SqlPlanner:
    return SqlPlanner(TPCH)


def text(number: int) -> str:
    return statements()[f"q{number:02}"]


def query(planner: SqlPlanner, number: int) -> Query:
    statement = planner.plan(text(number))
    return simplify(read_plan(statement.substrait, TPCH, statement.null_aware)[0])


def nodes(plan: LogicalPlan) -> Iterator[LogicalPlan]:
    yield plan
    for part in inputs_of(plan):
        yield from nodes(part)


def reads(plan: LogicalPlan, table: str) -> list[Read]:
    return [node for node in nodes(plan) if isinstance(node, Read) and node.table == table]


@pytest.mark.parametrize("number", QUERIES)
def test_shape(number: int, planner: SqlPlanner) -> None:
    made = query(planner, number)
    found = list(nodes(made.root))
    kinds = [node.kind for node in found if isinstance(node, Join)]
    tables = sum(isinstance(node, Read) for node in found)
    assert (tables, {kind: kinds.count(kind) for kind in set(kinds)}, len(made.scalars)) == SHAPES[number]


@pytest.mark.parametrize("number", QUERIES)
def test_joins_have_keys_and_filters_have_gone(number: int, planner: SqlPlanner) -> None:
    """All but the first two tables of Q2, Q8 and Q9, which meet over a third: the order of joins is decided later."""
    made = query(planner, number)
    found = [node for plan in (made.root, *made.scalars) for node in nodes(plan)]
    keyless = [node for node in found if isinstance(node, Join) and not node.left_keys]
    assert len(keyless) <= {2: 1, 8: 1, 9: 1}.get(number, 0)
    # What is left compares with an aggregate's result.
    assert all(isinstance(node.input, Aggregate | Project) for node in found if isinstance(node, Filter))
    assert not any(isinstance(node, Join) and node.null_aware for node in found)


def test_single_table_parts_of_an_or_over_two_tables(planner: SqlPlanner) -> None:
    """Q7: each nation is one of two; Q19: sizes and quantities lie in the union of the ranges."""
    nations = reads(query(planner, 7).root, "nation")
    assert len(nations) == 2
    for nation in nations:
        (only,) = conjuncts(nation.predicate)
        assert isinstance(only, InList)
        assert {option.value for option in only.options if hasattr(option, "value")} == {"FRANCE", "GERMANY"}
    root = query(planner, 19).root
    assert len(conjuncts(reads(root, "part")[0].predicate)) == 2
    assert len(conjuncts(reads(root, "lineitem")[0].predicate)) == 3


def test_equal_parts_of_a_query_are_equal_plans(planner: SqlPlanner) -> None:
    """Q15 computes the revenue twice, Q11 joins the same three tables twice but for a column."""
    made = query(planner, 15)
    (scalar,) = made.scalars
    aggregates = [node for node in nodes(made.root) if isinstance(node, Aggregate)]
    assert any(node in aggregates for node in nodes(scalar))


def test_limits_sit_on_sorts(planner: SqlPlanner) -> None:
    for number in (2, 3, 10, 18, 21):
        limits = [node for node in nodes(query(planner, number).root) if isinstance(node, Limit)]
        assert [isinstance(limit.input, Sort) for limit in limits] == [True]


def test_names_are_those_of_the_statement(planner: SqlPlanner) -> None:
    _, names = read_plan(planner.plan(text(1)).substrait, TPCH)
    assert names[:4] == ("l_returnflag", "l_linestatus", "sum_qty", "sum_base_price")


def test_types_of_decimals(planner: SqlPlanner) -> None:
    """DataFusion's rules: sum +10 digits, avg +4 digits and +4 places."""
    types = [str(f.type) for f in query(planner, 1).root.schema]
    assert types[2:] == [
        "decimal128(25, 2)",
        "decimal128(25, 2)",
        "decimal128(38, 4)",
        "decimal128(38, 6)",
        "decimal128(19, 6)",
        "decimal128(19, 6)",
        "decimal128(19, 6)",
        "int64",
    ]


def test_count_of_rows_reads_no_column(planner: SqlPlanner) -> None:
    statement = planner.plan("select count(*) from lineitem where l_quantity < 3")
    root = simplify(read_plan(statement.substrait, TPCH)[0]).root
    (read,) = reads(root, "lineitem")
    assert [f.name for f in read.schema] == ["l_quantity"]
