from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from pystachio.operators.batch import Field
from pystachio.operators.expressions import AggregateCall, Call, Expression, FieldReference, InList, JoinKind, Literal
from pystachio.planner.cardinality import ColumnFacts, Estimator, Matching
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Read, UnionAll, Values
from pystachio.planner.profiles import ColumnProfile, Estimate, Profiles, Seen, shrink
from pystachio.planner.selectivity import selectivity

INTEGER = pa.int64()


class Shop:
    """A thousand customers with ten thousand orders and forty thousand lines; the sample is never of help."""

    sizes: ClassVar = {"customer": 1_000, "orders": 10_000, "line": 40_000}
    columns: ClassVar = {
        ("customer", 0): ColumnFacts(1_000.0, 0.0, (1, 1_000)),
        ("customer", 1): ColumnFacts(10.0, 0.0, (0, 9)),
        ("orders", 0): ColumnFacts(10_000.0, 0.0, (1, 40_000)),
        ("orders", 1): ColumnFacts(1_000.0, 0.5, (1, 1_000)),
        ("line", 0): ColumnFacts(30_000.0, 0.0, (1, 40_000)),
        ("line", 1): ColumnFacts(None, 0.0, None),
    }

    def rows(self, table: str) -> int:
        return self.sizes[table]

    def column(self, table: str, column: int) -> ColumnFacts:
        return self.columns[table, column]

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        return None

    def everything(self, table: str) -> Matching | None:
        return None


def read(table: str, predicate: Expression | None = None) -> Read:
    fields = tuple(Field(f"{table}_{i}", INTEGER, True) for i in range(2))
    return Read(table, (0, 1), fields, predicate)


def field(index: int) -> FieldReference:
    return FieldReference(index, INTEGER)


def compare(function: str, index: int, value: int) -> Call:
    return Call(function, (field(index), Literal(value, INTEGER)), pa.bool_())


def join(left: LogicalPlan, right: LogicalPlan, left_key: int, right_key: int, kind: JoinKind = JoinKind.INNER) -> Join:
    return Join(left, right, kind, (left_key,), (right_key,), (False,))


def rows(plan: LogicalPlan) -> float:
    return Estimator(Shop()).rows(plan)


def test_base_tables_are_exact() -> None:
    assert rows(read("orders")) == 10_000


def test_equality_keeps_one_value_of_many() -> None:
    assert rows(read("customer", compare("equal", 1, 3))) == pytest.approx(100)
    assert rows(Filter(read("customer"), compare("equal", 1, 3))) == pytest.approx(100)


def test_ranges_are_interpolated() -> None:
    assert rows(read("customer", compare("lt", 0, 251))) == pytest.approx(250, rel=0.01)
    assert rows(read("customer", compare("gte", 0, 251))) == pytest.approx(750, rel=0.01)


def test_foreign_key_join_has_a_row_per_referring_row() -> None:
    assert rows(join(read("line"), read("orders"), 0, 0)) == pytest.approx(40_000)


def test_a_guessed_distinct_count_does_not_overrule_a_key() -> None:
    """30,000 distinct order numbers are claimed for lines, but there are 10,000 orders."""
    few_orders = read("orders", compare("equal", 1, 7))
    expected = 40_000 * rows(few_orders) / 10_000
    assert rows(join(read("line"), few_orders, 0, 0)) == pytest.approx(expected)


def test_null_keys_match_nothing() -> None:
    assert rows(join(read("orders"), read("customer"), 1, 0)) == pytest.approx(5_000)


def test_a_predicate_on_the_key_of_one_side_reaches_the_other() -> None:
    """A tenth of the orders are left, so a tenth of the lines are: not all lines in a smaller domain."""
    early = read("orders", compare("lt", 0, 4_000))
    assert rows(join(read("line"), early, 0, 0)) == pytest.approx(4_000, rel=0.05)


