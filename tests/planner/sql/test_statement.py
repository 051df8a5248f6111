"""Statements to Substrait: errors, parameters, columns that the engine cannot use."""

from __future__ import annotations

import datetime
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pystachio.errors import InvalidRequest, NotFound, PystachioError, SqlSyntaxError, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import Call, Literal, conjuncts
from pystachio.planner.logical import Read
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sql.constant_calls import constant_call
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan

ORDERS: Schema = (
    Field("id", pa.int64(), False),
    Field("customer", pa.string(), True),
    Field("price", pa.decimal128(15, 2), True),
    Field("day", pa.date32(), True),
    Field("at", pa.timestamp("us"), True),
    Field("tags", pa.list_(pa.string()), True),
    Field("half", pa.float16(), True),
)
TABLES = {"orders": ORDERS, "returns": ORDERS, "Odd name.x": ORDERS}


@pytest.fixture(scope="module")
def planner() -> SqlPlanner:
    return SqlPlanner(TABLES)


ERRORS: list[tuple[str, type[PystachioError], str]] = [
    ("select id from orders where", SqlSyntaxError, "line 1, column 28"),
    ("select id from orders\nwhere id = = 3", SqlSyntaxError, "line 2, column 12"),
    ("select (id from orders", SqlSyntaxError, "found: from at line 1, column 12"),
    ("select 'id from orders", SqlSyntaxError, "Unterminated string literal at line 1, column 8"),
    ("select id from orderz", NotFound, "did you mean orders?"),
    ("select idd from orders", NotFound, "did you mean id?"),
    ("select o.customr from orders o", NotFound, "did you mean customer?"),
    ("select x.id from orders", NotFound, "did you mean orders.id?"),
    ("select zzzzzz from orders", NotFound, "the columns are id, customer"),
    ("select uper(customer) from orders", NotFound, "did you mean upper?"),
    ("select id from orders, returns", InvalidRequest, "Ambiguous"),
    ("select id + customer from orders", InvalidRequest, "Int64 + Utf8"),
    ("select sum(customer) from orders", InvalidRequest, "sum does not take Utf8"),
    ("select id from orders where customer", InvalidRequest, "non-boolean"),
    ("select id, count(*) from orders", InvalidRequest, "GROUP BY"),
    ("select id as x, customer as x from orders", InvalidRequest, "selected twice"),
    ("select *, * from returns", InvalidRequest, "selected twice"),
    ("select id as customer, customer from orders", InvalidRequest, "the same name"),
    ("select -cast(id as integer unsigned) from orders", InvalidRequest, "signed"),
    ("select id from orders limit 1 - 2", InvalidRequest, "negative count"),
    ("select id from orders offset 1 - 2", InvalidRequest, "negative offset"),
    ("select id from orders limit 9223372036854775808", InvalidRequest, "64 bits"),
    ("select id from orders o where id not in (select r.id from returns r where o.id = r.id)", Unsupported, "repeats"),
    ("select id from orders limit -1", InvalidRequest, "LIMIT must be >= 0"),
    ("select to_char(day, 'x') from orders", Unsupported, "to_char"),
    ("select cast(id as nonsense) from orders", Unsupported, "nonsense"),
    ("select tags from orders", Unsupported, "the column tags of the type list"),
    ("select * from orders", Unsupported, "the column tags of the type list"),
    ("select half from orders", Unsupported, "the column half of the type halffloat"),
    ("select count(tags) from orders", Unsupported, "the column tags"),
    ("select row_number() over (order by id) from orders", Unsupported, "the window function row_number"),
    ("select array_agg(id) from orders", Unsupported, "the aggregate function array_agg"),
    ("select random() from orders", Unsupported, "the function random"),
    ("with recursive r as (select 1 as n union all select n + 1 from r) select * from r", Unsupported, "RECURSIVE"),
    ("select * from generate_series(1, 10)", NotFound, "generate_series"),
    ("select repeat('x', 1000000000)", NotFound, "repeat"),
    ("select * from 'orders.parquet'", NotFound, "orders.parquet"),
    ("select a.id from orders a left join returns using (id)", Unsupported, "USING"),
    ("select (select max(id) from returns r where r.price > o.price) from orders o", Unsupported, "correlated"),
    ("with x as (insert into orders values (1)) select 1", Unsupported, "INSERT"),
    ("select id into x from orders", Unsupported, "the statement CreateMemoryTable"),
    ("select * from orders pivot (sum(id) for customer in ('x'))", Unsupported, "Pivot"),
]


