"""Columns that are selected twice: what they are called, and that they mean what is written."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.planner.sql.duplicates import numbered
from pystachio.planner.sql.text import tokenize


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a, b from t", None),
        ("select a, a as b, a c from t", None),
        ("select a, a from t", 'select a, a AS "a_1" from t'),
        ("select a, a, a from t", 'select a, a AS "a_1", a AS "a_2" from t'),
        ("select A, A from t order by a_1", 'select A, A AS "a_2" from t order by a_1'),
        ('select "A b", "A b" from t', 'select "A b", "A b" AS "A b_1" from t'),
        ("select t.a, t.a from t", 'select t.a, t.a AS "a_1" from t'),
        ("select distinct count(*), count(*)", 'select distinct count(*), count(*) AS "count(*)_1"'),
        ("select cast(a as int), cast(a as bigint) from t", 'cast(a as bigint) AS "cast(a as bigint)" from t'),
        ("select cast(a as int) from t order by a", 'select cast(a as int) AS "cast(a as int)" from t order by a'),
        ("select a::int, a::decimal(10, 2), a", 'a::int AS "a::int", a::decimal(10, 2) AS "a::decimal(10, 2)", a'),
        ("select a::double precision, a::double precision", 'a::double precision AS "a::double precision_1"'),
        ("select a::double precision b, a::timestamp with time zone c, (a) d", None),
        ("select d + interval '1' day, d + interval '1' day", """AS "d + interval '1' day_1\""""),
        ("select 1 x, 1 y, 'a' v, 'a' w", None),
        ("select distinct on (a, (b)) a, c from t", None),
        ("select distinct on (a) c, c from t", 'select distinct on (a) c, c AS "c_1" from t'),
        ('select a, "a", t.A from t', 'select a, "a" AS "a_1", t.A AS "a_2" from t'),
        ("select 'x\"y', 'x\"y'", "select 'x\"y', 'x\"y' AS \"'x\"\"y'_1\""),
        ("select a is distinct from b, a is distinct from b", 'AS "a is distinct from b_1"'),
        ("select x.a from (select a, a from t) x", 'select x.a from (select a, a AS "a_1" from t) x'),
        ("select a from t where exists (select a, a from t)", '(select a, a AS "a_1" from t)'),
        ("select extract(year from d), extract(year from d) from t", 'AS "extract(year from d)_1" from t'),
        ("select case when a then 1 end, case when a then 1 end", 'AS "case when a then 1 end_1"'),
        ("select a is null, a is null", 'select a is null, a is null AS "a is null_1"'),
        ("select ", None),
        ("select (((, a::, cast(, cast(", "select ((("),
    ],
)
def test_names(sql: str, expected: str | None) -> None:
    found = numbered(sql, tokenize(sql))
    if expected is None:
        assert found is sql
    else:
        assert expected in found
        assert numbered(found, tokenize(found)) is found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pystachio.Session]:
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(pa.table({"d": [1.5, 2.5, None, -3.5], "k": [3, 1, 2, 0], "d_1": [9, 8, 7, 6]}), path)
    with pystachio.connect(threads=1, control_socket=False) as opened:
        opened.register("t", path)
        yield opened


@pytest.mark.parametrize(
    "sql",
    [
        "select cast(k as double), cast(k as int), k from t order by k",
        "select d, d, d from t order by d_1",
        "select cast(k as varchar) from t order by k",
        "select cast(d as varchar), k from t order by d",
        "select cast(d as int), cast(d as varchar) from t order by d",
        'select k, "k", t.k, t."k" from t order by 1',
        "select timestamp '2020-01-01' + interval '1' day, timestamp '2020-01-01' + interval '1' day from t",
        "select k::double precision, k::double precision from t order by k",
        "select count(*), count(*), sum(k), sum(k) from t",
        "select 1, 1, 'a', 'a'",
        "select * from (select cast(k as int), cast(k as double) from t) x order by 1",
        "with x as (select d, d from t) select count(*) from x",
        "select k from t where exists (select d, d from t) order by k",
        "select k, k from t union all select d_1, d_1 from t order by 1",
        "select k::int, k::bigint from t where k in (select k from t where k > $1) order by 1",
        "select (select max(k) from t), (select max(k) from t)",
    ],
)
def test_rows(session: pystachio.Session, sql: str) -> None:
    parameters = [1] if "$1" in sql else []
    t = session.sql("select * from t").to_arrow()  # noqa: F841 - DuckDB finds it by its name
    expected = duckdb.execute(sql, parameters).fetchall()
    found = session.sql(sql, parameters=parameters).to_arrow()
    assert len(set(found.column_names)) == found.num_columns
    assert list(zip(*(column.to_pylist() for column in found.columns))) == expected
