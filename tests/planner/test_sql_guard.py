"""What is refused before it is parsed."""

from __future__ import annotations

import time

import pytest

from pystachio.errors import InvalidRequest, SqlSyntaxError, Unsupported
from pystachio.planner.sql_guard import admit

REFUSED = [
    ("insert into t values (1)", "the statement INSERT"),
    ("CREATE TABLE x AS SELECT 1", "the statement CREATE"),
    ("drop table t", "the statement DROP"),
    ("copy t to 'x'", "the statement COPY"),
    ("set a = 1", "the statement SET"),
    ("explain select 1", "the statement EXPLAIN"),
    ("-- a comment\nshow tables", "the statement SHOW"),
    ("from t", "the statement FROM"),
    ("select 1; select 2", "several statements"),
    ("select 1; drop table t", "several statements"),
    ("select a from t tablesample (10 percent)", "TABLESAMPLE"),
    ("select s at time zone 'Europe/Berlin' from t", "AT TIME ZONE"),
    ("select a from t except all select b from u", "EXCEPT ALL"),
    ("select a from t intersect all select b from u", "INTERSECT ALL"),
    ("select a from t where (a in (select b from u)) is null", "a test for NULL of an IN subquery"),
    ("select a from t where a not in (select b from u) is unknown", "a test for NULL of an IN subquery"),
    ("select $name", "the named parameter $name"),
]

HOSTILE = {
    "parentheses": "select " + "(" * 100_000 + "1" + ")" * 100_000,
    "unclosed": "select " + "(" * 20_000,
    "case": "select " + "case when a then " * 20_000 + "1" + " end" * 20_000,
    "subqueries in from": "select * from " + "(select * from " * 20_000 + "t" + ")" * 20_000,
    "subqueries": "select a from t where a in (" * 100 + "select 1" + ")" * 100,
    "not": "select " + "not " * 20_000 + "a",
    "minus": "select " + "- " * 20_000 + "a",
    "plus": "select " + " + ".join(["a"] * 20_000),
    "casts": "select a" + "::int" * 20_000,
    "is null": "select a" + " is null" * 20_000,
    "dots": "select " + ".".join(["a"] * 20_000),
    "or": "select a from t where " + " or ".join(["a = 1"] * 30_000),
    "and": "select a from t where " + " and ".join(["a = 1"] * 30_000),
    "unions": " union all ".join(["select 1"] * 5000),
    "joins": "select 1 from t " + " ".join(["join t on true"] * 1000),
    "tables": "select 1 from " + ", ".join(["t"] * 1000),
    "cube": "select 1 from t group by cube (" + ", ".join("abcdefghijklmnopqrst") + ")",
    "expanding": "with a0 as (select 1 x), "
    + ", ".join(f"a{i} as (select 1 from a{i - 1} p, a{i - 1} q)" for i in range(1, 60))
    + " select * from a59",
    "length": "select 1" + " " * (17 << 20),
}


@pytest.mark.parametrize(("sql", "construct"), REFUSED)
def test_refused(sql: str, construct: str) -> None:
    with pytest.raises(Unsupported, match="not supported: ") as caught:
        admit(sql)
    assert construct in caught.value.construct


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused_at_once(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unsupported):
        admit(HOSTILE[name])
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("sql", ["", "  ", ";", "-- nothing", "/* nothing", "selec 1", "1", "hello world", "select \0"])
def test_no_query_is_a_syntax_error(sql: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        admit(sql)
    assert (caught.value.line, caught.value.column) == (1, 1)


@pytest.mark.parametrize(
    ("sql", "text", "count"),
    [
        ("select ?, ? from t where a = '?'", "select $1, $2 from t where a = '?'", 2),
        ("select $2, $1", "select $2, $1", 2),
        ("select 1;", "select 1", 0),
        ("select 1e3, '1e3', 1.5", "select CAST('1e3' AS DOUBLE), '1e3', 1.5", 0),
        ("(select 1)", "(select 1)", 0),
    ],
)
def test_admitted(sql: str, text: str, count: int) -> None:
    admitted = admit(sql)
    assert (admitted.sql, admitted.placeholders) == (text, count)


def test_two_ways_to_write_parameters_do_not_mix() -> None:
    with pytest.raises(InvalidRequest, match="in one statement"):
        admit("select ?, $1")


@pytest.mark.parametrize(("sql", "volatile"), [("select now()", True), ("select 'now'", False), ("select a", False)])
def test_volatile(sql: str, volatile: bool) -> None:
    assert admit(sql).is_volatile is volatile
