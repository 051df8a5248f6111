"""Statements whose NULLs are easy to get wrong, against DuckDB, on random tables with and without NULLs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pytest

from pystachio.planner.sql.statement import SqlPlanner
from tests.planner.interpreter import Tables
from tests.planner.random_sql import random_statement
from tests.planner.sql_oracle import check, load_duckdb, random_contents, schema_of

STATEMENTS = [
    # IN and NOT IN
    "select a from t where a in (select x from u)",
    "select a from t where a not in (select x from u)",
    "select a from t where not (a in (select x from u))",
    "select a from t where a not in (select x from u where x is not null)",
    "select a from t where a not in (select x from u where y = b)",
    "select a from t where a not in (select x from u where y < b)",
    "select a from t where a not in (select x from u where y = b and z > c)",
    "select a from t where a + 1 not in (select x * 2 from u)",
    "select a from t where 3 not in (select x from u)",
    "select a from t where 3 in (select x from u)",
    "select a from t where null not in (select x from u)",
    "select a from t where a not in (select x from u) or b = 2",
    "select a from t where a in (select x from u) or b = 2",
    "select a from t where not (a in (select x from u) and b = 2)",
    "select a from t where a not in (select x from u where y = b) or c = 1",
    "select a from t where (a in (select x from u)) is not true",
    "select a from t where 3 not in (select x from u) or b = 1",
    "select a, a in (select x from u) as found from t",
    "select a, a not in (select x from u) as missing from t",
    "select a from t where a not in (select x from u) and a > 1",
    "select a from t where a not in (select x from u where x > 2)",
    "select a from t where a not in (1, 2, null)",
    "select a from t where a in (1, 2, null)",
    "select a from t where a not in (select x from u where y = 99)",
    "select a from t where case when a in (select x from u) then b else c end = 1",
    "select a from t where a not in (select x from u) and b not in (select y from u)",
    "select a from t where a = any (select x from u)",
    "select a from t where a <> all (select x from u)",
    "select a from t where a > any (select x from u)",
    "select a from t where a > all (select x from u)",
    "select a from t where a > all (select x from u where y = 99)",
    "select a from t where (a in (select x from u)) = (b = 1)",
    "select a from t where a in (select x from u where exists (select 1 from v where p = x)) or b in (select y from u)",
    "select a from t where a in (select x from u) or exists (select 1 from v where p = b)",
    # EXISTS
    "select a from t where exists (select 1 from u where x = a)",
    "select a from t where not exists (select 1 from u where x = a)",
    "select a from t where exists (select 1 from u where x = a and y <> b)",
    "select a from t where not exists (select 1 from u where x = a and y <> b)",
    "select a from t where exists (select 1 from u where x = a) or b = 1",
    "select a from t where not exists (select 1 from u where x = a) or b = 1",
    "select a from t where exists (select 1 from u)",
    "select a from t where not exists (select 1 from u)",
    "select a from t where exists (select 1 from u where y = 3) and b = 1",
    "select a, exists (select 1 from u) as any_rows from t",
    # Scalar subqueries
    "select a from t where a > (select min(x) from u)",
    "select a, (select max(x) from u where y = b) as top from t",
    "select a, (select count(*) from u where y = b) as n from t",
    "select a from t where (select count(*) from u where y = b) = 0",
    "select a from t where (select sum(x) from u where y = b) > a",
    "select a from t where a = (select max(x) from u where y = b and z > (select min(c) from t))",
    # Joins
    "select a, x from t join u on a = x",
    "select a, x from t, u where a = x and b > y",
    "select a, x from t left join u on a = x",
    "select a, x from t left join u on a = x and b > 1",
    "select a, x from t left join u on a = x and y > 1",
    "select a, x from t left join u on a = x where y > 1",
    "select a, x from t left join u on a = x where y is null",
    "select a, x from t left join u on a = x where x = 1 or b = 2",
    "select a, x from t left join u on a = x where coalesce(y, 1) = 1",
    "select a, x from t left join u on a = x where not (y = 1)",
    "select a, x from t right join u on a = x and b > 1",
    "select a, x from t right join u on a = x where b > 1",
    "select a, x from t right join u on a = x where y > 1",
    "select a, x from t full join u on a = x",
    "select a, x from t full join u on a = x where b > 1",
    "select a, x from t full join u on a = x where y > 1",
    "select a, x from t full join u on a = x where b > 1 and y > 1",
    "select a, x from t full join u on a = x where b > 1 or y > 1",
    "select a, x from t full join u on a = x and b < y",
    "select a, x from t left join u on a < x",
    "select a, x from t full join u on a < x",
    "select a, x from t join u on a is not distinct from x",
    "select a, x from t join u on (a is not distinct from x) and b = y",
    "select a, x from t join u on a + 1 = x * 2",
    "select a, x from t left join u on a + 1 = x * 2 and b + y > 2",
    "select a, x from t cross join u",
    "select a, x, p from t join u on a = x join v on y = p",
    "select a, x, p from t left join (u join v on y = p) on a = x",
    "select a, x, p from t left join u on a = x left join v on y = p where q > 1",
    "select a, x, p from t, u, v where (a = x and p = 1) or (a = x and p = 2 and b = 3)",
    "select a, x from t, u where (a = 1 and x = 2) or (a = 2 and x = 1)",
    "select a, x from t left join u on (a = 1 and x = 2) or (a = 2 and x = 1)",
    "select a, x from t join u on a = x where a = 2",
    "select a, x from t left join u on a = x where a in (1, 2)",
    "select count(*) from t, u",
    "select a from t natural join (select x as a from u) w",
    "select a, s.b, t.c from t join t as s using (a)",
    "select t.a from t join t s on t.a = s.a and t.b = s.c",
    # Aggregates
    "select a, count(*), count(b), sum(b), min(c), max(c) from t group by a",
    "select count(*), count(b), sum(b), min(c), max(c) from t",
    "select count(distinct b), sum(distinct c) from t",
    "select a, count(distinct b) from t group by a",
    "select a, sum(b) filter (where c > 1), count(*) filter (where c > 1) from t group by a",
    "select a + b, count(*) from t group by a + b",
    "select a, sum(b) from t group by a having sum(b) > 3",
    "select a, sum(b) from t group by a having a > 1",
    "select a, sum(b) from t where c = 99 group by a",
    "select sum(b) from t where c = 99",
    "select sum(b) from t having count(*) > 100",
    "select a, b, sum(c) from t group by rollup (a, b)",
    "select a, b, sum(c) from t group by cube (a, b)",
    "select a, b, sum(c), grouping(a), grouping(b) from t group by grouping sets ((a, b), (a), ())",
    "select * from (select a, b, sum(c) as s from t group by rollup (a, b)) g where a = 1",
    "select * from (select a, sum(c) as s from t group by a) g where a = 1 and s > 2",
    "select * from (select count(*) as n from t) g where n > 3",
    "select distinct a, b from t",
    # Sets
    "select a from t union select x from u",
    "select a from t union all select x from u",
    "select a, b from t intersect select x, y from u",
    "select a, b from t except select x, y from u",
    "select * from (select a from t union all select x from u) w where a = 1",
    # Limits, and nothing at all
    "select count(*) from (select a from t limit 3) w",
    "select count(*) from (select a from t limit 3 offset 2) w",
    "select count(*) from (select a from t offset 100) w",
    "select a from t where 1 = 0",
    "select a from t where null",
    "select count(*) from t where 1 = 0",
    "select a, x from t left join (select x from u where 1 = 0) w on a = x",
    "select a, x from t full join (select x from u where 1 = 0) w on a = x",
    "select a from t where a in (select x from u where 1 = 0)",
    "select a from t where a not in (select x from u where 1 = 0)",
    # Expressions
    "select case a when 1 then b when 2 then c end from t",
    "select case when a = 1 then b when a = 2 then c else 9 end from t",
    "select coalesce(a, b, 7), nullif(a, 1) from t",
    "select a from t where a between 1 and 3 and b is not null",
    "select a from t where not (a = 1 or b = 2)",
    "select a from t where (a = 1) is not true",
    "select a from t where (a = 1) is unknown",
    "select a from t where a is distinct from b",
    "select a from t where a = 1 or a = 2 or a = b",
    "select p, q from (values (1, 2), (3, null)) w(p, q)",
    "with w as (select a, sum(b) as s from t group by a) select w.a from w where s = (select max(s) from w)",
    "with w as (select a from t where a > 1) select w.a, v.a from w join w as v on w.a = v.a",
]


def tables(chance: random.Random, *, nullable: bool) -> Tables:
    schemas = {
        "t": schema_of("a", "b", "c", nullable=nullable),
        "u": schema_of("x", "y", "z", nullable=nullable),
        "v": schema_of("p", "q", nullable=nullable),
    }
    sizes = {"t": 12, "u": chance.choice((0, 1, 9)), "v": 5}
    return Tables(schemas, {name: random_contents(chance, schema, sizes[name]) for name, schema in schemas.items()})


@dataclass(frozen=True)
class Database:
    planner: SqlPlanner
    tables: Tables
    connection: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def databases() -> Iterator[list[Database]]:
    made = []
    for seed, nullable in enumerate((True, True, True, False)):
        contents = tables(random.Random(seed), nullable=nullable)
        made.append(Database(SqlPlanner(contents.schemas), contents, load_duckdb(contents)))
    yield made
    for database in made:
        database.connection.close()


@pytest.mark.parametrize("sql", STATEMENTS)
def test_same_rows_as_duckdb(sql: str, databases: list[Database]) -> None:
    for database in databases:
        check(sql, database.planner, database.tables, database.connection)


def test_random_statements(databases: list[Database]) -> None:
    for seed in range(400):
        sql = random_statement(random.Random(seed))
        database = databases[seed % len(databases)]
        check(sql, database.planner, database.tables, database.connection)
