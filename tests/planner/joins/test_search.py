from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pystachio.operators.batch import Field
from pystachio.operators.expressions import Call, Expression, FieldReference, JoinKind, Literal
from pystachio.planner.cardinality import ColumnFacts, Estimator, Matching
from pystachio.planner.joins import search as join_search
from pystachio.planner.joins.components import JoinSpace
from pystachio.planner.joins.graph import collect
from pystachio.planner.joins.order import reorder
from pystachio.planner.logical import Aggregate, Filter, Join, LogicalPlan, Project, Query, Read
from pystachio.planner.sharing import inputs_of
from tests.planner.random_plans import random_join, random_leaf, random_tables

INTEGER = pa.int64()


class Star:
    """Facts refer to dimensions of 1,000 rows; column 1 of a dimension has as many values as its number says."""

    def rows(self, table: str) -> int:
        return 10**12 if table == "facts" else 1_000

    def column(self, table: str, column: int) -> ColumnFacts:
        if table == "facts" or column == 0:
            return ColumnFacts(1_000.0, 0.0, (1, 1_000))
        values = int(table.removeprefix("d"))
        return ColumnFacts(float(values), 0.0, (1, values))

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        return None

    def everything(self, table: str) -> Matching | None:
        return None


def field(index: int) -> FieldReference:
    return FieldReference(index, INTEGER)


def equal(left: Expression, right: Expression) -> Call:
    return Call("equal", (left, right), pa.bool_())


def read(table: str, width: int, predicate: Expression | None = None) -> Read:
    fields = tuple(Field(f"{table}_{i}", INTEGER, False) for i in range(width))
    return Read(table, tuple(range(width)), fields, predicate)


def dimension(values: int) -> Read:
    """One in `values` of its rows."""
    return read(f"d{values}", 2, equal(field(1), Literal(1, INTEGER)))


def joined(left: LogicalPlan, right: LogicalPlan, left_key: int, right_key: int = 0) -> Join:
    return Join(left, right, JoinKind.INNER, (left_key,), (right_key,), (False,))


def ordered(plan: LogicalPlan) -> LogicalPlan:
    root = reorder(Query(plan), Estimator(Star())).root
    return root.input if isinstance(root, Project) else root


def tables_from_the_top(plan: LogicalPlan) -> list[str]:
    """The table that each join of a left-deep tree adds, the last join first."""
    match plan:
        case Join(left=left, right=right):
            return [*tables_from_the_top(right), *tables_from_the_top(left)]
        case Read(table=table):
            return [table]
    (input_,) = inputs_of(plan)
    return tables_from_the_top(input_)


def test_the_most_selective_dimension_comes_first() -> None:
    star = joined(joined(joined(read("facts", 3), dimension(2), 0), dimension(50), 1), dimension(10), 2)
    assert tables_from_the_top(ordered(star)) == ["d2", "d10", "d50", "facts"]


def test_a_semi_join_goes_where_it_takes_most() -> None:
    few = Join(joined(read("facts", 2), dimension(2), 0), dimension(50), JoinKind.SEMI, (1,), (0,), (False,))
    top = ordered(few)
    assert isinstance(top, Join)
    assert top.kind is JoinKind.INNER
    assert isinstance(top.left, Join)
    assert top.left.kind is JoinKind.SEMI


def test_any_member_of_a_class_serves_as_key() -> None:
    """facts = d2 and facts = d50 on keys, so d2 = d50: the two small ones first."""
    chain = joined(joined(read("facts", 1), read("d2", 2), 0), dimension(50), 0)
    top = ordered(chain)
    assert isinstance(top, Join)
    assert top.left == read("facts", 1)
    assert set(tables_from_the_top(top.right)) == {"d2", "d50"}


def test_equal_fields_of_one_relation_become_a_filter() -> None:
    twice = Join(read("facts", 2), read("d2", 2), JoinKind.INNER, (0, 1), (0, 0), (False, False))
    top = ordered(twice)
    assert isinstance(top, Join)
    assert len(top.left_keys) == 1
    assert top.left == Filter(read("facts", 2), equal(field(0), field(1)))


