from __future__ import annotations

import pyarrow as pa
import pytest

from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
)
from pystachio.planner.expression_text import expression_text

INTEGER = pa.int64()
A, B = FieldReference(0, INTEGER), FieldReference(1, INTEGER)
ONE = Literal(1, INTEGER)


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, pa.bool_())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            call("and", call("lt", A, ONE), call("or", call("equal", B, ONE), call("is_null", A))),
            "a < 1 and (b = 1 or a is null)",
        ),
        (call("not", call("and", A, B)), "not (a and b)"),
        (call("not", call("like", A, Literal("x%", pa.string()))), "a not like 'x%'"),
        (call("multiply", call("subtract", ONE, A), B), "(1 - a) * b"),
        (call("subtract", A, call("subtract", B, ONE)), "a - (b - 1)"),
        (call("add", A, call("add", B, ONE)), "a + b + 1"),
        (call("equal", call("equal", A, B), A), "(a = b) = a"),
        (call("substring", A, ONE, Literal(2, INTEGER)), "substring(a, 1, 2)"),
        (InList(A, (ONE, Literal(None, INTEGER)), pa.bool_()), "a in (1, null)"),
        (Cast(A, pa.decimal128(12, 2)), "cast(a as decimal(12, 2))"),
        (Cast(A, pa.date32(), True), "try_cast(a as date)"),
        (IfThen(((call("gt", A, ONE), B),), ONE, INTEGER), "case when a > 1 then b else 1 end"),
        (ScalarSubquery(2, INTEGER), "(scalar 2)"),
        (FieldReference(7, INTEGER), "#7"),
        (Literal("it's", pa.string()), "'it''s'"),
        (Literal(True, pa.bool_()), "true"),
        (Literal(1234, pa.decimal128(10, 2)), "12.34"),
        (Literal(9204, pa.date32()), "date '1995-03-15'"),
        (Literal(10**9, pa.date32()), "1000000000"),
        (Literal(0, pa.timestamp("us")), "timestamp '1970-01-01 00:00:00'"),
        (Literal(3_600_000, pa.time32("ms")), "time '01:00:00'"),
        (Literal(0.5, pa.float64()), "0.5"),
    ],
)
def test_text(expression: Expression, text: str) -> None:
    assert expression_text(expression, ["a", "b"]) == text
