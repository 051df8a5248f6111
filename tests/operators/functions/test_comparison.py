"""Comparisons, boolean logic and IN against DuckDB."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from pystachio.errors import InvalidRequest
from pystachio.operators.expressions import Call, Expression, InList
from tests.operators.functions.oracle import call, check, col, lit, ours, tables

OPERATORS = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
DISTINCT = {"is_distinct_from": "is distinct from", "is_not_distinct_from": "is not distinct from"}

PAIRS: list[tuple[Expression, Expression, str, str]] = [
    (col("i"), col("j"), "i", "j"),
    (col("i"), col("k"), "i", "k"),
    (col("i"), lit(7), "i", "7"),
    (lit(7), col("i"), "7", "i"),
    (col("i"), lit(10**12), "i", "1000000000000"),
    (col("u"), lit(-1), "u", "-1"),
    (col("u"), col("i"), "u", "i"),
    (col("f"), col("g"), "f", "g"),
    (col("g"), col("f"), "g", "f"),
    (col("f"), lit(1.5), "f", "1.5::double"),
    (col("f"), lit(float("nan")), "f", "'nan'::double"),
    (col("f"), col("f"), "f", "f"),
    (col("i"), col("g"), "i", "g"),
    (col("d"), col("d"), "d", "d"),
    (col("d"), col("e"), "d", "e"),
    (col("e"), col("d"), "e", "d"),
    (col("d"), col("i"), "d", "i"),
    (col("d"), lit(Decimal("0.05")), "d", "0.05"),
    (col("d"), lit(Decimal("0.055")), "d", "0.055"),
    (col("d"), lit(Decimal("-0.055")), "d", "-0.055"),
    (col("d"), lit(2), "d", "2"),
    (col("d"), lit(2.5), "d", "2.5::double"),
    (col("w"), col("w"), "w", "w"),
    (col("w"), col("d"), "w", "d"),
    (col("w"), lit(Decimal("1.5")), "w", "1.5"),
    (col("w"), lit(Decimal("1.4999")), "w", "1.4999"),
    (col("s"), col("t"), "s", "t"),
    (col("s"), col("s"), "s", "s"),
    (col("s"), lit("abc"), "s", "'abc'"),
    (lit("abc"), col("s"), "'abc'", "s"),
    (col("day"), col("other_day"), "day", "other_day"),
    (col("day"), lit(dt.date(1992, 2, 29)), "day", "date '1992-02-29'"),
    (col("day"), col("moment"), "day", "moment"),
    (col("moment"), lit(dt.datetime(1992, 2, 29)), "moment", "timestamp '1992-02-29'"),
    (col("b"), col("c"), "b", "c"),
    (col("b"), lit(True), "b", "true"),
    (col("clock"), col("clock"), "clock", "clock"),
    (col("i"), lit(None, pa.int32()), "i", "null"),
]


@pytest.mark.parametrize("function", [*OPERATORS, *DISTINCT])
@pytest.mark.parametrize(("left", "right", "left_sql", "right_sql"), PAIRS, ids=[f"{p[2]} {p[3]}" for p in PAIRS])
def test_comparison(function: str, left: Expression, right: Expression, left_sql: str, right_sql: str) -> None:
    check(call(function, left, right), f"{left_sql} {(OPERATORS | DISTINCT)[function]} {right_sql}")


def test_types_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be compared"):
        ours(call("equal", col("i"), col("s")), tables()["nullable"])


NULL_BOOLEAN = lit(None, pa.bool_())


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("and", col("b"), col("c")), "b and c"),
        (call("or", col("b"), col("c")), "b or c"),
        (call("and", col("b"), NULL_BOOLEAN), "b and null"),
        (call("or", col("b"), NULL_BOOLEAN), "b or null"),
        (call("and", col("b"), lit(False)), "b and false"),
        (call("or", lit(True), col("b")), "true or b"),
        (call("and", col("b"), lit(True), col("c")), "b and true and c"),
        (call("not", col("b")), "not b"),
        (call("not", call("and", col("b"), col("c"))), "not (b and c)"),
        (call("or", call("lt", col("i"), lit(3)), call("like", col("s"), lit("%a%"))), "i < 3 or s like '%a%'"),
        (call("is_null", col("s")), "s is null"),
        (call("is_not_null", col("s")), "s is not null"),
        (call("is_null", lit(None)), "null is null"),
        (call("is_true", col("b")), "b is true"),
        (call("is_not_true", col("b")), "b is not true"),
        (call("is_false", col("b")), "b is false"),
        (call("is_not_false", col("b")), "b is not false"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_three_valued_logic(expression: Call, sql: str) -> None:
    check(expression, sql)


def among(operand: Expression, *options: Expression) -> InList:
    return InList(operand, options, pa.bool_())


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (among(col("i"), lit(1), lit(7)), "i in (1, 7)"),
        (among(col("i"), *map(lit, range(0, 200, 7))), f"i in ({', '.join(map(str, range(0, 200, 7)))})"),
        (among(col("k"), *map(lit, [2**40, 3, 5, 6, 7, 8, 9])), "k in (1099511627776, 3, 5, 6, 7, 8, 9)"),
        (among(col("i"), lit(1), lit(None, pa.int64())), "i in (1, null)"),
        (among(col("i"), lit(10**15)), "i in (1000000000000000)"),
        (among(col("i"), col("j"), lit(7)), "i in (j, 7)"),
        (among(lit(5), col("j"), col("i")), "5 in (j, i)"),
        (among(col("s"), lit("abc"), lit("äöü ßtraße")), "s in ('abc', 'äöü ßtraße')"),
        (among(col("s"), lit("abc"), lit(None, pa.string())), "s in ('abc', null)"),
        (among(col("s"), col("t")), "s in (t)"),
        (among(col("d"), lit(Decimal("0.05")), lit(Decimal("2.5"))), "d in (0.05, 2.5)"),
        (among(col("w"), lit(Decimal("1.5")), lit(Decimal("2.5"))), "w in (1.5, 2.5)"),
        (among(col("f"), lit(1.5), lit(float("nan"))), "f in (1.5::double, 'nan'::double)"),
        (
            among(col("day"), lit(dt.date(1992, 2, 29)), lit(dt.date(1969, 12, 31))),
            "day in (date '1992-02-29', date '1969-12-31')",
        ),
        (among(col("b"), lit(True)), "b in (true)"),
        (among(lit(None, pa.int64()), lit(1)), "null in (1)"),
        (call("not", among(col("i"), lit(1), lit(None, pa.int64()))), "i not in (1, null)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_list(expression: Expression, sql: str) -> None:
    check(expression, sql)