def plan(planner: SqlPlanner, sql: str, *parameters: Any) -> Any:
    statement = planner.plan(sql, parameters)
    query, _ = read_plan(statement.substrait, TABLES, statement.null_aware, constant_call=constant_call)
    return simplify(query)


@pytest.mark.parametrize(("sql", "kind", "text"), ERRORS)
def test_errors(sql: str, kind: type[PystachioError], text: str, planner: SqlPlanner) -> None:
    with pytest.raises(kind) as caught:
        plan(planner, sql)
    assert text in str(caught.value)
    assert "DataFusion" not in str(caught.value)


@pytest.mark.parametrize("sql", ["select random() from orders", "select zyx(id) from orders"])
def test_no_function_is_named_that_is_not_near(sql: str, planner: SqlPlanner) -> None:
    with pytest.raises(PystachioError) as caught:
        plan(planner, sql)
    assert caught.value.hint is None


def test_a_syntax_error_points_at_its_place(planner: SqlPlanner) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        planner.plan("select id\nfrom orders\nwhere id === 3")
    error = caught.value
    assert error.line == 3
    _, source, caret = str(error).split("\n")
    assert source.strip() == "where id === 3"
    assert source[caret.index("^")] == "="


@pytest.mark.parametrize(
    "rewritten",
    ["? = 1 and", "price > 1e3 and", "id is distinct from 3 and", " or ".join(f"id = {i}" for i in range(40)) + " and"],
    ids=["parameter", "float", "distinct", "chain"],
)
def test_places_are_those_of_the_text_as_written(rewritten: str, planner: SqlPlanner) -> None:
    sql = f"select id from orders where {rewritten}\n  id = = 3 or price > 1"
    with pytest.raises(SqlSyntaxError) as caught:
        planner.plan(sql, [1] * rewritten.count("?"))
    error = caught.value
    assert error.line == 2
    assert error.column in (8, 10)


def test_the_planner_outlives_errors(planner: SqlPlanner) -> None:
    for sql, _, _ in ERRORS:
        with pytest.raises(PystachioError):
            plan(planner, sql)
    assert plan(planner, "select id from orders").root.columns == (0,)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, Literal(7, pa.int64())),
        ("x", Literal("x", pa.string())),
        (Decimal("1.50"), Literal(150, pa.decimal128(15, 2))),
        (datetime.date(1970, 1, 11), Literal(10, pa.date32())),
        (datetime.datetime(1970, 1, 1, 0, 0, 1), Literal(1_000_000, pa.timestamp("us"))),
    ],
)
def test_parameters_are_typed_literals(value: Any, expected: Literal, planner: SqlPlanner) -> None:
    column = {int: "id", str: "customer", Decimal: "price", datetime.date: "day", datetime.datetime: "at"}[type(value)]
    for mark in ("?", "$1"):
        read = plan(planner, f"select id from orders where {column} = {mark}", value).root
        while not isinstance(read, Read):
            read = read.input
        (test,) = conjuncts(read.predicate)
        assert isinstance(test, Call)
        assert expected in test.arguments


@pytest.mark.parametrize("parameters", [(), (1, 2)])
def test_parameters_are_counted(parameters: tuple[int, ...], planner: SqlPlanner) -> None:
    with pytest.raises(InvalidRequest, match=f"has 1 parameters, values given: {len(parameters)}"):
        planner.plan("select id from orders where id = ?", parameters)


@pytest.mark.parametrize("value", [object(), 2**70, [1]])
def test_parameters_of_other_types_are_refused(value: Any, planner: SqlPlanner) -> None:
    with pytest.raises(InvalidRequest, match="parameter"):
        planner.plan("select id from orders where id = ?", (value,))


def test_null_parameter(planner: SqlPlanner) -> None:
    assert plan(planner, "select id from orders where customer = ?", None).root.rows == ()


