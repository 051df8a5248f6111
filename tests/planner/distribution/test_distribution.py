"""Which exchanges a plan of several nodes has: by what they move, and where rows have met already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.codec import decode_plan, encode_plan
from pystachio.planner.distribution.distribution import Preference, distribute
from pystachio.planner.explain import render
from tests.operators.plan_sources import Planning, over_business


@pytest.fixture(scope="module")
def business(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with over_business(tmp_path_factory.mktemp("tables")) as planning:
        yield planning


def exchanges(plan: PhysicalPlan) -> list[Exchange]:
    return [each for each in plan.operators if isinstance(each, Exchange)]


def count(plan: PhysicalPlan, kind: ExchangeKind) -> int:
    return sum(each.kind is kind for each in exchanges(plan))


def spread(planning: Planning, sql: str, preference: Preference = Preference.SHUFFLE, nodes: int = 3) -> PhysicalPlan:
    """The distributed plan, as it comes from another node."""
    plan = distribute(planning.plan(sql), nodes, preference)
    return decode_plan(encode_plan(plan), planning.tables)


ORDERS = "(select o_orderkey, max(o_custkey) as c from orders group by o_orderkey)"
LINES = "(select l_orderkey, sum(l_quantity) as q from lineitem group by l_orderkey)"
MET = {
    "two aggregates by the key of their join": (
        f"select count(*) from {ORDERS} o join {LINES} l on o_orderkey = l_orderkey",
        2,
    ),
    "an aggregate above, by the key of its join": (
        "select l_orderkey, count(*) from orders join lineitem on o_orderkey = l_orderkey group by l_orderkey",
        2,
    ),
    "an aggregate by the partner's name of the key": (
        "select o_orderkey, sum(l_quantity) from orders join lineitem on o_orderkey = l_orderkey group by o_orderkey",
        2,
    ),
    "the other side follows": (
        f"select count(*) from {LINES} l join orders on o_orderkey = l_orderkey",
        2,
    ),
    "part of the keys is enough": (
        f"select count(*) from {LINES} l join orders on o_orderkey = l_orderkey and o_custkey = q",
        2,
    ),
    "an aggregate by more than the key": (
        f"select l_orderkey, q, count(*) from {LINES} l left join orders on o_orderkey = l_orderkey group by 1, 2",
        2,
    ),
    "not the filled side of an outer join": (
        f"select o_orderkey, count(*) from {LINES} l left join orders on o_orderkey = l_orderkey and o_custkey > 7"
        " group by 1",
        3,
    ),
    "nothing after a full join": (
        f"select l_orderkey, count(*) from {LINES} l full join {ORDERS} o on o_orderkey = l_orderkey group by 1",
        3,
    ),
    "not by another key": (
        "select o_custkey, count(*) from orders join lineitem on o_orderkey = l_orderkey group by 1",
        3,
    ),
}


@pytest.mark.parametrize("case", MET)
def test_rows_that_have_met_are_not_shuffled_again(business: Planning, case: str) -> None:
    sql, shuffles = MET[case]
    assert count(spread(business, sql), ExchangeKind.SHUFFLE) == shuffles


def test_small_sides_go_everywhere_and_large_ones_meet(business: Planning) -> None:
    small = "select count(*) from lineitem join supplier on l_suppkey = s_suppkey"
    assert [each.kind for each in exchanges(spread(business, small, Preference.BYTES))] == ["gather", "broadcast"]
    large = "select count(*) from lineitem join orders on l_orderkey = o_orderkey"
    assert count(spread(business, large, Preference.BYTES, nodes=8), ExchangeKind.SHUFFLE) == 2


def test_filters_are_shared_unless_every_node_makes_them_whole(business: Planning) -> None:
    sql = "select count(*) from lineitem join orders on l_orderkey = o_orderkey where o_totalprice > 400000"
    assert "making filter 0 from o_orderkey for all nodes" in render(spread(business, sql))
    broadcast = render(spread(business, sql, Preference.BROADCAST))
    assert "making filter 0 from o_orderkey [" in broadcast
    assert "l_orderkey in filter 0" in broadcast


def test_filters_of_more_keys_than_can_be_sent_are_not_waited_for(business: Planning) -> None:
    plan = business.plan(
        "select count(*) from lineitem join orders on l_orderkey = o_orderkey where o_totalprice > 4e5"
    )
    many = replace(plan, expected_rows=lambda _: 1e9)
    assert "filter" not in render(distribute(many, 3, Preference.SHUFFLE))


def test_few_rows_are_sorted_by_the_coordinator(business: Planning) -> None:
    sql = "select l_orderkey from lineitem order by l_comment"
    assert count(spread(business, sql, Preference.BYTES), ExchangeKind.RANGE) == 0
    plan = business.plan(sql)
    many = replace(plan, expected_rows=lambda _: 1e7)
    assert count(distribute(many, 3, Preference.BYTES), ExchangeKind.RANGE) == 1


def test_only_much_work_is_dealt_out(business: Planning) -> None:
    def sql(rows: int) -> str:
        first = f"(select l_partkey as a from lineitem order by l_comment limit {rows})"
        return f"select count(*) from {first} x join (select s_nationkey as b from supplier limit 90) y on a < b"

    assert count(spread(business, sql(50), Preference.BYTES), ExchangeKind.DEAL) == 0
    assert count(spread(business, sql(200_000), Preference.BYTES), ExchangeKind.DEAL) == 0
    much = business.plan(sql(60_000).replace("limit 90", "limit 100000").replace("supplier", "supplier, nation"))
    assert count(distribute(much, 3, Preference.BYTES), ExchangeKind.DEAL) == 1
    assert count(distribute(much, 3, Preference.BROADCAST), ExchangeKind.DEAL) == 0
