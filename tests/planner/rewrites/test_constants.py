"""Statements' constants are literals when a plan is ordered, and compared with columns, not with casts of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pystachio.errors import DataError
from pystachio.operators.batch import Field, Schema
from pystachio.operators.evaluate import value_of
from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, InList, Literal, conjuncts
from pystachio.planner.logical import Aggregate, LogicalPlan, Project, Read
from pystachio.planner.rewrites.constants import constant, floor, is_widening, represented
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan

T: Schema = (
    Field("i", pa.int32(), True),
    Field("j", pa.int64(), True),
    Field("f", pa.float64(), True),
    Field("x", pa.decimal128(12, 2), True),
    Field("s", pa.string(), True),
    Field("d", pa.date32(), True),
    Field("t", pa.timestamp("us"), True),
    Field("n", pa.int32(), False),
)
NOON = 1_704_110_400 * 10**9
"""2024-01-01 12:00:00"""


def plan(sql: str) -> LogicalPlan:
    statement = SqlPlanner({"t": T}).plan(sql)
    query, _ = read_plan(statement.substrait, {"t": T}, statement.null_aware, statement.decimals, moment=NOON)
    return simplify(query).root


def predicates(condition: str) -> list[tuple[object, ...]]:
    """The function, the column and the constant of each part."""
    found = plan(f"select 1 as one from t where {condition}")
    while not isinstance(found, Read):
        assert isinstance(found, Project)
        found = found.input
    parts = []
    for part in conjuncts(found.predicate):
        assert isinstance(part, Call | InList)
        column, *constants = part.arguments if isinstance(part, Call) else (part.operand, *part.options)
        assert isinstance(column, FieldReference)
        name = found.schema[column.index].name
        assert all(isinstance(literal, Literal) for literal in constants)
        values = [literal.value for literal in constants if isinstance(literal, Literal)]
        parts.append((part.function if isinstance(part, Call) else "in", name, *values))
    return parts


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("d <= date '1998-12-01' - interval '90' day", [("lte", "d", 10471)]),
        ("d >= '2024-01-01'", [("gte", "d", 19723)]),
        ("d < cast('2024-01-01' as date) + interval '1' year", [("lt", "d", 20089)]),
        ("d in ('2024-01-01', '2024-01-02')", [("in", "d", 19723, 19724)]),
        ("d > timestamp '2024-01-01 00:00:00.5'", [("gt", "d", 19723)]),
        ("d < timestamp '2024-01-01 00:00:00.5'", [("lte", "d", 19723)]),
        ("d < timestamp '2024-01-01'", [("lt", "d", 19723)]),
        ("extract(year from d) = 2024", [("gte", "d", 19723), ("lt", "d", 20089)]),
        ("t >= '2024-01-01'", [("gte", "t", 1_704_067_200 * 10**6)]),
        ("t > now() - interval '12' hour", [("gt", "t", 1_704_067_200 * 10**6)]),
        ("d = current_date", [("equal", "d", 19723)]),
        ("x between 0.06 - 0.01 and 0.06 + 0.01", [("gte", "x", 5), ("lte", "x", 7)]),
        ("x > 5", [("gt", "x", 500)]),
        ("x > 5.123", [("gt", "x", 512)]),
        ("x < 5.123", [("lte", "x", 512)]),
        ("x >= -5.123", [("gt", "x", -513)]),
        ("cast(i as bigint) = 5", [("equal", "i", 5)]),
        ("cast(cast(i as bigint) as decimal(30, 3)) = 5", [("equal", "i", 5)]),
        ("i < 2.5", [("lte", "i", 2)]),
        ("i in (1, 2)", [("in", "i", 1, 2)]),
        ("j = 5.0", [("equal", "j", 5)]),
        ("f > 0.05", [("gt", "f", 0.05)]),
        ("s = 'a' || 'b'", [("equal", "s", "ab")]),
        ("s like 'ab'", [("equal", "s", "ab")]),
        ("s ~ '^a_b'", [("like", "s", "a\\_b%")]),
        ("s ~ 'ab$'", [("like", "s", "%ab")]),
        ("not (i > 5 or i < 1)", [("lte", "i", 5), ("gte", "i", 1)]),
        ("n is not null and i = 1", [("equal", "i", 1)]),
        ("case when i = 1 then 'a' else 'b' end = 'a'", [("equal", "i", 1)]),
    ],
)
def test_constants_beside_columns(condition: str, expected: list[tuple[object, ...]]) -> None:
    found = predicates(condition)
    assert [part for part in found if part in expected] == expected


@pytest.mark.parametrize("condition", ["i = 2.5", "i = 3000000000", "cast(j as int) = 5", "cast(s as int) = 5"])
def test_casts_that_lose_or_fail_stay(condition: str) -> None:
    found = plan(f"select 1 as one from t where {condition}")
    assert "Cast(" in str(found)


def test_sums_of_one_column_share_a_sum() -> None:
    found = plan("select " + ", ".join(f"sum(i + {n}) as s{n}" for n in range(40)) + " from t")
    assert isinstance(found, Project)
    assert isinstance(found.input, Aggregate)
    assert [call.function for call in found.input.calls] == ["sum", "count"]
    one = plan("select sum(i + 1) as a, sum(j + 1) as b, sum(j + 2) as c from t")
    assert "count" not in str(one)


LITERALS = [
    Literal(5, pa.int32()),
    Literal(-5, pa.int64()),
    Literal(2**40, pa.int64()),
    Literal(250, pa.decimal128(5, 2)),
    Literal(-251, pa.decimal128(5, 2)),
    Literal(10**20, pa.decimal128(30, 10)),
    Literal(19723, pa.date32()),
    Literal(1_704_067_200, pa.timestamp("s")),
    Literal(1_704_067_200 * 10**6 + 1, pa.timestamp("us")),
]
TYPES = [*dict.fromkeys(literal.type for literal in LITERALS), pa.int8(), pa.uint8(), pa.decimal128(38, 12)]


@pytest.mark.parametrize("literal", LITERALS, ids=str)
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_exact_values_are_those_of_casts(literal: Literal, type_: pa.DataType) -> None:
    found = represented(literal, type_)
    if found is not None:
        assert found == value_of(Cast(literal, type_))
        assert represented(found, literal.type) == literal
    if is_widening(literal.type, type_):
        assert found is not None
    below = floor(literal, type_)
    if below is not None and not below[1]:
        assert value_of(Call("lt", (below[0], literal), pa.bool_())).value is True


def test_what_fails_stays() -> None:
    failing: list[Expression] = [
        Call("divide", (Literal(1, pa.int64()), Literal(0, pa.int64())), pa.int64()),
        Cast(Literal("x", pa.string()), pa.int64()),
        Call("repeat", (Literal("x", pa.string()), Literal(10**9, pa.int64())), pa.string()),
    ]
    for expression in failing:
        assert constant(expression) is expression
    with pytest.raises(DataError):
        value_of(failing[0])
