"""CASE and its relatives against DuckDB."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from pystachio.operators.expressions import Expression, IfThen
from tests.operators.functions.oracle import call, cast, check, col, lit

WIDE = pa.decimal128(38, 3)
DIVISION = call("divide", col("i"), col("j"))
BY_ZERO = call("divide", lit(10), col("i"))


def case(*parts: Expression, type_: pa.DataType | None = None) -> IfThen:
    *clauses, otherwise = parts
    pairs = tuple(zip(clauses[0::2], clauses[1::2], strict=True))
    return IfThen(pairs, otherwise, type_ or pairs[0][1].type)


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (case(call("gt", col("i"), lit(1)), col("i"), col("j")), "case when i > 1 then i else j end"),
        (case(call("gt", col("i"), lit(1)), lit(5), lit(None, pa.int64())), "case when i > 1 then 5 end"),
        (
            case(col("b"), lit("yes"), col("c"), lit("maybe"), lit("no")),
            "case when b then 'yes' when c then 'maybe' else 'no' end",
        ),
        (case(col("b"), col("s"), col("t")), "case when b then s else t end"),
        (case(col("b"), col("s"), lit("fixed")), "case when b then s else 'fixed' end"),
        (case(col("b"), col("s"), lit(None, pa.string())), "case when b then s end"),
        (case(col("b"), call("upper", col("t")), col("s")), "case when b then upper(t) else s end"),
        (case(col("b"), col("d"), lit(Decimal("0.00"), pa.decimal128(12, 2))), "case when b then d else 0 end"),
        (case(col("b"), col("w"), cast(col("d"), WIDE)), "case when b then w else d end"),
        (case(col("b"), cast(col("d"), WIDE), lit(None, WIDE)), "case when b then d end"),
        (case(col("b"), col("f"), col("g")), "case when b then f else g end"),
        (case(col("b"), col("day"), col("other_day")), "case when b then day else other_day end"),
        (case(col("b"), col("c"), lit(True)), "case when b then c else true end"),
        (case(lit(True), col("i"), col("j")), "case when true then i else j end"),
        (case(lit(False), col("i"), col("j")), "case when false then i else j end"),
        (case(lit(None, pa.bool_()), col("i"), lit(7)), "case when null then i else 7 end"),
        (case(lit(True), lit(1), lit(2)), "1"),
        (case(call("not_equal", col("i"), lit(0)), BY_ZERO, lit(-1)), "case when i <> 0 then 10 // i else -1 end"),
        (
            case(call("equal", col("i"), lit(0)), lit(None, pa.int64()), BY_ZERO),
            "case when i = 0 then null else 10 // i end",
        ),
        (call("coalesce", col("i"), col("j")), "coalesce(i, j)"),
        (call("coalesce", col("i"), col("j"), lit(0)), "coalesce(i, j, 0)"),
        (call("coalesce", col("s"), lit("none")), "coalesce(s, 'none')"),
        (call("coalesce", col("s"), col("t"), lit("none")), "coalesce(s, t, 'none')"),
        (call("coalesce", lit(None, pa.int32()), col("i")), "coalesce(null, i)"),
        (call("coalesce", lit(None, pa.int64()), lit(4)), "coalesce(null, 4)"),
        (call("nullif", col("i"), col("j")), "nullif(i, j)"),
        (call("nullif", col("s"), lit("abc")), "nullif(s, 'abc')"),
        (call("nullif", col("i"), lit(None, pa.int32())), "nullif(i, null)"),
        (call("greatest", col("i"), col("j")), "greatest(i, j)"),
        (call("least", col("i"), col("j"), lit(2)), "least(i, j, 2)"),
        (call("greatest", col("d"), lit(Decimal("1.00"), pa.decimal128(12, 2))), "greatest(d, 1.00)"),
        (call("greatest", col("s"), col("t")), "greatest(s, t)"),
        (call("greatest", lit(1), lit(2)), "greatest(1, 2)"),
        (call("coalesce", col("d"), col("e"), type_=pa.decimal128(16, 4)), "coalesce(d, e)"),
        (call("coalesce", col("e"), lit(3), type_=pa.decimal128(16, 4)), "coalesce(e, 3)"),
        (case(col("b"), col("d"), col("e"), type_=pa.decimal128(16, 4)), "case when b then d else e end"),
        (call("least", col("f"), col("g")), "least(f, g)"),
        (
            case(
                call("like", col("t"), lit("a%")),
                call("multiply", col("d"), col("e")),
                lit(Decimal("0.000000"), pa.decimal128(28, 6)),
                type_=pa.decimal128(28, 6),
            ),
            "case when t like 'a%' then d * e else 0 end",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conditional(expression: Expression, sql: str) -> None:
    check(expression, sql)