def test_predicates_derived_from_each_other_count_once() -> None:
    early_orders, early_lines = read("orders", compare("lt", 0, 4_000)), read("line", compare("lt", 0, 4_000))
    assert rows(join(early_lines, early_orders, 0, 0)) == pytest.approx(4_000, rel=0.05)


def test_a_row_has_a_partner_or_not() -> None:
    few = read("customer", compare("equal", 1, 3))
    orders = read("orders")
    assert rows(join(orders, few, 1, 0, JoinKind.SEMI)) == pytest.approx(10_000 * 0.5 * 0.1, rel=0.01)
    assert rows(join(orders, few, 1, 0, JoinKind.ANTI)) == pytest.approx(10_000 * (1 - 0.05), rel=0.01)
    assert rows(join(orders, few, 1, 0, JoinKind.MARK)) == 10_000
    assert rows(join(orders, few, 1, 0, JoinKind.LEFT)) == pytest.approx(10_000, rel=0.01)


def test_rows_without_a_partner_have_nulls() -> None:
    few, orders = read("customer", compare("equal", 1, 3)), read("orders")
    for sides, kind in (((orders, few, 1, 0), JoinKind.LEFT), ((few, orders, 0, 1), JoinKind.RIGHT)):
        padded = join(*sides, kind)
        field = 2 if kind is JoinKind.LEFT else 0
        assert Estimator(Shop()).estimate(padded).columns[field].nulls == pytest.approx(0.95, rel=0.01)
        lonely = Filter(padded, Call("is_null", (FieldReference(field, INTEGER),), pa.bool_()))
        assert rows(lonely) == pytest.approx(9_500, rel=0.01)


def test_a_join_without_keys_is_a_product() -> None:
    product = Join(read("customer"), read("customer"), JoinKind.INNER, (), (), ())
    assert rows(product) == 1_000_000


def test_groups_are_the_distinct_keys() -> None:
    count = AggregateCall("count", (), INTEGER)
    fields = (Field("key", INTEGER), Field("n", INTEGER))
    assert rows(Aggregate(read("customer"), (1,), (count,), fields)) == pytest.approx(10)
    assert rows(Aggregate(read("customer"), (), (count,), fields[1:])) == 1
    both = Aggregate(read("customer"), (1,), (count,), (*fields, Field("set", pa.int32())), ((0,), ()))
    assert rows(both) == pytest.approx(11)


def test_a_grouped_key_is_a_key() -> None:
    per_order = Aggregate(read("line"), (0,), (), (Field("key", INTEGER),))
    assert Estimator(Shop()).estimate(per_order).columns[0].is_key


def test_limits_and_unions_and_constants() -> None:
    assert rows(Limit(read("orders"), 0, 10)) == 10
    assert rows(Limit(read("orders"), 9_995, 10)) == 5
    assert rows(UnionAll((read("orders"), read("customer")), read("orders").schema)) == 11_000
    assert rows(Values(((1, 2), (3, 4)), read("orders").schema)) == 2
    assert rows(Values((), read("orders").schema)) > 0


def test_functions_with_few_results_make_few_groups() -> None:
    ten_years = ColumnFacts(3_650.0, 0.0, (8_000, 11_650))

    class Dates(Shop):
        def column(self, table: str, column: int) -> ColumnFacts:
            return ten_years

    year = Call("date_part", (Literal("year", pa.string()), FieldReference(0, pa.date32())), INTEGER)
    projected = Project(read("orders"), (year,), (Field("year", INTEGER),))
    assert Estimator(Dates()).estimate(projected).columns[0].distinct == pytest.approx(11)


def test_an_estimate_is_derived_once() -> None:
    estimator = Estimator(Shop())
    plan = join(read("line"), read("orders"), 0, 0)
    assert estimator.estimate(plan) is estimator.estimate(plan)
    known = Estimate(7.0, estimator.estimate(plan).columns)
    estimator.remember(plan, known)
    assert estimator.rows(plan) == 7.0


