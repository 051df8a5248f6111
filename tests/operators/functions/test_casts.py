"""CAST against DuckDB."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from pystachio.errors import DataError, Unsupported
from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Cast, Expression, FieldReference
from tests.operators.functions.oracle import call, cast, check, col, lit, ours, same, theirs

D = pa.decimal128
SMALL = call("divide", col("g"), lit(7.0))


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (cast(col("i"), pa.int64()), "i::bigint"),
        (cast(col("u"), pa.int8()), "try_cast(u as tinyint)"),
        (cast(col("i"), pa.float64()), "i::double"),
        (cast(col("i"), pa.float32()), "i::float"),
        (cast(col("i"), D(20, 3)), "i::decimal(20,3)"),
        (cast(col("i"), pa.bool_()), "i::bool"),
        (cast(col("b"), pa.int32()), "b::int"),
        (cast(col("b"), pa.string()), "b::varchar"),
        (cast(col("i"), pa.string()), "i::varchar"),
        (cast(col("g"), pa.string()), "g::varchar"),
        (cast(col("g"), pa.int64()), "g::bigint"),
        (cast(SMALL, pa.int32()), "try_cast(g / 7 as int)"),
        (cast(SMALL, D(12, 2)), "try_cast(g / 7 as decimal(12,2))"),
        (cast(col("g"), D(38, 10)), "g::decimal(38,10)"),
        (cast(col("d"), pa.int64()), "d::bigint"),
        (cast(col("d"), pa.float64()), "d::double"),
        (cast(col("d"), D(12, 1)), "d::decimal(12,1)"),
        (cast(col("d"), D(20, 6)), "d::decimal(20,6)"),
        (cast(col("d"), D(38, 30)), "d::decimal(38,30)"),
        (cast(col("w"), D(38, 1)), "w::decimal(38,1)"),
        (cast(col("w"), D(38, 5)), "w::decimal(38,5)"),
        (cast(col("w"), pa.float64()), "w::double"),
        (cast(col("w"), pa.string()), "w::varchar"),
        (cast(col("e"), pa.string()), "e::varchar"),
        (cast(col("d"), pa.bool_()), "d::bool"),
        (cast(col("day"), pa.string()), "day::varchar"),
        (cast(col("day"), pa.timestamp("us")), "day::timestamp"),
        (cast(col("other_day"), pa.timestamp("ns")), "other_day::timestamp"),
        (cast(col("moment"), pa.date32()), "moment::date"),
        (cast(col("moment"), pa.string()), "moment::varchar"),
        (cast(col("moment"), pa.timestamp("s")), "date_trunc('second', moment)"),
        (cast(col("moment"), pa.time64("us")), "moment::time"),
        (cast(col("clock"), pa.string()), "clock::varchar"),
        (cast(cast(col("i"), pa.string()), pa.int32()), "i::varchar::int"),
        (cast(cast(col("g"), pa.string()), pa.float64()), "g::varchar::double"),
        (cast(cast(col("d"), pa.string()), D(12, 2)), "d::varchar::decimal(12,2)"),
        (cast(cast(col("d"), pa.string()), D(12, 1)), "d::varchar::decimal(12,1)"),
        (cast(cast(col("w"), pa.string()), D(38, 3)), "w::varchar::decimal(38,3)"),
        (cast(cast(col("day"), pa.string()), pa.date32()), "day::varchar::date"),
        (cast(cast(col("moment"), pa.string()), pa.timestamp("us")), "moment::varchar::timestamp"),
        (cast(cast(col("b"), pa.string()), pa.bool_()), "b::varchar::bool"),
        (cast(lit(None), pa.int32()), "null::int"),
        (cast(lit("2020-02-29"), pa.date32()), "date '2020-02-29'"),
        (cast(lit(" 12 "), pa.int64()), "' 12 '::bigint"),
        (cast(lit(2.5), pa.int64()), "2.5::double::bigint"),
        (cast(lit(-3.5), pa.int64()), "-3.5::double::bigint"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cast(expression: Cast, sql: str) -> None:
    check(cast(expression.operand, expression.type, null_on_failure=True), sql)


def strings(*values: str | None) -> tuple[Expression, pa.Table]:
    return FieldReference(0, pa.string()), pa.table({"x": pa.array(values, pa.string())})


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("x", pa.int64()),
        ("", pa.int32()),
        ("1e400x", pa.float64()),
        ("300", pa.uint8()),
        ("9999999999", pa.int32()),
        ("abc", D(10, 2)),
        ("123456789012", D(10, 2)),
        ("nan", D(10, 2)),
        ("2021-02-29", pa.date32()),
        ("maybe", pa.bool_()),
        ("25:00:00", pa.time64("us")),
        ("2021-01-01 99:00:00", pa.timestamp("us")),
    ],
)
def test_strings_that_are_no_value(text: str, type_: pa.DataType) -> None:
    x, table = strings("", text, None)
    with pytest.raises(DataError):
        ours(cast(x, type_), table)
    assert ours(cast(x, type_, null_on_failure=True), table) == [None, None, None]


def test_a_failing_cast_fails_only_its_own_rows() -> None:
    x, table = strings("1", "x", None, "3", "y", "5")
    assert ours(cast(x, pa.int64(), null_on_failure=True), table) == [1, None, None, 3, None, 5]


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (300, pa.int64(), pa.int8()),
        (-1, pa.int64(), pa.uint32()),
        (1e30, pa.float64(), pa.int64()),
        (float("nan"), pa.float64(), pa.int32()),
        (float("inf"), pa.float64(), D(38, 2)),
        (123456, pa.int64(), D(5, 2)),
        (1e20, pa.float64(), D(18, 0)),
    ],
)
def test_numbers_that_do_not_fit(value: float, source: pa.DataType, target: pa.DataType) -> None:
    table = pa.table({"x": pa.array([value, None], source)})
    with pytest.raises(DataError):
        ours(cast(FieldReference(0, source), target), table)


def test_conversions_without_sense_are_unsupported() -> None:
    table = pa.table({"x": pa.array([dt.date(2020, 1, 1)])})
    for type_ in (pa.bool_(), pa.float64(), pa.time64("us"), pa.list_(pa.int8())):
        with pytest.raises(Unsupported):
            ours(cast(FieldReference(0, pa.date32()), type_), table)


def test_moments_are_those_of_utc() -> None:
    utc = pa.timestamp("us", "UTC")
    table = pa.table({"x": pa.array([dt.datetime(2024, 7, 1, 12), None], pa.timestamp("us"))})
    naive = FieldReference(0, pa.timestamp("us"))
    aware = column_to_arrow(evaluate(cast(naive, utc), batch_from_arrow(table)))
    assert aware.cast(pa.int64()).to_pylist() == [1719835200000000, None]
    assert ours(cast(cast(naive, utc), pa.timestamp("us")), table) == table["x"].to_pylist()
    assert ours(call("date_part", lit("hour"), cast(naive, utc)), table) == [12, None]
    assert same(theirs("1")["one row"][0], 1)
