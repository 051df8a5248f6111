"""Numbers against DuckDB, decimals against Python's."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.column import WideDecimalColumn
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Call, Expression, FieldReference
from tests.operators.functions.oracle import call, cast, check, col, lit, ours, tables

HUGE = pa.table(
    {
        "k": pa.array([2**62, -(2**62), 0, None], pa.int64()),
        "least": pa.array([-(2**63), 1, None, 2], pa.int64()),
        "one": pa.array([1, 1, 1, 1], pa.int64()),
        "zero": pa.array([1, 1, 0, 0], pa.int64()),
    }
)


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("add", col("i"), col("j")), "i + j"),
        (call("add", col("i"), lit(1)), "i + 1"),
        (call("subtract", lit(1), col("i")), "1 - i"),
        (call("subtract", col("k"), col("i")), "k - i"),
        (call("multiply", col("i"), col("j")), "i * j"),
        (call("multiply", col("u"), col("i")), "u::int * i"),
        (call("add", col("u"), col("u"), type_=pa.int32()), "u::int + u"),
        (call("divide", col("i"), col("j")), "i // j"),
        (call("divide", col("i"), lit(7)), "i // 7"),
        (call("modulus", col("i"), col("j")), "i % j"),
        (call("modulus", col("k"), lit(-7)), "k % -7"),
        (call("negate", col("i")), "-i"),
        (call("add", col("f"), col("g")), "f + g"),
        (call("multiply", col("f"), lit(2.5)), "f * 2.5::double"),
        (call("divide", col("f"), col("g")), "f / g"),
        (call("divide", lit(1.0), col("g")), "1.0::double / g"),
        (call("add", col("i"), col("g")), "i + g"),
        (call("add", col("d"), col("g")), "d + g"),
        (call("negate", col("f")), "-f"),
        (call("add", col("d"), col("d")), "d + d"),
        (call("add", col("d"), col("e")), "d + e"),
        (call("subtract", col("e"), col("d")), "e - d"),
        (call("subtract", lit(1), col("d")), "1 - d"),
        (call("multiply", col("d"), col("e")), "d * e"),
        (call("multiply", col("d"), lit(3)), "d * 3"),
        (call("multiply", call("multiply", col("d"), col("e")), col("e")), "d::decimal(20, 2) * e * e"),
        (call("modulus", col("d"), lit(Decimal("0.7"))), "d % 0.7"),
        (call("modulus", col("e"), lit(3)), "e % 3"),
        (call("negate", col("d")), "-d"),
        (call("negate", col("w")), "-w"),
        (call("add", col("w"), col("w")), "w + w"),
        (call("add", col("w"), lit(1)), "w + 1"),
        (call("subtract", col("w"), col("d")), "w - d"),
        (call("bitwise_and", col("i"), col("j")), "i & j"),
        (call("bitwise_or", col("i"), lit(6)), "i | 6"),
        (call("bitwise_xor", col("i"), col("j")), "xor(i, j)"),
        (call("bitwise_not", col("i")), "~i"),
        (call("shift_left", col("u"), lit(3), type_=pa.int64()), "u::bigint << 3"),
        (call("shift_right", col("k"), lit(3)), "k >> 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operators(expression: Call, sql: str) -> None:
    check(expression, sql)


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("abs", col("i")), "abs(i)"),
        (call("abs", col("f")), "abs(f)"),
        (call("abs", col("d")), "abs(d)"),
        (call("abs", col("w")), "abs(w)"),
        (call("sign", col("g")), "sign(g)"),
        (call("sign", col("i"), type_=pa.int8()), "sign(i)"),
        (call("round", col("g")), "round(g)"),
        (call("round", col("f"), lit(1)), "round(f, 1)"),
        (call("round", col("g"), lit(-1)), "round(g, -1)"),
        (call("round", col("d"), lit(1), type_=pa.decimal128(12, 1)), "round(d, 1)"),
        (call("round", col("d"), lit(0), type_=pa.decimal128(12, 0)), "round(d)"),
        (call("round", col("w"), lit(1), type_=pa.decimal128(38, 1)), "round(w, 1)"),
        (call("floor", col("f")), "floor(f)"),
        (call("floor", col("d")), "floor(d)"),
        (call("ceil", col("e")), "ceil(e)"),
        (call("ceil", col("w")), "ceil(w)"),
        (call("floor", col("w")), "floor(w)"),
        (call("trunc", col("f")), "trunc(f)"),
        (call("trunc", col("d")), "trunc(d)"),
        (call("sqrt", call("abs", col("g"))), "sqrt(abs(g))"),
        (call("cbrt", col("g")), "cbrt(g)"),
        (call("power", col("g"), lit(2.0)), "power(g, 2)"),
        (call("exp", lit(1.5)), "exp(1.5)"),
        (call("exp", call("divide", col("j"), lit(3.0))), "exp(j / 3.0)"),
        (call("ln", call("abs", col("g"))), "ln(abs(g))"),
        (call("log10", call("abs", col("g"))), "log10(abs(g))"),
        (call("log2", call("abs", col("g"))), "log2(abs(g))"),
        (call("log", lit(3.0), call("abs", col("g"))), "log(3, abs(g))"),
        (call("sin", col("g")), "sin(g)"),
        (call("atan2", col("g"), lit(2.0)), "atan2(g, 2)"),
        (call("degrees", col("g")), "degrees(g)"),
        (call("isnan", col("f")), "isnan(f)"),
        (call("gcd", col("i"), col("j")), "gcd(i, j)"),
        (call("cot", col("g")), "cot(g)"),
        (call("asinh", col("g")), "asinh(g)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions(expression: Call, sql: str) -> None:
    check(expression, sql)


def huge(name: str) -> FieldReference:
    return FieldReference(HUGE.column_names.index(name), pa.int64())


@pytest.mark.parametrize(
    "expression",
    [
        call("add", huge("k"), huge("k")),
        call("subtract", huge("least"), huge("one")),
        call("multiply", huge("k"), lit(2)),
        call("multiply", huge("k"), huge("k")),
        call("negate", huge("least")),
        call("abs", huge("least")),
        call("divide", huge("least"), lit(-1)),
        cast(huge("k"), pa.int32()),
        call("divide", huge("k"), huge("zero")),
        call("modulus", huge("k"), huge("zero")),
        call("divide", huge("k"), lit(0)),
    ],
    ids=str,
)
def test_overflow_and_division_by_zero_are_errors(expression: Expression) -> None:
    with pytest.raises(DataError):
        ours(expression, HUGE)


def test_rows_that_are_null_never_fail() -> None:
    table = HUGE.slice(3, 1)
    assert ours(call("divide", huge("k"), huge("zero")), table) == [None]
    assert ours(call("add", huge("k"), huge("least")), HUGE.slice(1)) == [1 - 2**62, None, None]


def test_a_product_at_the_edge_of_int64_is_exact() -> None:
    table = pa.table({"a": pa.array([2**31, -(2**32), 3]), "b": pa.array([2**31, 2**31, 2**60])})
    a, b = FieldReference(0, pa.int64()), FieldReference(1, pa.int64())
    assert ours(call("multiply", a, b), table) == [2**62, -(2**63), 3 * 2**60]


def test_division_by_zero_of_floats_is_infinite() -> None:
    table = pa.table({"x": [1.0, -1.0, 0.0]})
    found = ours(call("divide", FieldReference(0, pa.float64()), lit(0.0)), table)
    assert str(found) == "[inf, -inf, nan]"


DECIMALS = st.tuples(st.integers(1, 38), st.integers(0, 20)).flatmap(
    lambda digits: st.tuples(
        st.just(pa.decimal128(digits[0], min(digits[1], digits[0]))),
        st.lists(st.integers(-(10 ** digits[0]) + 1, 10 ** digits[0] - 1), min_size=3, max_size=3),
    )
)
EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)


def scaled(values: list[int], type_: pa.DataType) -> list[Decimal]:
    return [Decimal(value).scaleb(-type_.scale, EXACT) for value in values]


@given(DECIMALS, DECIMALS, st.sampled_from(["add", "subtract", "multiply", "divide", "modulus"]))
def test_decimals_are_exact_or_an_error(
    left: tuple[pa.DataType, list[int]], right: tuple[pa.DataType, list[int]], function: str
) -> None:
    first, second = scaled(left[1], left[0]), scaled(right[1], right[0])
    table = pa.table({"a": pa.array(first, left[0]), "b": pa.array(second, right[0])})
    expression = call(function, FieldReference(0, left[0]), FieldReference(1, right[0]))
    step = Decimal(1).scaleb(-expression.type.scale)
    try:
        found = ours(expression, table)
    except DataError:
        zero = function in ("divide", "modulus") and any(value == 0 for value in second)
        # A dividend scaled up past 38 digits overflows even where the quotient would not, as in DataFusion.
        assert (
            zero
            or function in ("divide", "modulus")
            or any(_digits(value, step) > expression.type.precision for value in _expected(function, first, second))
        )
        return
    assert found == [value.quantize(step, context=EXACT) for value in _expected(function, first, second)]


def _expected(function: str, first: list[Decimal], second: list[Decimal]) -> list[Decimal]:
    operation = {
        "add": EXACT.add,
        "subtract": EXACT.subtract,
        "multiply": EXACT.multiply,
        "divide": EXACT.divide,
        "modulus": EXACT.remainder,
    }[function]
    return [operation(a, b) for a, b in zip(first, second, strict=True)]


def _digits(value: Decimal, step: Decimal) -> int:
    return len(str(abs(int(value.quantize(step, context=EXACT) / step))))


def test_large_decimal_products_use_two_limbs_only_when_they_must() -> None:
    type_ = pa.decimal128(18, 2)
    table = pa.table({"x": pa.array([Decimal("9999999999999999.99"), Decimal("1.00")], type_)})
    x = FieldReference(0, type_)
    assert isinstance(evaluate(call("multiply", x, x), batch_from_arrow(table)), WideDecimalColumn)
    small = evaluate(call("multiply", x, x), batch_from_arrow(table.slice(1)))
    assert not isinstance(small, WideDecimalColumn)
    assert column_to_arrow(small).to_pylist() == [Decimal("1.0000")]


def test_the_result_of_small_integers_is_stored_narrowly() -> None:
    table = pa.table({"x": pa.array([1, 2, 3], pa.int8())})
    result = evaluate(call("subtract", lit(1), FieldReference(0, pa.int8()), type_=pa.int64()), batch_from_arrow(table))
    assert not isinstance(result, WideDecimalColumn)
    assert result.values.element_size() <= 2  # type: ignore[union-attr]


def test_every_table_is_tried() -> None:
    assert {"nullable", "empty", "one row", "all null", "coded"} <= set(tables())