def test_distinct_values_left_by_a_draw() -> None:
    assert shrink(1_000, 1_000, 10) == pytest.approx(10)
    assert shrink(10, 1_000, 500) == pytest.approx(10, rel=1e-3)
    assert shrink(500, 1_000, 1_000) == 500
    assert shrink(1_000, 40_000, 1_000) == pytest.approx(1_000 * (1 - (1 - 1 / 40) ** 40), rel=1e-6)


COLUMN = ColumnProfile(50.0, 50.0, 0, 1_000.0, nulls=0.2, bounds=(0, 100))


@pytest.mark.parametrize(
    ("predicate", "share"),
    [
        (Literal(True, pa.bool_()), 1.0),
        (Literal(None, pa.bool_()), 0.0),
        (compare("equal", 0, 1), 0.02),
        (compare("not_equal", 0, 1), 0.98),
        (compare("lt", 0, 25), 0.25),
        (compare("gt", 0, 25), 0.75),
        (compare("gt", 0, 1_000), 0.0),
        (Call("is_null", (field(0),), pa.bool_()), 0.2),
        (Call("is_not_null", (field(0),), pa.bool_()), 0.8),
        (Call("not", (compare("lt", 0, 25),), pa.bool_()), 0.75),
        (Call("and", (compare("lt", 0, 50), compare("equal", 0, 1)), pa.bool_()), 0.01),
        (Call("or", (compare("lt", 0, 50), compare("gte", 0, 50)), pa.bool_()), 0.75),
        (InList(field(0), tuple(Literal(i, INTEGER) for i in range(5)), pa.bool_()), 0.1),
    ],
)
def test_guessed_selectivity(predicate: Expression, share: float) -> None:
    guessed = selectivity(predicate, (COLUMN,))
    assert guessed > 0
    assert math.isclose(guessed, share, abs_tol=1e-5)


def test_a_profile_is_worked_out_once_and_only_when_asked_for() -> None:
    asked: list[int] = []

    def work_out(index: int) -> ColumnProfile:
        asked.append(index)
        return COLUMN._replace(distinct=float(index + 1))

    estimate = Estimate(100.0, Profiles(3, work_out)).with_rows(50.0)
    assert asked == []
    assert estimate.columns[-1] is estimate.columns[2]
    assert asked == [2]
    assert [column.distinct for column in estimate.columns[:2]] == pytest.approx([1.0, 2.0])
    assert sorted(asked) == [0, 1, 2]
    with pytest.raises(IndexError):
        estimate.columns[3]


def test_profiles_of_profiles_do_not_wait_for_a_thousand_others() -> None:
    estimate = Estimate(1e6, (COLUMN,))
    for _ in range(20_000):
        estimate = estimate.with_rows(estimate.rows - 1)
    assert 1.0 <= estimate.columns[0].distinct <= COLUMN.distinct


def test_a_join_asks_about_its_keys_only() -> None:
    asked: list[tuple[str, int]] = []

    class Noting(Shop):
        def column(self, table: str, column: int) -> ColumnFacts:
            asked.append((table, column))
            return super().column(table, column)

    assert Estimator(Noting()).rows(join(read("line"), read("orders"), 0, 0)) > 0
    assert sorted(asked) == [("line", 0), ("orders", 0)]


@dataclass
class Known:
    """What a predicate leaves. Its values stand in so large a part of the other side's rows as `frequent` says."""

    share: float
    range: tuple[int, int]
    rows: int = 100
    is_all: bool = False
    frequent: float = 0.0

    def seen(self, column: int) -> Known | None:
        return self if self.range[1] else None

    def share_in(self, others: Seen) -> float:
        assert isinstance(others, Known)
        return others.frequent


