from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from pystachio.cli.cells import csv_column, json_cells, text_cells
from pystachio.cli.columns import printable

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 500_000)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([True, False, None], pa.bool_(), [True, False, None]),
        ([-(2**63), 2**63 - 1, None], pa.int64(), [-(2**63), 2**63 - 1, None]),
        ([2**64 - 1], pa.uint64(), [2**64 - 1]),
        ([0.1, 1e300, None], pa.float64(), [0.1, 1e300, None]),
        ([float("nan"), float("inf"), float("-inf")], pa.float64(), ["NaN", "Infinity", "-Infinity"]),
        ([0.1, None], pa.float32(), [0.1, None]),
        (
            [Decimal("0.00000001"), Decimal("-12.50000000"), None],
            pa.decimal128(20, 8),
            ["0.00000001", "-12.50000000", None],
        ),
        ([dt.date(1992, 1, 2), None], pa.date32(), ["1992-01-02", None]),
        ([dt.time(1, 2, 3)], pa.time32("s"), ["01:02:03"]),
        ([NOON, None], pa.timestamp("ms"), ["2024-02-29T12:00:00.500", None]),
        ([NOON], pa.timestamp("ns"), ["2024-02-29T12:00:00.500000000"]),
        ([NOON], pa.timestamp("s", "UTC"), ["2024-02-29T12:00:00Z"]),
        ([NOON], pa.timestamp("s", "Europe/Berlin"), ["2024-02-29T13:00:00+01:00"]),
        (['say "hi"\n', "", "größer 😀", None], pa.string(), ['say "hi"\n', "", "größer 😀", None]),
        (["x", None], pa.string_view(), ["x", None]),
        (["x", None], pa.large_string(), ["x", None]),
        ([b"\x00\xff", None], pa.binary(), ["AP8=", None]),
        ([b"\x00\xff", None], pa.binary_view(), ["AP8=", None]),
        ([None, None], pa.null(), [None, None]),
        ([[1, None], None], pa.list_(pa.int32()), [[1, None], None]),
        (
            [{"a": Decimal("1.50"), "b": b"\x00"}],
            pa.struct([("a", pa.decimal128(5, 2)), ("b", pa.binary())]),
            [{"a": "1.50", "b": "AA=="}],
        ),
    ],
)
def test_json_cells_read_back_as_the_documented_values(
    values: list[object], kind: pa.DataType, expected: list[object]
) -> None:
    column = (
        pa.array(values, kind)
        if not pa.types.is_timestamp(kind)
        else pa.array(values, pa.timestamp("us")).cast(kind, safe=False)
    )
    cells = json_cells(column)
    assert [json.loads(cell) for cell in cells] == expected


def test_json_cells_read_dictionary_codes() -> None:
    column = pa.array(["b", None, "a", "b"]).dictionary_encode()
    assert json_cells(column) == ['"b"', "null", '"a"', '"b"']


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([b"\xde\xad", None], pa.binary(), ["\\xDEAD", None]),
        ([float("nan"), 1.0], pa.float64(), ["nan", "1.0"]),
        ([0.1], pa.float32(), ["0.1"]),
        ([True], pa.bool_(), ["true"]),
        ([[1, 2]], pa.list_(pa.int8()), ["[1, 2]"]),
        ([(1, 2, 3)], pa.month_day_nano_interval(), ["MonthDayNano(months=1, days=2, nanoseconds=3)"]),
    ],
)
def test_text_cells(values: list[object], kind: pa.DataType, expected: list[str | None]) -> None:
    assert text_cells(pa.array(values, kind)) == expected


def test_csv_columns_keep_small_decimals_without_exponent() -> None:
    column = csv_column(pa.array([Decimal("0.00000001"), None], pa.decimal128(20, 8)))
    assert column.to_pylist() == ["0.00000001", None]


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\u009b") == "a\\x1b[2Jb\\nc\\x9b"
