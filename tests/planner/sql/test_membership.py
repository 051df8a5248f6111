from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import Unsupported
from pystachio.planner.sql.membership import has_exists, has_null_sensitive_in
from pystachio.planner.sql.text import tokenize

ASKED_FOR_TRUTH = [
    "select a from t where a in (select b from u)",
    "select a from t where a in ((select b from u))",
    "select a from t where (a in (select b from u) or c = 1) and d is not null",
    "select a from t where ((a in (select b from u)) or (c = 1)) group by a",
    "select a from t where f(a, b) in (select b from u) or d not in (1, 2)",
    "select a from t where a = any (select b from u) order by a",
    "select a from t where case when a in (select b from u) then true end",
    "select a from t where x in (select a from v where b in (select c from w) or d = 1) or y = 2",
    "select a from t join u on a in (select b from u) left join v on c = d",
]

ASKED_FOR_MORE = [
    "select a from t where a not in (select b from u) or c = 1",
    "select a from t where not (a in (select b from u) and c = 1)",
    "select a from t where not a in (select b from u) or c = 1",
    "select a from t where (a in (select b from u)) = (c = 1)",
    "select a from t where (c = 1) = (a in (select b from u))",
    "select a from t where c = (a in (select b from u)) or d = 1",
    "select a from t where coalesce(a in (select b from u), true)",
    "select a from t where (a in (select b from u)) is not true or c = 1",
    "select a from t where case a in (select b from u) when true then c end",
    "select a from t where a <> all (select b from u) or not (c = 1)",
]

NONE = [
    "select a from t where a in (1, 2) or not (b = 1)",
    "select 'a not in (select b' from t",
    "select a from t union all (select b from u where not c)",
    "select a from t where exists (select 1 from u) or not exists (select 1 from v)",
]


@pytest.mark.parametrize("sql", [*ASKED_FOR_TRUTH, *NONE])
def test_nulls_do_not_matter(sql: str) -> None:
    assert not has_null_sensitive_in(tokenize(sql))


@pytest.mark.parametrize("sql", ASKED_FOR_MORE)
def test_nulls_may_matter(sql: str) -> None:
    assert has_null_sensitive_in(tokenize(sql))


@pytest.mark.parametrize(("sql", "expected"), [(NONE[-1], True), ("select 'exists (' from t", False)])
def test_exists(sql: str, expected: bool) -> None:
    assert has_exists(tokenize(sql)) is expected


@pytest.mark.parametrize(
    "comparison",
    [
        "a > any (select a from t)",
        "a >= all (select distinct t.a from t)",
        "a + 1 = some (select a from t where a > 1 order by a limit 2)",
        "t.a <> all (select t.a from t join u on t.a = u.b)",
        "a < any (select b from u) and a > any (select a from t)",
        "a > any (select a from t except select b from u)",
    ],
)
def test_a_column_is_not_compared_with_itself(comparison: str) -> None:
    tables = "with t(a) as (values (1), (2), (3)), u(b) as (values (2), (5))"
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        with pytest.raises(Unsupported, match="of the same name"):
            session.sql(f"{tables} select count(*) from t where {comparison}")
        aliased = re.sub(r"from t\b", "from t other", comparison).replace("t.a from", "other.a from")
        aliased = aliased.replace("on t.a", "on other.a")
        sql = f"{tables} select count(*) from t where {aliased}"
        assert session.sql(sql).to_arrow()[0].to_pylist() == [duckdb.sql(sql).fetchall()[0][0]]


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select count(*) from t where c > any (select a from t) and a < 3", 1),
        ("select count(*) from t where a < 3 and c > any (select a from t)", 1),
        ("select count(*) from t where a in (select a from t) and c > any (select b from u)", 1),
        ("select count(*) from t where a + 1 > any (select a + 1 from t)", 2),
    ],
)
def test_other_columns_are_compared(sql: str, count: int) -> None:
    tables = "with t(a, c) as (values (1, 0), (2, 3), (3, 1)), u(b) as (values (2), (5))"
    assert duckdb.sql(f"{tables} {sql}").fetchall() == [(count,)]
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        assert session.sql(f"{tables} {sql}").to_arrow()[0].to_pylist() == [count]


def test_names_of_any_kind_are_seen(tmp_path: Path) -> None:
    pq.write_table(pa.table({"my col": [1, 2, 3], "a-b": [1, 2, 3]}), tmp_path / "odd.parquet")
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        session.register("odd", tmp_path / "odd.parquet")
        for name in ("my col", "a-b"):
            with pytest.raises(Unsupported, match="of the same name"):
                session.sql(f'select 1 from odd where "{name}" > any (select "{name}" from odd)')
