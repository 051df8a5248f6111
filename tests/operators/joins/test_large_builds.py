"""Build sides of many rows: their filters and their index are made beside each other, by two jobs."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import DataError
from pystachio.operators.joins import build
from pystachio.operators.joins.build import _Reading

BUILD = 90_000
PROBE = 250_000
TABLES = {
    "small": pa.table(
        {
            "k": pa.array([None if i % 11 == 0 else i * 3 for i in range(BUILD)], pa.int64()),
            "j": pa.array([i % 5 for i in range(BUILD)], pa.int32()),
            "r": pa.array([i % 20_000 for i in range(BUILD)], pa.int32()),
            "w": pa.array([f"word {i % 300}" for i in range(BUILD)]),
        }
    ),
    "large": pa.table(
        {
            "k": pa.array([None if i % 13 == 0 else i for i in range(PROBE)], pa.int64()),
            "j": pa.array([i % 7 for i in range(PROBE)], pa.int32()),
            "v": pa.array([i * 7919 % 100_003 for i in range(PROBE)], pa.int64()),
        }
    ),
}
STATEMENTS = [
    "select count(*) as n, sum(v) as s from large join small on large.k = small.k where w <> 'word 7'",
    "select count(*) as n, sum(v) as s from large join small on large.k = small.k and large.j = small.j where w <> 'x'",
    "select count(*) as n, sum(v) as s from large join small on large.k = small.r where w <> 'word 7'",
    "select count(*) as n, sum(v) as s from large where k in (select k from small where w <> 'word 7')",
    "select count(*) as n, sum(v) as s from large where k not in (select k from small where k is not null)",
    "select w, count(*) as n, sum(v) as s from large join small on large.k = small.k group by w order by w",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pystachio.Session]:
    folder = tmp_path_factory.mktemp("tables")
    with pystachio.connect(threads=2) as session:
        for name, table in TABLES.items():
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=30_000)
            session.register(name, folder / f"{name}.parquet")
        yield session


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which jobs have run that are made beside each other."""
    ran: list[str] = []
    filters, read = _Reading.filters, _Reading.read
    monkeypatch.setattr(_Reading, "filters", lambda self, *given: ran.append("filters") or filters(self, *given))
    monkeypatch.setattr(_Reading, "read", lambda self, *given: ran.append("read") or read(self, *given))
    monkeypatch.setattr(_Reading, "read_with_filters", _never)
    return ran


def _never(*given: object) -> None:
    raise AssertionError("all in one job")


@pytest.mark.parametrize("sql", STATEMENTS)
@pytest.mark.parametrize("few_rows", [build._FEW_ROWS, 0])
def test_the_answer_is_the_same(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch, sql: str, few_rows: int
) -> None:
    monkeypatch.setattr(build, "_FEW_ROWS", few_rows)
    with duckdb.connect() as database:
        for name, table in TABLES.items():
            database.register(name, table)
        expected = database.sql(sql).to_arrow_table().to_pylist()
    assert session.sql(sql).to_arrow().to_pylist() == expected


@pytest.mark.parametrize("sql", STATEMENTS[1:3])
def test_two_jobs_make_it(session: pystachio.Session, apart: list[str], sql: str) -> None:
    """The planner wants filters of these: they leave little of the other side."""
    session.sql(sql).to_arrow()
    assert sorted(apart) == ["filters", "read"]


@pytest.mark.parametrize("fails", ["filters", "_read"])
def test_a_job_that_fails_ends_the_plan_with_its_error(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*given: object) -> None:
        raise DataError("this is what failed")

    with monkeypatch.context() as patch:
        patch.setattr(_Reading, fails, fail)
        with pytest.raises(DataError, match="this is what failed"):
            session.sql(STATEMENTS[0]).to_arrow()
    assert session.sql(STATEMENTS[0]).to_arrow().num_rows == 1


def test_without_room_for_the_index_it_is_waited_for(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is made behind the filters then, under a reservation that waits."""
    expected = session.sql(STATEMENTS[0]).to_arrow()
    made = []
    indexed = build._indexed
    monkeypatch.setattr(build, "_indexed", lambda *given: made.append(1) or indexed(*given))
    read = _Reading._read

    def without_room(self: _Reading, rows: object) -> object:
        found = read(self, rows)  # type: ignore[arg-type]
        if found.index_reservation is not None:
            found.index_reservation.release()
        return build._Read(found.rows, found.null_keys, found.matched, found.encoding, found.codes)

    monkeypatch.setattr(_Reading, "_read", without_room)
    assert session.sql(STATEMENTS[0]).to_arrow() == expected
    assert made == [1]
