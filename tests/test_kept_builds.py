"""What joins store of small tables is kept for the statement's next runs: seen, right, never stale, and given back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import DataError
from pystachio.runtime.urgency import USUAL

STORED = "rows stored by an earlier run"
MANY = 70_000
"""More rows than a table may have of which something is kept."""


def write(folder: Path, names: list[str | None], *, facts: int = 10_000) -> None:
    """`small` has a row for each name, `facts` refers to all of them and to some that are not there; `members` belong
    to teams of `kinds`."""
    small = {"id": pa.array(range(len(names)), pa.int64()), "name": pa.array(names)}
    pq.write_table(pa.table(small), folder / "small.parquet")
    teams = np.arange(1000)
    pq.write_table(pa.table({"team": teams, "kind": teams % 50}), folder / "kinds.parquet")
    pq.write_table(pa.table({"id": np.arange(40_000), "team": np.arange(40_000) % 1000}), folder / "members.parquet")
    keys = [None if i % 11 == 0 else i % (len(names) + 3) for i in range(facts)]
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(range(facts))}), folder / "facts.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, ["a", "b", None, "a", "c"])
    pq.write_table(pa.table({"id": pa.array(range(MANY), pa.int64())}), tmp_path / "large.parquet")
    return tmp_path


def connected(folder: Path, **settings: object) -> pystachio.Session:
    session = pystachio.connect(memory="256MiB", threads=2, chunk_cache_bytes=0, **settings)
    for name in ("small", "kinds", "members", "facts", "large"):
        session.register(name, folder / f"{name}.parquet")
    return session


@pytest.fixture
def session(folder: Path) -> Iterator[pystachio.Session]:
    with connected(folder) as session:
        yield session


def run(session: pystachio.Session, sql: str) -> tuple[list[dict[str, object]], int]:
    """The answer, and how many joins took what an earlier run had stored."""
    result = session.sql(sql)
    rows = result.to_arrow().to_pylist()
    return rows, result.explain(analyze=True).count(STORED)


def runs(session: pystachio.Session, sql: str, times: int = 4) -> list[int]:
    """How many joins of each run did so; all runs answer the same."""
    found = [run(session, sql) for _ in range(times)]
    assert all(rows == found[0][0] for rows, _ in found)
    return [stored for _, stored in found]


JOINED = "select name, count(*) as c, sum(v) as s from facts join small on k = id group by name order by name"


@pytest.mark.parametrize(
    ("sql", "joins"),
    [
        (JOINED, 1),
        ("select count(*) as c from facts where k in (select id from small where name = 'a')", 1),
        ("select count(*) as c from facts where not exists (select 1 from small where id = k and name < 'c')", 1),
        ("select count(*) as c, count(name) as n from facts left join small on k = id and name <> 'b'", 1),
        ("select count(*) as c from facts left join small x on k = x.id left join small y on v = y.id", 2),
        (
            "select count(*) as c from facts where k in (select small.id from small join large on small.id = large.id)",
            1,
        ),
        ("select count(*) as c from facts where k not in (select id from small where id is not null)", 1),
        ("select sum(v) as s from facts join (select id + 1 as id from small) t on k = t.id", 1),
    ],
)
def test_the_third_run_finds_what_the_second_stored(session: pystachio.Session, sql: str, joins: int) -> None:
    assert runs(session, sql) == [0, 0, joins, joins]


KINDS = "(select members.id, kind from members join kinds on members.team = kinds.team where kind = 1)"


@pytest.mark.parametrize(
    ("sql", "joins"),
    [
        (f"select kind, count(*) as c from facts join {KINDS} t on k = t.id group by kind", 1),
        # One consumer of the shared join's rows finds its index, the other one reads them.
        (
            f"with t as {KINDS} select count(*) as c from facts where k in (select id from t)"
            " union all select sum(id + kind) as c from t order by c",
            2,
        ),
        (
            f"with t as {KINDS} select count(*) as c from facts where k in (select id from t)"
            " union all select count(*) as c from facts where v in (select id from t) order by c",
            2,
        ),
    ],
)
def test_several_small_tables_are_as_good_as_one(session: pystachio.Session, sql: str, joins: int) -> None:
    assert " from team " in session.explain(sql), "the join below tells its scan something, too"
    found = runs(session, sql, 6)
    assert found[:2] == [0, 0]
    assert found[2:] == [joins] * 4
    assert session.statistics().leaks == 0


@pytest.mark.parametrize(
    "sql",
    [
        # Of a large table, of one that a scalar decides on, of an aggregation, and with flags of matches.
        "select count(*) as c from facts left join large on k = id",
        "select count(*) as c from facts left join small on k = id and id > (select min(v) + 1 from facts)",
        "select count(*) as c from facts left join (select distinct id from small) t on k = t.id",
        "select count(*) as c from facts full join small on k = id",
    ],
)
def test_what_more_than_small_tables_decide_is_not_kept(session: pystachio.Session, sql: str) -> None:
    assert runs(session, sql) == [0, 0, 0, 0]


@pytest.mark.parametrize("settings", [{"keep_builds": False}, {"chunk_cache": False}])
def test_it_can_be_switched_off(folder: Path, settings: dict[str, object]) -> None:
    with connected(folder, **settings) as session:
        assert runs(session, JOINED) == [0, 0, 0, 0]


def test_a_changed_file_is_read_again(session: pystachio.Session, folder: Path) -> None:
    assert runs(session, JOINED)[-1] == 1
    write(folder, ["z", "z", "z"])
    os.utime(folder / "small.parquet", ns=(time.time_ns(), time.time_ns() + 1_000_000))
    rows, stored = run(session, JOINED)
    assert (len(rows), rows[0]["name"], stored) == (1, "z", 0)


def test_a_file_that_changes_behind_a_plan_is_an_error(session: pystachio.Session, folder: Path) -> None:
    assert runs(session, JOINED)[-1] == 1
    plan = session._plan(JOINED, ())
    os.utime(folder / "small.parquet", ns=(1, 1))
    started = session._node.submit(plan, USUAL, "changed")
    with pytest.raises(DataError, match="changed while the table 'small' was in use"):
        started.next_batch()


def test_many_runs_at_once(session: pystachio.Session) -> None:
    expected = run(session, JOINED)[0]
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda _: run(session, JOINED), range(64)))
    assert all(rows == expected for rows, _ in found)
    assert found[-1][1] == 1
    assert session.statistics().leaks == 0


def test_progress_counts_the_scans_that_run(session: pystachio.Session) -> None:
    runs(session, JOINED)
    result = session.sql(JOINED)
    result.to_arrow()
    assert result.progress() == 1.0
