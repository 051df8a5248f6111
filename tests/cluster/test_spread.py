"""What moves between nodes: filters before rows, heavy keys, ordered ranges. Answers are DuckDB's on the same files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pystachio.cli.oracle import disagreement
from pystachio.errors import Cancelled
from pystachio.operators.column import Column
from pystachio.operators.kernels.partition import hash_rows
from pystachio.planner.distribution.distribution import Preference
from pystachio.running_plan import OperatorReport
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.server.cluster_node import ClusterNode
from pystachio.server.cluster_plan import ClusterPlan
from pystachio.session import Session
from tests.cluster.local_cluster import local_cluster, session_on

ROWS = 60_000
GROUP_ROWS = 2_000


def events() -> pa.Table:
    """`key` of 8,000 values, evenly; `heavy`: of which two make up half of the rows, and some are NULL."""
    rng = np.random.default_rng(7)
    heavy = rng.integers(0, 5000, ROWS)
    heavy[rng.random(ROWS) < 0.35] = 77
    heavy[rng.random(ROWS) < 0.25] = 4321
    nulls = rng.random(ROWS) < 0.05
    wide = rng.integers(-(2**62), 2**62, 4000)
    key = rng.integers(0, 8000, ROWS)
    return pa.table(
        {
            "id": pa.array(np.arange(ROWS)),
            "key": pa.array(key),
            "heavy": pa.array(heavy, pa.int32(), mask=nulls),
            "copy": pa.array(heavy),
            "word": pa.array([f"w{value % 100}" for value in key]),
            "wide": pa.array(wide[key % 4000]),
            "amount": pa.array(rng.integers(0, 1000, ROWS)),
        }
    )


def things() -> pa.Table:
    """One row for each `key` and then some; `chosen` for one in a hundred."""
    rng = np.random.default_rng(8)
    count = 9000
    number = np.arange(count)
    return pa.table(
        {
            "key": pa.array(number),
            "copy": pa.array(number),
            "word": pa.array([f"w{value}" for value in number]),
            "chosen": pa.array(number % 100 == 3),
            "weight": pa.array(rng.integers(0, 50, count)),
        }
    )


@dataclass(frozen=True)
class Ran:
    """What operators did on all nodes, and the plan."""

    operators: tuple[OperatorReport, ...]
    tree: str
    on_nodes: list[OperatorSnapshot]

    def of(self, kind: str) -> list[OperatorReport]:
        return [each for each in self.operators if each.kind == kind]

    def rows_by_node(self, kind: str) -> list[int]:
        """How many rows the only operator of the kind took in on each node."""
        return sorted(each.rows_in for each in self.on_nodes if each.name.endswith(f":{kind}"))

    def scanned(self, table: str) -> int:
        """Rows that the scans of the table put out."""
        return sum(each.rows_out for each in self.of("Scan") if f"Scan {table} " in each.label)


@dataclass(frozen=True)
class Spread:
    """Four nodes over the tables, and DuckDB."""

    nodes: list[ClusterNode]
    session: Session
    oracle: duckdb.DuckDBPyConnection

    def run(self, sql: str) -> Ran:
        """Once the answer is right."""
        result = self.session.sql(sql)
        assert disagreement(result.to_arrow(), self.oracle.execute(sql).fetchall(), sql) is None
        plan = cast(ClusterPlan, result._running)
        assert plan._running is not None
        assert plan._attempted is not None
        own = plan._running.snapshots().values()
        return Ran(result.operators(), result.explain(), [*own, *plan._attempted.operators])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    pq.write_table(events(), path / "events.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(things(), path / "things.parquet", row_group_size=GROUP_ROWS)
    return path


@pytest.fixture(scope="module")
def spread(folder: Path) -> Iterator[Spread]:
    with local_cluster(4, preference=Preference.SHUFFLE) as nodes, duckdb.connect() as oracle:
        session = session_on(nodes[1])
        for file in folder.glob("*.parquet"):
            session.register(file.stem, str(file))
            oracle.execute(f"create view {file.stem} as from '{file}'")
        yield Spread(nodes, session, oracle)
        for node in nodes:
            left = node.statistics()
            assert (left.running_plans, left.reserved_bytes, left.leaks) == (0, 0, 0), node.name


FILTERED = {
    "integers": "select count(*), sum(amount) from events e join things t on e.key = t.key where t.chosen",
    "texts": "select count(*), sum(amount) from events e join things t on e.word = t.word where t.chosen",
    "few of one side": "select t.word, e.amount from things t left join events e on e.key = t.key and e.amount < 5"
    " where t.weight = 7 and t.chosen",
    "on the coordinator": "select count(*) from events e"
    " join (select key from things where chosen order by weight, key limit 30) t on e.key = t.key",
}


@pytest.mark.parametrize("case", FILTERED)
def test_filters_of_shuffled_joins_reach_all_scans(spread: Spread, case: str) -> None:
    ran = spread.run(FILTERED[case])
    assert "for all nodes" in ran.tree
    assert ran.of("Join")[0].counts["bytes of filters sent"] > 0
    assert ran.scanned("events") < ROWS / 50


def test_a_side_without_rows_stops_all_scans_of_the_other(spread: Spread) -> None:
    ran = spread.run("select count(*), min(e.id) from events e join things t on e.key = t.key where t.weight > 50")
    assert ran.scanned("events") == 0


def test_a_plan_that_ends_early_leaves_no_filter_behind(spread: Spread) -> None:
    sql = "select e.id from events e join things t on e.key = t.key where t.weight < 40 limit 5"
    for _ in range(5):
        assert spread.session.sql(sql).to_arrow().num_rows == 5


SKEWED = {
    "inner": "select count(*), sum(amount * weight) from events e join things t on e.heavy = t.key",
    "left": "select count(*), count(t.key), sum(amount + coalesce(weight, 1)) from events e"
    " left join things t on e.heavy = t.key and t.weight < 40",
    "semi": "select count(*), sum(amount) from events where heavy in (select key from things where weight < 49)",
    "anti": "select count(*), sum(amount) from events e"
    " where not exists (select 1 from things t where t.key = e.heavy and t.weight < 10)",
    "two keys": "select count(*), sum(amount) from events e join things t on e.heavy = t.key and e.amount > t.weight"
    " and e.copy = t.copy",
    "below a group by its key": "select heavy, count(*), sum(weight) from events e join things t on e.heavy = t.key"
    " group by heavy",
    "below a join by its key": "select count(*), sum(a.weight + b.weight) from events e"
    " join things a on e.heavy = a.key join (select key + 0 as key, weight from things) b on e.heavy = b.key",
    "many of both sides": "select count(*), sum(e.amount) from events e join"
    " (select heavy, id from events where id % 97 = 0) o on e.heavy = o.heavy",
}


@pytest.mark.parametrize("case", SKEWED)
def test_joins_with_heavy_keys(spread: Spread, case: str) -> None:
    ran = spread.run(SKEWED[case])
    assert "heavy keys stay" in ran.tree
    assert "heavy keys go everywhere" in ran.tree


def test_heavy_keys_are_no_node_s_burden(spread: Spread) -> None:
    rows = spread.run(SKEWED["inner"]).rows_by_node("Join")
    assert len(rows) == 4
    assert rows[-1] < 0.3 * sum(rows)


@pytest.mark.parametrize("kind", ["right", "full"])
def test_joins_that_put_out_build_rows_shuffle_heavy_keys(spread: Spread, kind: str) -> None:
    ran = spread.run(
        f"select count(*), count(e.id), count(t.key) from events e {kind} join things t on e.heavy = t.key"
    )
    assert "Exchange shuffle by key" in ran.tree
    assert "stay" not in ran.tree


def test_keys_with_the_hash_of_a_heavy_one_go_with_it(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(keys: Sequence[Column], rows: int) -> torch.Tensor:
        return hash_rows(keys, rows) & (7 << 60)

    monkeypatch.setattr("pystachio.operators.exchanges.exchange.hash_rows", coarse)
    monkeypatch.setattr("pystachio.planner.distribution.skew.hash_rows", coarse)
    ran = spread.run(
        "select count(*), sum(amount * weight), 'few hashes' from events e join things t on e.heavy = t.key"
    )
    assert "heavy keys stay" in ran.tree


ORDERED = {
    "a number": "select id, amount from events order by id desc",
    "many ties": "select amount from events order by amount",
    "two keys, NULLs last": "select heavy, id from events order by heavy desc nulls last, id",
    "NULLs first": "select heavy, id from events order by heavy nulls first, id desc",
    "texts": "select word, id from events order by word desc, id",
    "all keys equal": "select id from events where amount >= 0 order by amount * 0",
    "rows of one node alone": "select id, word from events where id between 100 and 900 order by word, id desc",
    "no rows": "select id from events where id < 0 order by id",
    "fewer rows than nodes": "select id from events where id in (3, 59000) order by id desc",
    "behind a limit": "select id from events order by wide, id limit 150000 offset 59990",
    "an aggregate's": "select key, count(*) as n from events group by key order by n desc, key",
}


@pytest.mark.parametrize("case", ORDERED)
def test_orders_are_made_in_ranges(spread: Spread, case: str) -> None:
    sql = ORDERED[case]
    ran = spread.run(sql)
    assert "Exchange range by" in ran.tree
    assert "Exchange gather by" in ran.tree
    if case not in ("many ties", "all keys equal"):
        found = spread.session.sql(sql).to_arrow()
        assert [tuple(row.values()) for row in found.to_pylist()] == spread.oracle.execute(sql).fetchall()


def test_ranges_are_about_equal(spread: Spread) -> None:
    rows = spread.run(ORDERED["texts"]).rows_by_node("Sort")
    assert sum(rows) == ROWS
    assert rows[-1] < 0.3 * ROWS


def test_rows_of_the_coordinator_are_dealt_out(spread: Spread) -> None:
    ran = spread.run(
        "select count(*), sum(a.amount) from (select amount, key from events order by id limit 3000) a"
        " join (select amount, key from events order by id desc limit 500) b on a.key < b.key"
    )
    assert "Exchange deal" in ran.tree
    rows = ran.rows_by_node("Join")
    assert rows == [3000 // 4 + 500] * 4


def test_rows_that_have_met_are_not_sent_again(spread: Spread) -> None:
    ran = spread.run(
        "select count(*), sum(n) from (select key, amount, count(*) as n from events group by key, amount) e"
        " join (select key, min(weight) as w from things group by key) t on e.key = t.key"
        " join (select key, max(weight) as w from things group by key) u on u.key = t.key"
    )
    assert ran.tree.count("Exchange shuffle by key\n") == 2


def test_an_order_whose_rest_nobody_wants_leaves_nothing_behind(spread: Spread) -> None:
    sql = "select a.id, b.key from events a, things b where b.key < 3 order by a.id, b.key limit 100001"
    assert "Exchange range by" in spread.run(sql).tree


def test_plans_that_are_cancelled_at_any_time_leave_nothing_behind(spread: Spread) -> None:
    for sql in (FILTERED["integers"], SKEWED["many of both sides"], ORDERED["texts"]):
        for step in range(25):
            result = spread.session.sql(sql)
            time.sleep(step * 0.002)
            result.cancel()
            with suppress(Cancelled):
                result.to_arrow()
