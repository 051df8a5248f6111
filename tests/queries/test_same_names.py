"""What DataFusion has one name for is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio

TABLES = {
    "t": pa.table({"i": pa.array([1, 2, None], pa.int32()), "j": [1, 2, 3], "s": ["1", "2", "x"]}),
    "o": pa.table({"i": pa.array([1, 2, None], pa.int32()), "k": [5, 6, 7]}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    for name, table in TABLES.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=1) as session:
        for name in TABLES:
            session.register(name, folder / f"{name}.parquet")
        yield session


def rows(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(found, key=repr)


def check(session: pystachio.Session, folder: Path, sql: str) -> pa.Table:
    with duckdb.connect() as database:
        for name in TABLES:
            database.execute(f"create view {name} as select * from '{folder / name}.parquet'")
        expected = database.execute(sql).fetchall()
    found = session.sql(sql).to_arrow()
    assert rows(list(zip(*(column.to_pylist() for column in found.columns), strict=True))) == rows(expected)
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "select sum(j) as a, sum(cast(j as bigint)) as b from t",
        "select sum(i) as a, sum(cast(i as bigint)) as b, sum(cast(i as double)) as c from t",
        "select sum(cast(i as bigint)) as b, sum(cast(i as double)) as c, sum(cast(i as bigint)) + 1 as e from t",
        "select min(i) as a, min(cast(i as varchar)) as b from t group by i",
        "select cast(i as bigint) as a, cast(i as double) as b, count(*) as n from t"
        " group by cast(i as bigint), cast(i as double)",
        "select sum(i) as a, sum(try_cast(s as integer)) as b, sum(cast(i as decimal(10, 2))) as c from t",
        "select max(j) as a, max(cast(j as double)) as b from t having max(cast(j as double)) > 1",
        "select i from t where j not in (select i from o where o.i = t.i)",
        "select i from t where j in (select i from o where o.i = t.i)",
        "select j from t where j not in (select i from o where o.i = t.i) and j in (select k from o where o.k = t.j)",
    ],
)
def test_expressions_that_differ_by_a_cast(session: pystachio.Session, folder: Path, sql: str) -> None:
    check(session, folder, sql)


def test_columns_have_the_names_that_are_written(session: pystachio.Session, folder: Path) -> None:
    found = check(session, folder, "select sum(j), sum(cast(j as bigint)) from t")
    assert found.column_names == ["sum(t.j)", "sum(cast(j as bigint))"]
