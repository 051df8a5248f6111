"""DuckDB evaluates the same expression on the same rows: nullable or not, coded or plain, few or none."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.column import normalise_type
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, Literal
from pystachio.operators.functions.registry import result_type

_TEXTS = [
    "",
    "a",
    "abc",
    "Hello World",
    "  padded  ",
    "50% off_season",
    "special packages requests",
    "line one\nline two",
    "äöü ßtraße",
    "日本語テキスト",
    "aaa",
    "back\\slash",
    "x,y,z",
    "naïve café",
]
_DAYS = [
    dt.date(1970, 1, 1),
    dt.date(1992, 2, 29),
    dt.date(1998, 12, 31),
    dt.date(2000, 2, 29),
    dt.date(1900, 3, 1),
    dt.date(2024, 12, 30),
    dt.date(1969, 12, 31),
    dt.date(2021, 1, 3),
    dt.date(1600, 1, 31),
]
_TIMES = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1992, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 23, 0, 0, 1),
    dt.datetime(2024, 5, 31, 12, 30, 15, 500_000),
    dt.datetime(1899, 12, 31, 6, 7, 8),
]

_COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "i": ([0, 1, -1, 2, 7, -13, 100, 1000, -1000, 25, 3], pa.int32()),
    "j": ([5, 1, 3, -2, 7, 9, 11, -4, 1], pa.int32()),
    "k": ([0, 1, -1, 2**40, -(2**40), 3, 12345678901], pa.int64()),
    "u": ([0, 255, 7, 128, 1], pa.uint8()),
    "f": (
        [0.0, -0.0, 1.5, -2.5, 0.5, 1e300, -1e-300, float("nan"), float("inf"), float("-inf"), 2.5, 3.7],
        pa.float64(),
    ),
    "g": ([1.0, 0.25, -3.75, 1e10, 100.125, -0.5, 7.0], pa.float64()),
    "d": (["0.00", "1.00", "-1.25", "99999.99", "0.05", "-0.05", "2.50", "-2.50", "7.77"], pa.decimal128(12, 2)),
    "e": (["1.0000", "0.1250", "-3.5000", "12.3456", "0.0001", "100.0000", "-0.0050"], pa.decimal128(15, 4)),
    "w": (
        ["0.000", "12345678901234567890123456.789", "-99999999999999999999999999.999", "1.500", "-2.500"],
        pa.decimal128(38, 3),
    ),
    "b": ([True, False, False, True, True], pa.bool_()),
    "c": ([True, True, False], pa.bool_()),
    "s": (_TEXTS, pa.string()),
    "t": (["a", "Hello World", "abc", "b", "x", "é", ""], pa.string()),
    "day": (_DAYS, pa.date32()),
    "other_day": ([dt.date(2000, 1, 1), dt.date(1995, 6, 17), dt.date(1992, 2, 29)], pa.date32()),
    "moment": (_TIMES, pa.timestamp("us")),
    "clock": ([dt.time(0), dt.time(23, 59, 59, 999_999), dt.time(12, 34, 56)], pa.time64("us")),
}
NAMES = tuple(_COLUMNS)


def _table(rows: int, *, nulls: Callable[[int, int], bool]) -> pa.Table:
    arrays = []
    for position, (values, type_) in enumerate(_COLUMNS.values()):
        converted = [Decimal(value) if pa.types.is_decimal(type_) else value for value in values]
        cycle = [converted[(row + position) % len(converted)] for row in range(rows)]
        arrays.append(pa.array([None if nulls(row, position) else v for row, v in enumerate(cycle)], type_))
    return pa.table(arrays, names=list(NAMES))


def _coded(table: pa.Table) -> pa.Table:
    columns = [
        column.combine_chunks().dictionary_encode() if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


@lru_cache(maxsize=1)
def tables() -> dict[str, pa.Table]:
    nullable = _table(120, nulls=lambda row, position: (row * 7 + position * 3) % 5 == 0)
    plain = _table(120, nulls=lambda row, position: False)
    return {
        "nullable": nullable,
        "not null": plain,
        "coded": _coded(nullable),
        "coded, not null": _coded(plain),
        "sliced": nullable.slice(13, 40),
        "one row": plain.slice(3, 1),
        "empty": plain.slice(0, 0),
        "all null": _table(6, nulls=lambda row, position: True),
    }


def col(name: str) -> FieldReference:
    return FieldReference(NAMES.index(name), normalise_type(_COLUMNS[name][1]))


def lit(value: Any, type_: pa.DataType | None = None) -> Literal:
    match value:
        case bool():
            return Literal(value, type_ or pa.bool_())
        case int():
            return Literal(value, type_ or pa.int64())
        case float():
            return Literal(value, type_ or pa.float64())
        case str():
            return Literal(value, type_ or pa.string())
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            number = int("".join(map(str, digits))) * (-1 if sign else 1)
            return Literal(number, type_ or pa.decimal128(max(len(digits), -exponent), -exponent))
        case dt.datetime():
            return Literal(int((value - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1)), pa.timestamp("us"))
        case dt.date():
            return Literal((value - dt.date(1970, 1, 1)).days, pa.date32())
        case tuple():
            return Literal(value, pa.month_day_nano_interval())
        case _:
            assert value is None
            return Literal(None, type_ or pa.null())


def call(function: str, *arguments: Expression, type_: pa.DataType | None = None) -> Call:
    return Call(function, arguments, type_ or result_type(function, [argument.type for argument in arguments]))


def cast(operand: Expression, type_: pa.DataType, *, null_on_failure: bool = False) -> Cast:
    return Cast(operand, type_, null_on_failure)


def ours(expression: Expression, table: pa.Table) -> list[Any]:
    values: list[Any] = column_to_arrow(evaluate(expression, batch_from_arrow(table))).to_pylist()
    return values


@lru_cache(maxsize=1)
def _connection() -> duckdb.DuckDBPyConnection:
    """All tables one after the other as one, so that an expression is one query."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'; set threads = 1")
    everything = pa.concat_tables([_plain(table) for table in tables().values()])
    connection.register("everything", everything)
    connection.execute("create table data as select * from everything")
    return connection


def _plain(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([(name, type_) for name, (_, type_) in _COLUMNS.items()]))


def theirs(sql: str) -> dict[str, list[Any]]:
    """DuckDB's values per table."""
    values = iter(_connection().execute(f"select {sql} from data order by rowid").fetchall())
    return {name: [next(values)[0] for _ in range(table.num_rows)] for name, table in tables().items()}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        if left is None or right is None:
            return left is right
        left, right = float(left), float(right)
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-300)
    return bool(left == right) and (left is None) == (right is None)


def check(expression: Expression, sql: str, *, without: tuple[str, ...] = ()) -> None:
    """Our value of `expression` equals DuckDB's of `sql` in every row of every table."""
    wanted = theirs(sql)
    for name, table in tables().items():
        if name in without:
            continue
        found = ours(expression, table)
        assert len(found) == table.num_rows, name
        for row, (mine, other) in enumerate(zip(found, wanted[name], strict=True)):
            shown = table.slice(row, 1).to_pylist()[0]
            assert same(mine, other), f"{sql}: {mine!r} instead of {other!r} in row {row} of {name}: {shown}"
