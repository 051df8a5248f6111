from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.cli.formats import Format, choose_format, write_rows

TABLE = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "name": pa.array(["a", "", None], pa.string()),
        "price": pa.array([Decimal("1.50"), Decimal("-20.00"), None], pa.decimal128(15, 2)),
    }
)


def written(table: pa.Table, how: Format, *, rows_per_batch: int = 2, screen: bool = False) -> bytes:
    sink = io.BytesIO()
    write_rows(table.schema, table.to_batches(max_chunksize=rows_per_batch), how, sink, screen=screen)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("asked", "output", "expected"),
    [
        (None, None, Format.TABLE),
        (None, Path("x.CSV"), Format.CSV),
        (None, Path("x.parquet"), Format.PARQUET),
        (None, Path("x.txt"), Format.TABLE),
        (Format.JSON, Path("x.csv"), Format.JSON),
    ],
)
def test_format_is_what_was_asked_for_or_what_the_name_says(
    asked: Format | None, output: Path | None, expected: Format
) -> None:
    assert choose_format(asked, output) is expected


def test_json_is_one_object_per_row() -> None:
    lines = written(TABLE, Format.JSON).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"n": 1, "name": "a", "price": "1.50"},
        {"n": None, "name": "", "price": "-20.00"},
        {"n": 3, "name": None, "price": None},
    ]


def test_json_keeps_columns_of_the_same_name_apart() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_2"])
    assert json.loads(written(table, Format.JSON)) == {"a": 1, "a_3": 2, "a_2": 3}


def test_csv_tells_null_from_the_empty_string() -> None:
    text = written(TABLE, Format.CSV).decode()
    assert text.splitlines()[1:] == ['1,"a","1.50"', ',"","-20.00"', "3,,"]
    assert [row[2] for row in csv.reader(io.StringIO(text))] == ["price", "1.50", "-20.00", ""]


def test_csv_of_no_rows_has_its_header() -> None:
    assert written(TABLE.slice(0, 0), Format.CSV).decode() == '"n","name","price"\n'


def test_arrow_and_parquet_read_back_equal() -> None:
    assert pa.ipc.open_stream(written(TABLE, Format.ARROW)).read_all().equals(TABLE)
    assert pq.read_table(io.BytesIO(written(TABLE, Format.PARQUET))).equals(TABLE)


def test_table_aligns_numbers_right_and_text_left() -> None:
    assert written(TABLE, Format.TABLE).decode().splitlines() == [
        "   n  name   price",
        "────  ────  ──────",
        "   1  a       1.50",
        "NULL        -20.00",
        "   3  NULL    NULL",
    ]


def test_table_aligns_wide_characters() -> None:
    table = pa.table({"s": ["漢字", "abcd"], "n": [1, 2]})
    assert written(table, Format.TABLE).decode().splitlines()[2:] == ["漢字  1", "abcd  2"]


def test_table_without_a_terminal_holds_every_row_uncut() -> None:
    table = pa.table({"s": ["x" * 500] * 2500})
    lines = written(table, Format.TABLE, rows_per_batch=700).decode().splitlines()
    assert lines[2:] == ["x" * 500] * 2500


def test_table_on_a_screen_is_cut_and_asks_for_no_more() -> None:
    asked = []

    def batches():
        for number in range(10):
            asked.append(number)
            yield from pa.table({"s": ["y" * 100] * 80}).to_batches()

    sink = io.BytesIO()
    complete = write_rows(pa.schema({"s": pa.string()}), batches(), Format.TABLE, sink, screen=True)
    lines = sink.getvalue().decode().splitlines()
    assert not complete
    assert lines[2:] == ["y" * 59 + "…"] * 100
    assert asked == [0, 1]


def test_table_of_exactly_a_screen_is_complete() -> None:
    table = pa.table({"n": list(range(100))})
    sink = io.BytesIO()
    assert write_rows(table.schema, table.to_batches(), Format.TABLE, sink, screen=True)
    assert len(sink.getvalue().splitlines()) == 102


@pytest.mark.parametrize("how", list(Format))
def test_every_format_takes_a_result_without_rows_or_batches(how: Format) -> None:
    sink = io.BytesIO()
    assert write_rows(TABLE.schema, [], how, sink)
