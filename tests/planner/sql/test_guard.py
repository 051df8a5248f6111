"""What is refused before it is parsed."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from pystachio.errors import InvalidRequest, SqlSyntaxError, Unsupported
from pystachio.planner.sql.guard import admit

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


@pytest.mark.parametrize("part", ["(1) as (1)", "rollup(1)", "f(x) over (y) as (1)"])
def test_long_lists_are_looked_at_in_time(part: str) -> None:
    """Some 300 kB; whatever looks at all that came before each part takes minutes."""
    began = time.process_time()
    with suppress(Unsupported):
        admit("select " + ", ".join([part] * 20_000))
    assert time.process_time() - began < 20


def test_tables_of_a_statement_s_own_count_by_what_they_stand_for_with_and_without_columns() -> None:
    doubling = ", ".join(f"x{n} (a) as (select a from x{n - 1} union all select a from x{n - 1})" for n in range(1, 14))
    for columns in ("", " (a)", " (a, b)"):
        with pytest.raises(Unsupported, match="common table expressions"):
            admit(f"with x0{columns} as (select 1), {doubling} select a from x13")
    assert admit("with x (a, b) as (select 1, 2), y (c) as (select a from x) select c from y, y as z (d)")
