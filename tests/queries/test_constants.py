"""Constants are computed as columns are: beside DuckDB, and beside the same values out of a column."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import DataError, PystachioError

TABLE = pa.table(
    {
        "i": pa.array([1, 2, None, -3], pa.int32()),
        "j": pa.array([5, None, 7, 2**62], pa.int64()),
        "u": pa.array([1, 2, 3, 4], pa.uint32()),
        "f": pa.array([0.0, 0.5, 1e-20, None], pa.float64()),
        "x": pa.array([1, 2, None, 5], pa.decimal128(12, 2)),
        "s": ["abc", "xabc", "a%c", None],
        "d": pa.array([0, 19723, 20000, None], pa.date32()),
        "t": pa.array([0, 1704067200000000, 1719800000123456, None], pa.timestamp("us")),
        "b": [True, False, None, True],
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("constants") / "t.parquet"
    pq.write_table(TABLE, path)
    return path


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=1) as session:
        session.register("t", path)
        yield session


def answer(session: pystachio.Session, sql: str) -> list[tuple[object, ...]]:
    found = session.sql(sql).to_arrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)


def oracle(path: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as database:
        database.execute(f"create view t as select * from '{path}'")
        return sorted(database.execute(sql).fetchall(), key=repr)


@pytest.mark.parametrize(
    "expression",
    [
        "9223372036854775807 + 1",
        "-9223372036854775807 - 2",
        "9223372036854775807 * 2",
        "1 / 0",
        "1 % 0",
        "cast(300 as tinyint)",
        "cast(-1 as integer unsigned)",
        "cast('abc' as integer)",
        "date '2024-13-45'",
        "cast('never' as timestamp)",
        "cast(99999999999 as integer)",
        "cast(1000.5 as decimal(4, 2))",
    ],
)
def test_what_fails_fails_where_a_row_needs_it(session: pystachio.Session, expression: str) -> None:
    for sql in (
        f"select {expression}",
        f"select {expression} from t",
        f"select case when i > 0 then {expression} end from t",
    ):
        with pytest.raises(DataError):
            session.sql(sql).to_arrow()
    for sql in (
        f"select case when i > 100 then {expression} end as c from t",
        f"select case when i > 100 then 1 when i < 100 then 2 when {expression} is null then 3 end is null as c from t",
        f"select {expression} as c from t where i > 100",
        f"select {expression} as c from t where false",
        f"select max({expression}) as c from t where i > 100",
        f"select i from t where i is not null or {expression} is null",
    ):
        session.sql(sql).to_arrow()
    assert answer(session, f"select case when i > 100 then {expression} end as c from t") == [(None,)] * 4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cast(2.5 as integer)", 3),
        ("cast(-2.5 as integer)", -3),
        ("cast(2.4 as integer)", 2),
        ("cast('1e20' as double) + 1", 1e20),
        ("0.1 + 0.2 = 0.3", True),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("9223372036854775807 - 1", 2**63 - 2),
        ("cast(1.005 as decimal(5, 2)) = 1.01", True),
        ("'a' || 'b' || null", None),
        ("null + 1", None),
        ("- null", None),
        ("not null", None),
        ("null and false", False),
        ("null or true", True),
        ("1 in (2, null)", None),
        ("coalesce(null, 5)", 5),
        ("case when true then 1 else 1 / 0 end", 1),
        ("coalesce(1, 1 / 0)", 1),
        ("extract(year from date '2024-02-29')", 2024),
        ("cast(cast('2024-02-29 12:30:00' as date) as varchar)", "2024-02-29"),
        ("cast(timestamp '2024-02-29 12:30:00Z' as varchar)", "2024-02-29 12:30:00"),
        ("cast(timestamp '2024-02-29 12:30:00+02:00' as varchar)", "2024-02-29 10:30:00"),
        ("date_trunc('month', timestamp '2024-02-29 12:30:00') = date '2024-02-01'", True),
        ("date '2024-01-31' + interval '1' month = date '2024-02-29'", True),
        ("nvl2(null, 1, 2)", 2),
        ("to_hex(255)", "ff"),
        ("pi() > 3.14", True),
        ("to_date('2024-01-31') = date '2024-01-31'", True),
        ("arrow_cast(5, 'Int8')", 5),
        ("2 = any([1, 2, 3])", True),
    ],
)
def test_values(session: pystachio.Session, expression: str, expected: object) -> None:
    assert answer(session, f"select {expression} as c") == [(expected,)]
    assert answer(session, f"select {expression} as c from t") == [(expected,)] * 4


@pytest.mark.parametrize(
    "sql",
    [
        "select f from t where f in (cast('1e-20' as double), 0.5)",
        "select f from t where f not in (cast('1e-20' as double), 0.5)",
        "select case f when 0.5 then 1 when cast('1e-20' as double) then 2 end as c from t",
        "select nullif(f, 0.5) as a, nullif(f, cast('1e-20' as double)) as b from t",
        "select f from t where f in (cast(0.00000000000000000001 as double), 0.5)",
        "select i from t where cast(i as bigint) = 2",
        "select i from t where cast(i as bigint) in (2, 3000000000)",
        "select i from t where i < 3000000000 and i > -2.5",
        "select i from t where cast(i as decimal(20, 5)) >= 1.5",
        "select i from t where i between 0.5 and 2.5",
        "select i from t where not (i between 0 and 1)",
        "select j from t where j = 5.0 or j > 6.5",
        "select x from t where x < 2.005 and x <> 1.999",
        "select u from t where u > -1 and u <> 2",
        "select d from t where d = date '2024-01-02' - interval '1' day",
        "select d from t where extract(year from d) = 2024",
        "select d from t where extract(year from d) <> 2024",
        "select d from t where extract(year from d) > 1970 and extract(year from d) <= 2024",
        "select t from t where extract(year from t) >= 2024 and extract(year from t) < 2025",
        "select d from t where cast(d as timestamp) > timestamp '2024-01-01 00:00:00.5'",
        "select t from t where t >= timestamp '2024-01-01' - interval '1' month",
        "select s from t where s like 'abc' or s like 'a\\%c' escape '\\'",
        "select i from t where i = i",
        "select i from t where i <> i",
        "select b from t where b = true",
        "select b from t where b <> true",
        "select b from t where b = false or b is null",
        "select i from t where case when i > 0 then 1 else 0 end = 1",
        "select i from t where case i when 1 then 'a' when 2 then 'b' else 'c' end = 'b'",
        "select i from t where case when i > 1 then true when i < 0 then true else null end",
        "select i from t where not (i > 1 or i < 0)",
        "select i from t where not (i > 1 and b)",
        "select coalesce(null, i) as a, coalesce(i, null, 7) as b, coalesce(3, i) as c from t",
        "select i * 1 as a, i + 0 as b, i - 0 as c, x * 1.0 as e from t",
        "select sum(i + 1) as a, sum(i + 2) as b, sum(i - 3) as c, sum(i) as e, count(i) as n from t",
        "select b, sum(i + 1) as a, sum(i + 2) as c from t group by b",
        "select sum(i + 1) filter (where b) as a, sum(i + 2) filter (where b) as c, sum(i + 1) as e from t",
        "select sum(i + 1) as a, sum(i + 2) as c from t where i > 100",
        "select i + null as a, s || null as c, i in (1, null) as e from t",
        "select i from t where i in (1, null)",
        "select i from t order by 1 + 1, i limit 1 + 1 offset 2 - 1",
        "select 1 + 1 as k, count(*) as n from t group by k",
        "values (1 + 1, 'a' || 'b'), (2, null)",
        "select count(1 + 1) as a, max('a' || 'b') as c, sum(1 + 1) as e from t",
        "select 1 + 1 as a union all select i from t",
        "select a.i from t a left join (select 1 + 1 as k) c on a.i = c.k and 1 + 1 = 2",
        "select i from t where i in (select 1 + 1)",
        "select i from t where exists (select 1 where 1 + 1 = 3)",
        "select timestamp '2024-01-01 10:00:00' - timestamp '2024-01-01 09:00:00' as c",
    ],
)
def test_statements(session: pystachio.Session, path: Path, sql: str) -> None:
    assert answer(session, sql) == oracle(path, sql)


@pytest.mark.parametrize("pattern", ["abc", "^abc", "abc$", "^abc$", "a%c", "_", "^a%", "b", "", "^", "$", "^$"])
def test_regular_expressions_without_anything_special(session: pystachio.Session, path: Path, pattern: str) -> None:
    assert answer(session, f"select s from t where s ~ '{pattern}'") == oracle(
        path, f"select s from t where regexp_matches(s, '{pattern}')"
    )
    assert answer(session, f"select s from t where s ~* '{pattern.upper()}'") == oracle(
        path, f"select s from t where regexp_matches(s, '{pattern.upper()}', 'i')"
    )


def test_a_statement_has_one_now(session: pystachio.Session) -> None:
    sql = (
        "select now() = current_timestamp and now() = (select max(now()) from t) and cast(now() as date) = current_date"
        " and cast(now() as time) = current_time as c from t where now() = current_timestamp"
    )
    assert answer(session, sql) == [(True,)] * 4
    before = time.time_ns()
    (first,), (second,) = answer(session, "select cast(now() as bigint) as n union all select cast(now() as bigint)")
    assert first == second
    (later,) = answer(session, "select cast(now() as bigint) as n")
    assert before <= first <= later[0] <= time.time_ns()  # type: ignore[operator]


@pytest.mark.parametrize("function", ["random()", "uuid()"])
def test_what_differs_from_row_to_row_is_no_constant(session: pystachio.Session, function: str) -> None:
    with pytest.raises(PystachioError, match="function"):
        session.sql(f"select {function} from t").to_arrow()


@pytest.mark.parametrize(
    "expression",
    ["1" + " + 1" * 250, "'a'" + " || 'b'" * 250, "(" * 90 + "1" + " + 1)" * 90],
)
def test_long_expressions_of_constants(session: pystachio.Session, path: Path, expression: str) -> None:
    assert answer(session, f"select {expression} as c") == oracle(path, f"select {expression} as c")


def test_time_grows_with_the_number_of_constants(session: pystachio.Session) -> None:
    """Not with its square."""

    def seconds(terms: int) -> float:
        sql = "select count(*) from t where " + " or ".join(f"i = 1.5 + {n} or 1 / 0 = {n}" for n in range(terms))
        began = time.process_time()
        session.explain(sql)
        return time.process_time() - began

    seconds(100)
    assert seconds(2000) < 40 * max(seconds(200), 0.05)


def test_texts_do_not_grow_while_a_statement_is_planned(session: pystachio.Session) -> None:
    long = "replace(" * 6 + "'aaaaaaaaaa'" + ", 'a', 'aaaaaaaaaa')" * 6
    assert answer(session, f"select length({long}) as n") == [(10**7,)]
    assert len(session.explain(f"select {long} as c from t")) < 20_000