def test_odd_table_names(planner: SqlPlanner) -> None:
    assert plan(planner, 'select id from "Odd name.x"').root.table == "Odd name.x"


def test_now_is_not_cacheable(planner: SqlPlanner) -> None:
    assert not planner.plan("select now()").cacheable
    assert planner.plan("select 1").cacheable


def test_several_threads(planner: SqlPlanner) -> None:
    statements = [f"select customer, sum(price) from orders where id > {i} group by customer" for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda statement: plan(planner, statement), statements))
    assert plans == [plan(planner, statement) for statement in statements]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("orders", "ORDERS"),
        ("orders", 'public."orders"'),
        ("orders", "`orders`"),
        ("orders", "Orders o, orders"),
        ("Odd name.x", '"Odd name.x"'),
        ("ärger", "ärger"),
        ('a"b', '"a""b"'),
        ("a`b", "`a``b`"),
        ("a`b", '"a`b"'),
        ("order", '"order"'),
        ("o", '(select * from o) as "orders"'),
    ],
)
def test_a_table_is_found_however_it_is_written(name: str, written: str) -> None:
    others = {f"other {number}": ORDERS for number in range(20)}
    planner = SqlPlanner({**others, name: ORDERS})
    assert planner.plan("select 1 as one").substrait
    assert planner.plan(f"select count(*) from {written}").substrait
    assert SqlPlanner({name: ORDERS}).plan(f"select count(*) from {written} --{' ' * (1 << 18)}").substrait
    with pytest.raises(NotFound, match="no table named elsewhere"):
        planner.plan("select count(*) from elsewhere")


HOSTILE = """
import sys
import pyarrow as pa
from pystachio.errors import PystachioError
from pystachio.operators.batch import Field
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan

tables = {"t": (Field("a", pa.int64()), Field("b", pa.string()))}
planner = SqlPlanner(tables)
in_range = {
    "or": "select a from t where " + " or ".join(f"a = {i}" for i in range(5_000)),
    "and": "select a from t where " + " and ".join(f"a <> {i}" for i in range(1_000)),
    "in": "select a from t where a in (" + ", ".join(map(str, range(10_000))) + ")",
    "nested": "select " + "(" * 90 + "a" + ")" * 90 + " from t",
    "from": "select a from " + "(select a from " * 90 + "t" + ")" * 90,
    "case": "select " + "case when a = 1 then 1 else " * 80 + "a" + " end" * 80 + " from t",
    "joins": "select 1 from t t0 " + " ".join(f"join t t{i} on t{i}.a = t{i - 1}.a" for i in range(1, 60)),
    "tables": "select 1 from " + ", ".join(f"t t{i}" for i in range(60)),
    "unions": " union all ".join(["select a from t"] * 400),
    "plus": "select " + " + ".join(["a"] * 90) + " from t",
    "in subqueries": "select a from t where " + " and ".join(["a not in (select a from t)"] * 20),
}
for name, sql in in_range.items():
    statement = planner.plan(sql)
    simplify(read_plan(statement.substrait, tables, statement.null_aware)[0])
    print(name, "planned")
beyond = ["plus 200", "minus 200", "brackets"]
for name, sql in zip(beyond, (
    "select " + " + ".join(["a"] * 200) + " from t",
    "select " + "- " * 200 + "a from t",
    "select a" + "[1]" * 100_000 + " from t",
)):
    try:
        statement = planner.plan(sql)
        read_plan(statement.substrait, tables)
        print(name, "planned")
    except PystachioError as error:
        print(name, error.code)
print("alive")
"""


def test_statements_near_the_bounds_do_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=110)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    assert lines[-1] == "alive"
    assert sum(line.endswith("planned") for line in lines) >= 11


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("select " + "9" * 1_000_000, "a number of more than 10000 digits"),
        ("(" * 2_000_000, "more than 1000000 words and signs"),
        ("select 1" + ";" * 1_000_000 + " garbage", "more than 1000000 words and signs"),
    ],
    ids=["digits", "brackets", "semicolons"],
)
def test_what_is_too_long_is_refused_before_it_is_parsed(sql: str, construct: str) -> None:
    with pytest.raises(Unsupported, match=construct):
        SqlPlanner({}).plan(sql)