def test_predicates_of_several_relations_join_the_residual_of_the_lowest_join() -> None:
    star = joined(joined(read("facts", 2), dimension(50), 0), dimension(2), 1)
    top = ordered(Filter(star, Call("lt", (field(1), field(3)), pa.bool_())))
    assert isinstance(top, Join)
    assert top.residual is None
    assert isinstance(top.left, Join)
    assert top.left.residual is not None


def test_a_left_join_may_come_last() -> None:
    padded = Join(read("facts", 2), read("d10", 2), JoinKind.LEFT, (0,), (0,), (False,))
    top = ordered(joined(padded, dimension(50), 1))
    assert isinstance(top, Join)
    assert top.kind is JoinKind.LEFT
    assert tables_from_the_top(top) == ["d10", "d50", "facts"]


def test_a_condition_on_padded_fields_waits_for_them() -> None:
    padded = Join(read("facts", 2), read("d10", 2), JoinKind.RIGHT, (0,), (0,), (False,))
    top = ordered(Filter(joined(padded, dimension(50), 1, 0), Call("is_null", (field(0),), pa.bool_())))
    (tested,) = (plan.input for plan in _chain(top) if isinstance(plan, Filter))
    assert isinstance(tested, Join)
    assert tested.kind is JoinKind.LEFT


def _chain(plan: LogicalPlan) -> list[LogicalPlan]:
    return [plan, *(below for part in inputs_of(plan)[:1] for below in _chain(part))]


def test_full_joins_stay_and_their_sides_are_ordered() -> None:
    side = joined(joined(read("facts", 2), dimension(2), 0), dimension(50), 1)
    top = ordered(Join(side, read("d10", 2), JoinKind.FULL, (0,), (0,), (False,)))
    assert isinstance(top, Join)
    assert top.kind is JoinKind.FULL
    assert tables_from_the_top(top.left) == ["d2", "d50", "facts"]


def test_inside_aggregates_joins_are_ordered_too() -> None:
    star = joined(joined(read("facts", 2), dimension(2), 0), dimension(50), 1)
    top = reorder(Query(Aggregate(star, (), (), ())), Estimator(Star())).root
    assert tables_from_the_top(top) == ["d2", "d50", "facts"]


def test_many_relations_are_joined_greedily() -> None:
    star: LogicalPlan = read("facts", 10)
    for position in range(10):
        star = joined(star, dimension(2 + position), position)
    assert tables_from_the_top(ordered(star)) == [f"d{n}" for n in range(2, 12)] + ["facts"]


def test_relations_without_a_common_key_make_a_product_at_the_end() -> None:
    product = Join(joined(read("facts", 1), dimension(50), 0), dimension(2), JoinKind.INNER, (), (), ())
    top = ordered(product)
    assert isinstance(top, Join)
    assert top.left_keys == ()


@pytest.mark.parametrize("seed", range(60))
def test_enumeration_is_never_worse_than_greed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are sums over one set of estimates only where the sets are the same, so they are compared loosely."""
    chance = random.Random(seed)
    tables = random_tables(chance)
    plan = random_leaf(chance, tables)
    for _ in range(chance.randint(2, 6)):
        plan = random_join(chance, plan, random_leaf(chance, tables))
        while plan.kind not in (JoinKind.INNER, JoinKind.SEMI, JoinKind.ANTI) or not plan.left_keys:
            plan = random_join(chance, plan.left, plan.right)
    estimator = Estimator(tables)
    space = JoinSpace(collect(plan, lambda leaf: leaf)[0], estimator)
    best = join_search.best_order(space)
    monkeypatch.setattr(join_search, "_MOST_ENUMERATED", 0)
    greedy = join_search.best_order(space)
    assert best.parts == greedy.parts == space.everything
    assert best.cost - best.rows <= 1.2 * (greedy.cost - greedy.rows) + 1
