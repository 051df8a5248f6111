"""An operand that fails for some row does no harm where SQL need not evaluate it; elsewhere it says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import DataError

TABLES = {
    "one": {"id": [0], "s": ["x"], "t": ["y"]},
    "few": {"id": [0, 1, 2], "s": ["x", "abc", "5"], "t": ["7", None, "y"]},
    "long": {"id": [0, 1, 2], "s": ["12", "x" * 70, "2"], "t": ["1", "2", "3"]},
}
BY_HAND = {table: pa.table(columns) for table, columns in TABLES.items()}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pystachio.Session]:
    folder = tmp_path_factory.mktemp("tables")
    with pystachio.connect(threads=2) as session:
        for name, table in BY_HAND.items():
            pq.write_table(table, folder / f"{name}.parquet")
            session.register(name, folder / f"{name}.parquet")
        yield session


@pytest.mark.parametrize(
    "sql",
    [
        "select id from one where s is not null or cast(t as double) > 1",
        "select id from one where (s || 'q') is not null or cast(t as double) > 1",
        "select id from one where (upper(s) is null and cast(t as double) > 1) or id = 0",
        "select case when upper(s) is null and cast(t as double) > 1 then 1 else 2 end as c from one",
        "select id from few where (id = 0 and cast(t as integer) = 7) or (id = 2 and cast(s as integer) = 5)",
        "select id from few where id = 1 or (id <> 2 and cast(t as integer) > 6) or length(s) = 1",
        "select id from few where not (id < 2) and (s = '5' or cast(t as integer) = 0)",
        "select id from few where id <> 1 and case when s = 'x' then 0 else cast(s as integer) end > 0",
        "select id, 1 << length(s) as e from long where id <> 1",
        "select id from long where id <> 1 and (1 << length(s)) > 4",
        "select id from long where length(s) < 62 and (1 << length(s)) > 2",
        "select id from long where (length(s) < 62 and (1 << length(s)) > 2) or id = 1",
    ],
)
def test_what_need_not_be_evaluated_does_not_fail(session: pystachio.Session, sql: str) -> None:
    tables = {name: table for name, table in BY_HAND.items() if f" {name}" in sql}
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        expected = database.sql(sql).to_arrow_table().to_pylist()
    for _ in range(2):
        assert sorted(session.sql(sql).to_arrow().to_pylist(), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select id as c from one where cast(t as double) > 1 or s is not null", 0),
        ("select case when cast(t as double) > 1 and upper(s) is null then 1 else 2 end as c from one", 2),
    ],
)
def test_the_order_of_operands_does_not_matter(session: pystachio.Session, sql: str, expected: int) -> None:
    """DuckDB fails: it asks the first one first."""
    assert session.sql(sql).to_arrow().to_pylist() == [{"c": expected}]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select id from one where s is null or cast(t as double) > 1", "y"),
        ("select id from few where id = 0 or cast(t as integer) > 6", "y"),
        ("select id from few where id > 0 and (s = 'abc' or cast(t as integer) > 6)", "y"),
        ("select id from long where id = 0 or (1 << length(s)) > 2", "shift"),
    ],
)
def test_what_must_be_evaluated_fails(session: pystachio.Session, sql: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        session.sql(sql).to_arrow()