class Calendar(Shop):
    """Of two hundred years, and a shop that has been open for five of them."""

    sizes: ClassVar = {"calendar": 73_000, "sale": 2_000_000}
    columns: ClassVar = {
        ("calendar", 0): ColumnFacts(73_000.0, 0.0, (0, 72_999)),
        ("calendar", 1): ColumnFacts(200.0, 0.0, (1900, 2099)),
        ("sale", 0): ColumnFacts(1_825.0, 0.0, (36_000, 37_824)),
        ("sale", 1): ColumnFacts(2_000.0, 0.0, (1, 2_000)),
    }
    days: tuple[int, int] = (0, 0)

    def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
        return Known(365 / 73_000, self.days)


@pytest.mark.parametrize(
    ("days", "share"),
    [
        ((36_500, 36_864), 0.2),
        ((35_900, 36_264), 0.2 * 265 / 365),
        ((0, 364), 0.2 / 365),
        # As many days, of any year.
        ((0, 72_999), 365 / 73_000),
        # Nobody knows: people ask for days on which there were sales.
        ((0, 0), 0.2),
    ],
)
def test_a_predicate_may_leave_a_part_of_a_key_s_range(days: tuple[int, int], share: float) -> None:
    facts = Calendar()
    facts.days = days
    year = read("calendar", compare("equal", 1, 2000))
    for kind in (JoinKind.INNER, JoinKind.SEMI):
        plan = join(read("sale"), year, 0, 0, kind)
        assert Estimator(facts).rows(plan) == pytest.approx(2_000_000 * share, rel=0.02)
    assert Estimator(facts).rows(join(year, read("sale"), 0, 0)) == pytest.approx(2_000_000 * share, rel=0.02)
    lonely = Estimator(facts).rows(join(read("sale"), year, 0, 0, JoinKind.ANTI))
    assert lonely == pytest.approx(2_000_000 * max(0.1, 1 - share), rel=0.02)


def test_an_anti_join_leaves_some_rows() -> None:
    plan = join(read("customer"), read("orders"), 0, 1, JoinKind.ANTI)
    assert Estimator(Shop()).rows(plan) >= 100


@pytest.mark.parametrize("frequent", [0.0001, 0.01, 0.6])
def test_keys_that_are_known_are_as_frequent_as_the_other_side_s_sample_says(frequent: float) -> None:
    class Tags(Shop):
        def matching(self, table: str, columns: tuple[int, ...], predicate: Expression) -> Matching | None:
            return Known(0.008, (1, 1_000), rows=8, is_all=True, frequent=frequent)

        def everything(self, table: str) -> Matching | None:
            return Known(1.0, (1, 1_000))

    some = read("customer", compare("equal", 1, 3))
    found = 10_000 * 0.5 * frequent
    assert Estimator(Tags()).rows(join(read("orders"), some, 1, 0)) == pytest.approx(found, rel=0.02)
    assert Estimator(Tags()).rows(join(some, read("orders"), 0, 1)) == pytest.approx(found, rel=0.02)


def test_several_keys_do_not_say_the_same_thing_several_times() -> None:
    class Same(Calendar):
        """Both keys of the calendar number its days."""

        columns: ClassVar = {
            **{("calendar", column): ColumnFacts(73_000.0, 0.0, (0, 72_999)) for column in (0, 1)},
            **{("sale", column): ColumnFacts(1_825.0, 0.0, (36_000, 37_824)) for column in (0, 1)},
        }
        days: tuple[int, int] = (36_500, 36_864)

    year = read("calendar", Call("not_equal", (field(0), field(1)), pa.bool_()))
    one = join(read("sale"), year, 0, 0)
    both = Join(read("sale"), year, JoinKind.INNER, (0, 1), (0, 1), (False, False))
    assert Estimator(Same()).rows(both) <= 1.01 * Estimator(Same()).rows(one)


def test_a_join_without_predicates_asks_for_no_sample() -> None:
    class Strict(Shop):
        def everything(self, table: str) -> Matching | None:
            raise AssertionError("a sample costs a read")

    assert Estimator(Strict()).rows(join(read("line"), read("orders"), 0, 0)) > 0
